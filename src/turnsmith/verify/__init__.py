"""The history check of a run: proves, from its folder alone, that its records agree with each other.

`run.verify_run` reads the folder once, step by step, and every module named after a kind of record looks at each step.
"""
