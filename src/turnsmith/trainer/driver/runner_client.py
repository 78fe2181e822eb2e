"""The user's process waiting for the task runner: shows events, notices signals, and asks the watchdog."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from turnsmith.errors import Preempted, TurnsmithError
from turnsmith.trainer.driver.stop_signals import Interrupt
from turnsmith.trainer.driver.watchdog import Watchdog
from turnsmith.trainer.epochs import Epochs

_EVENT_SECONDS = 0.25
_ANSWER_SECONDS = 1.0


def wait_for_call(
    reference: Any, runner: Any, watchdog: Watchdog, show: Callable[[str, Any], None], grace: float | None = None
) -> Any:
    """Wait for a call to the task runner and return its result; signals and the watchdog work even if it hangs.

    Args:
        reference: The call.
        runner: The task runner's actor.
        watchdog: Stops a run that makes no progress.
        show: Called with the kind and the content of each event.
        grace: Seconds to wait for a run that is preempted; None: it is not.

    Raises:
        TimeoutError: The call took longer than `grace`.
    """
    import ray
    from ray.exceptions import RayError

    deadline = None if grace is None else time.monotonic() + grace

    def look() -> None:
        interrupt.check()
        for sentence in watchdog.look():
            show("warning", sentence)
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError

    watchdog.move()
    with Interrupt(preempted=grace is not None) as interrupt:
        try:
            while True:
                done, _ = ray.wait([reference], timeout=0)
                events = runner.next_events.remote(0.0 if done else _EVENT_SECONDS)
                while not ray.wait([events], timeout=_ANSWER_SECONDS)[0]:
                    look()
                told: Any = ray.get(events)
                for kind, content in told:
                    watchdog.move(content if kind == "phase" else None)
                    show(kind, content)
                if done:
                    return ray.get(reference)
                look()
        except RayError:
            interrupt.check()  # a signal to all processes of the job may have ended those of Ray as well
            raise


def train_until(
    step: int,
    epochs: Epochs,
    runner: Any,
    watch: Callable[..., Any],
    grace: float,
    note: Callable[[str], None],
) -> bool:
    """Train up to and including a step; when preempted, have a checkpoint saved first, which may take `grace` seconds.

    Args:
        step: The step.
        epochs: Those of the steps until there.
        runner: The task runner's actor.
        watch: `wait_for_call`, with a call, and the grace period if there is one.
        grace: The grace period.
        note: Called with a sentence about what happens.

    Returns:
        Whether that step was reached; not if `stop_soon` was called meanwhile.

    Raises:
        Preempted: After that; its text says whether it worked.
    """
    training = runner.train_until.remote(step, epochs)
    try:
        return bool(watch(training))
    except Preempted as preempted:
        reason = str(preempted)
    note(f"{reason} Saving a checkpoint, for up to {grace:g} s.")
    runner.stop_soon.remote()
    try:
        if watch(training, grace):
            return True  # that was the last step
    except TimeoutError:
        reason += f" The last step could not be saved in {grace:g} s (checkpoint.grace_seconds)."
    except TurnsmithError as error:
        reason += f" The last step could not be saved: {error}"
    raise Preempted(reason)
