"""Checks that play episodes of one environment with the settings of its run; `run` runs them in order."""
