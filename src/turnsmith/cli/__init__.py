"""The `turnsmith` command: one module a command; heavy imports wait until a command runs."""
