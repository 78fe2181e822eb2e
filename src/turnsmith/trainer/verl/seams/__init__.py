"""Every seam of verl 0.9.1 that we touch, as checks: `python -m turnsmith.trainer.verl.seams`."""

# Each adds its seams.
from turnsmith.trainer.verl.seams import above, below, decisions, faults, layouts, separate, tracking  # noqa: F401
from turnsmith.trainer.verl.seams.base import CPU, SEAMS, Seam, same

__all__ = ["CPU", "SEAMS", "Seam", "same"]
