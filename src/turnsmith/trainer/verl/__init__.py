"""The only package that imports verl, pinned to 0.9.1; `tests/unit/trainer/verl_members.txt` has what it relies on."""
