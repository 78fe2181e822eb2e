"""The `turnsmith` command: one module per command; heavy imports wait until a command runs."""
