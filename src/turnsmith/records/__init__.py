"""What a run leaves behind: the run folder, metrics and events as JSON lines, episodes as Parquet.

The formats here are the only interface between training and whoever reads a run. This package knows nothing of
engines, environments or trainers.
"""
