"""What a person sees while a run is going on. Knows nothing of training: it is given phases and metrics."""
