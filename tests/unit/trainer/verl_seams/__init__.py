"""Every seam of verl 0.9.1 that we touch, as checks that run in a process of their own: `python -m verl_seams cpu`."""

from verl_seams import above, below  # noqa: F401  (each adds its seams)
from verl_seams.base import CPU, SEAMS, UNCHOSEN, Seam, same

__all__ = ["CPU", "SEAMS", "UNCHOSEN", "Seam", "same"]
