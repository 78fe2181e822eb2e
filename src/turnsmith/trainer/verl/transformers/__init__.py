"""The rollout server for the `transformers` engine, as verl starts and calls it."""
