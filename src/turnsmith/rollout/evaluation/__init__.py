"""Evaluation: many episodes with one engine, their statistics, and a paired comparison of two evaluations."""
