"""Tools that a model can call, and the parsers that read tool calls out of its completions."""
