"""What lets verl and vLLM run without a GPU."""
