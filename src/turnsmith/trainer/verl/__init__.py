"""The only package that imports verl, pinned to 0.9.1; `tests/unit/trainer/test_verl_contract.py` lists every seam."""
