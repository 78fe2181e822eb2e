"""What is inside a checkpoint, and how a model is taken out of one. `records.checkpoints` knows the folders."""
