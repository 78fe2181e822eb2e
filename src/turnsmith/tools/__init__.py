"""What a model can do besides speaking: tools, and the parsers that read calls of them out of what it says."""
