"""Every seam of verl 0.9.1 that we touch, as checks that run in processes of their own: `python -m verl_seams`."""

from verl_seams import above, below, decisions, faults, layouts, tracking  # noqa: F401  (each adds its seams)
from verl_seams.base import CPU, SEAMS, Seam, same

__all__ = ["CPU", "SEAMS", "Seam", "same"]
