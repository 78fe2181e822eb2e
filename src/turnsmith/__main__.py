"""`python -m turnsmith` is the `turnsmith` command."""

from turnsmith.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
