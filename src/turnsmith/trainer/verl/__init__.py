"""The only room that imports verl, pinned to 0.9.1; `tests/unit/trainer/test_verl_contract.py` names every seam."""
