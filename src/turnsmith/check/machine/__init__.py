"""Does training work on these machines? Trains, kills and measures for some minutes, as a user would.

Start reading in `run`. Knows nothing of verl itself.
"""

from __future__ import annotations
