"""`python -m turnwise` is the `turnwise` command."""

from turnwise.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
