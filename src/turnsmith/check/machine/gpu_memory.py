"""GPU memory while a run trains: whether the engine gives its own back when it sleeps, and takes no more when it wakes.

A process of its own measures all GPUs of this machine; it uses nothing on them but its CUDA context.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from turnsmith.check.finding import Finding
from turnsmith.errors import TurnsmithError

_INTERVAL = 0.02
_GROWTH = 1.1
"""Largest use after a step, as a multiple of the use before it."""
_ASLEEP = 0.9
"""Largest use while the engine sleeps, as a multiple of the use before the step."""


def sampled_while(work: Callable[[], object]) -> list[float]:
    """GiB in use on all GPUs: before, many times during, and after a function runs."""
    command = [sys.executable, "-m", "turnsmith.check.machine.gpu_memory"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        first = process.stdout.readline()  # importing torch takes seconds
        if not first:
            raise TurnsmithError(f"GPU memory could not be measured: exit code {process.wait()}.")
        work()
        rest, _ = process.communicate()  # closes its input, and it ends
    return [float(line) for line in [first, *rest.splitlines()]]


def judge_memory(used: Sequence[float]) -> Finding:
    """Whether the engine sleeps, and no more memory is in use after a step than before.

    Args:
        used: GiB in use, from before a step until after it; the engine is awake at both ends.

    Example:
        >>> judge_memory([40.2, 40.5, 6.1, 9.0, 40.3]).saw
        '40 GiB in use before a step, 6.1 while the engine slept, 40 after'
    """
    before, least, after = used[0], min(used), used[-1]
    if least > _ASLEEP * before:
        saw = f"{before:.1f} GiB of GPU memory are in use while the engine is awake, and never less than {least:.1f} \
while the trainer works."
        fix = "The engine does not give memory back, so a larger model will not fit: see the engine's sleep mode."
        return Finding("failed", saw, fix)
    if after > _GROWTH * before:
        saw = f"GPU memory in use grew from {before:.1f} to {after:.1f} GiB in one step."
        fix = "What the engine frees when it sleeps is not what it takes when it wakes: a long run runs out of memory."
        return Finding("failed", saw, fix)
    saw = f"{before:.2g} GiB in use before a step, {least:.2g} while the engine slept, {after:.2g} after"
    return Finding("passed", saw)


def _sample_until_input_ends() -> None:
    """Print the first sample at once, and all others at the end."""
    import torch

    def used() -> float:
        free_and_total = [torch.cuda.mem_get_info(gpu) for gpu in range(torch.cuda.device_count())]
        return sum(total - free for free, total in free_and_total) / 2**30

    sys.stdout.write(f"{used()}\n")
    sys.stdout.flush()
    ended = threading.Thread(target=sys.stdin.read, daemon=True)
    ended.start()
    samples: list[float] = []
    while ended.is_alive():
        samples.append(used())
        time.sleep(_INTERVAL)
    sys.stdout.writelines(f"{sample}\n" for sample in [*samples, used()])


if __name__ == "__main__":
    _sample_until_input_ends()
