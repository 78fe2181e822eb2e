"""Five tasks of reasoning-gym 0.1.25 differ from one process to the next with the same seed: the order of a set."""

import os
import subprocess
import sys

ASK = "import sys, reasoning_gym as r; print([*r.create_dataset(sys.argv[1], seed=0, size=9)])"
for name in ("isomorphic_strings", "list_functions", "polynomial_multiplication", "ransom_note", "word_ladder"):
    run = [sys.executable, "-c", ASK, name]
    said = {subprocess.check_output(run, env=os.environ | {"PYTHONHASHSEED": seed}) for seed in "12"}
    assert len(said) > 1, name
