"""The only room that imports verl. Pinned to verl 0.9.1; `tests/unit/trainer/test_verl_contract.py` names every seam."""
