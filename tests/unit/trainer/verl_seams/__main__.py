"""Check all seams of one platform and print the answers as JSON."""

import json
import sys

if __name__ == "__main__":
    import verl  # noqa: F401  (its plugins must load before anything of ours is imported)

    from verl_seams.base import LOADED_BY_VERL, SEAMS

    LOADED_BY_VERL.update(sys.modules)
    print(json.dumps({name: seam.answer() for name, seam in SEAMS.items() if seam.platform == sys.argv[1]}))
