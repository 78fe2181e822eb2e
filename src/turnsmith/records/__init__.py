"""Runs on disk: the run folder, metrics and events as JSON lines, episodes as Parquet, checkpoints.

These file formats are the only interface between training and the tools that read a run. The package does not depend
on engines, environments or trainers.
"""
