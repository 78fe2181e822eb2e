"""The `turnsmith` command: one small file for each command, and nothing heavy imported before a command runs."""
