"""From our settings to verl's: what `auto` means, what cannot work together, and every key of verl that we set.

Imports no verl, so that a dry run is quick and needs no accelerator.
"""
