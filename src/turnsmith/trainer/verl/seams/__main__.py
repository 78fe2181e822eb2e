"""Check all seams and print the answers as JSON, each platform in a process of its own.

Nearly all of the time that `import verl` takes goes into other packages. Those are imported once, before the process
splits; verl and our plugin only afterwards, so that they load under the platform that each half has chosen.
"""

import gc
import importlib
import json
import multiprocessing
import os
import sys

from turnsmith.trainer.verl.seams.base import CPU, LOADED_BY_VERL, SEAMS, UNCHOSEN

SHARED = ("tensordict", "transformers.modeling_utils", "ray.util.state", "datasets", "peft")
PLATFORMS = (CPU, UNCHOSEN)
# Only a process with one thread splits safely.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}


def answers(platform: str) -> dict[str, str]:
    """What each seam of one platform answers."""
    if platform != UNCHOSEN:
        # As `environment_variables` in trainer/driver/cluster.py has it for every process of a run.
        os.environ.update(VERL_PLATFORM=platform, TURNSMITH_RUN="1")

    import verl  # noqa: F401  (its plugins must load before anything of ours is imported)

    LOADED_BY_VERL.update(sys.modules)
    return {name: seam.answer() for name, seam in SEAMS.items() if seam.platform == platform}


if __name__ == "__main__":
    gc.disable()  # nothing here becomes garbage
    os.environ.update(ONE_THREAD)
    for package in SHARED:
        importlib.import_module(package)
    early = [
        name for name in sys.modules if name.partition(".")[0] == "verl" or name == "turnsmith.trainer.verl.plugin"
    ]
    assert not early, f"Loaded before a platform was chosen: {early}"
    with multiprocessing.get_context("fork").Pool(len(PLATFORMS), maxtasksperchild=1) as pool:
        found = pool.map(answers, PLATFORMS, chunksize=1)
    print(json.dumps({name: answer for half in found for name, answer in half.items()}))
