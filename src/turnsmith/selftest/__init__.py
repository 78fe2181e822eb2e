"""`turnsmith selftest`: trains, kills and measures for some minutes on the user's machines, and says what is wrong.

Start reading in `run`. Uses the trainer as a user would; knows nothing of verl itself.
"""

from __future__ import annotations
