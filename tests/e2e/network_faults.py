"""What can happen to a network and its hosts, done to runs on them; and what came of it, as rows of a table."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.e2e.conftest import verification_problem
from tests.e2e.host_cluster import HostCluster, HostRun
from tests.e2e.same_runs import differences
from tests.e2e.watched_run import steps_made
from turnsmith.records.run_folder import RunFolder

STEPS = 14
SETTINGS = (f"training.num_epochs={STEPS}", "ray.num_actors=2")
WENT_ON = "went on"
_STOPPED = 2
"""The exit status of a run that says that it cannot go on."""
CUT, DEAF, MUTE = "no cable", "hears nobody", "nobody hears it"
SLOW, LOSSY = "200 ms a round trip", "2 % of all frames lost"
FULL, GONE = "full disk", "gone for good"
_CABLES = {
    DEAF: {"loss_to": 1.0},
    MUTE: {"loss_from": 1.0},
    SLOW: {"seconds": 0.1},
    LOSSY: {"loss_from": 0.02, "loss_to": 0.02},
}
_DRAWN = {CUT: (1, 4, 16), DEAF: (1, 4, 16), MUTE: (1, 4, 16), SLOW: (3, 8), LOSSY: (3, 8), FULL: (1, 3)}
"""Seconds that a drawn fault may last: a run makes steps during the last three of them, and has only `STEPS`."""


@dataclass(frozen=True)
class Fault:
    """Something that happens to the second host."""

    kind: str
    """One of the names above."""
    seconds: float = 0.0
    """How long it lasts."""
    after: float = 0.0
    """How long after a step it begins."""

    def __str__(self) -> str:
        """As the first two cells of a row."""
        return f"{self.kind} | {f'{self.seconds:g} s' if self.seconds else 'for ever'}"

    @contextmanager
    def happening(self, cluster: HostCluster) -> Generator[None]:
        """While this is entered, it is so."""
        network, host = cluster.network, cluster.second
        if self.kind == FULL:
            host.run(["sh", "-c", "cat /dev/zero >/tmp/full"])
            yield
            host.run(["rm", "/tmp/full"])
        elif self.kind == GONE:
            network.vanish(host)
            yield
        else:
            if self.kind == CUT:
                network.cut(host)
            else:
                network.replace_cable(host, **_CABLES[self.kind])
            yield
            network.mend(host)


def drawn_faults(draw: random.Random) -> list[Fault]:
    """One or two faults that pass; in every fifth list a host is gone after them."""
    kinds = [draw.choice(list(_DRAWN)) for _ in range(draw.randint(1, 2))]
    faults = [Fault(kind, draw.choice(_DRAWN[kind]), draw.uniform(0, 3)) for kind in kinds]
    if draw.random() < 1 / 5:
        faults.append(Fault(GONE, after=draw.uniform(0, 3)))
    return faults


@dataclass
class Outcome:
    """What came of a run."""

    ends: list[str] = field(default_factory=list[str])
    """After each fault: `WENT_ON`, or what the run printed when it stopped."""
    lost: int = 0
    """Episodes that were dispatched, and are in no outcome."""
    problem: str = ""
    """What `turnsmith runs verify` says against it."""
    differs: list[str] = field(default_factory=list[str])
    """How its steps, episodes and weights differ from those of an undisturbed run."""


def endure(cluster: HostCluster, name: str, faults: list[Fault], undisturbed: HostRun) -> Outcome:
    """Train while these things happen, and print a row for each.

    If the run stops, start Ray again where it is gone and resume.
    """
    run, outcome, rows = cluster.train(name, *SETTINGS), Outcome(), list[str]()
    run.wait_for_steps(1)
    for fault in faults:
        assert run.has_ended() is None, f"it ended before {fault}: {run.told}"
        time.sleep(fault.after)
        began, before = time.time(), steps_made(run.path)
        with fault.happening(cluster):
            time.sleep(fault.seconds)
        if run.wait_for_steps(2):
            outcome.ends.append(WENT_ON)
            what = f"went on; the longest step took {run.longest_step(before):.0f} s"
        else:
            assert run.wait().code == _STOPPED, run.told
            outcome.ends.append(run.told)
            seconds = time.time() - began
            assert f"`turnsmith resume {run.path}` continues from step" in run.told, run.told
            cluster.repair()
            began = time.time()
            run = cluster.resume(run)
            run.wait_for_steps(1)
            what = f"stopped after {seconds:.0f} s; its next step was made {time.time() - began:.0f} s after `resume`"
        rows.append(f"| {fault} | {what} |")
        print(rows[-1], flush=True)
    assert run.wait().code == 0, run.told
    folder = RunFolder.open(run.path)
    ledger = folder.read_ledger()
    assert [step["step"] for step in ledger] == list(range(1, STEPS + 1))
    settled = ("trained", "masked", "dropped", "filtered")
    outcome.lost = sum(step["dispatched"] - sum(step[one] for one in settled) for step in ledger)
    outcome.problem = verification_problem(run.path)
    outcome.differs = differences(folder, RunFolder.open(undisturbed.path), had_faults=True, ranks=2)
    equal = "equal to the last bit" if not outcome.differs else f"differs: {', '.join(outcome.differs[:5])}"
    print("\n".join(f"{row} {outcome.lost} | {equal} |" for row in rows), flush=True)
    return outcome
