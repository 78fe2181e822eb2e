"""Will the run that is to be queued work? Scaled to this machine, from its settings to a kill and a resume.

Start reading in `run`. Uses `turnsmith train` and `turnsmith resume` as a user would.
"""

from __future__ import annotations
