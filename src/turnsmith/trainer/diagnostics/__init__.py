"""Metrics of a step, and the checks that warn when training goes wrong."""
