"""How much of a run's speed is left when environments crash: steps of real episodes, with and without faults.

Everything is real but the model and the update: an engine that takes a fixed time for a turn, and a pause in place of
the update. Environments run in worker processes; a fault is an exception or the death of a whole worker process, which
takes the other environments in it along. Each episode that is hit is tried again by the default failure policy.

    python -m benchmarks.goodput                 # 0, 0.3, 1 and 5 % of episodes hit, about ten minutes, mostly asleep
    python -m benchmarks.goodput --quick         # 1 %, a minute and a half
    python -m benchmarks.goodput --shares 0.003 --steps 4 --turn-seconds 0.3

Prints, for each share, the trained episodes a second as a ratio to those without faults, and whether the rewards of
every group are the same as without. Exits 1 if they are not, or if the ratio is under its limit in `LIMITS`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import results

from turnsmith import BaseEnvironment, Chat, EnvironmentConfig, EpisodeStart, Limits, Sampling
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Engine, Generation
from turnsmith.rollout.ledger import Ledger, LedgerEntry
from turnsmith.rollout.retry import play_episode
from turnsmith.rollout.spec import RolloutSpec

TURNS = 8
LIMITS = {0.003: 0.95, 0.01: 0.9}
"""The least goodput for a share of episodes that are hit, over that without faults."""


class Crashing(BaseEnvironment):
    """Pays for each turn by its seed. In an episode that is marked, one step fails the first time it is reached."""

    def reset(self, seed: int = 0, task: dict[str, Any] | None = None) -> str:
        self.task = task or {}
        self.chance = random.Random(seed)
        return f"Go {seed}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.step_count += 1
        mark = Path(self.task.get("mark", ""))
        if self.task.get("fault") and self.step_count == self.task["at"] and mark.exists():
            mark.unlink()
            if self.task["fault"] == "raise":
                raise ConnectionError("the service did not answer")
            os.kill(os.getpid(), signal.SIGKILL)
        return "On", len(action) * self.chance.random(), self.step_count == TURNS, {}


class SlowEngine:
    """Says a word of a length that its seed decides, after a fixed time."""

    def __init__(self, chat: Chat, seconds: float) -> None:
        self.words = [[*chat.encode("a" * length), chat.close_id] for length in range(1, 9)]
        self.seconds = seconds

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        await asyncio.sleep(self.seconds)
        ids = random.Random(sampling.seed).choice(self.words)
        return Generation(ids, [-1.0] * len(ids))


@dataclass
class Measured:
    """What a number of steps gave."""

    seconds: float = 0.0
    trained: int = 0
    hit: int = 0
    given_up: Counter[str] = field(default_factory=Counter[str])
    groups: dict[str, list[float]] = field(default_factory=dict[str, list[float]])


async def make_steps(args: argparse.Namespace, share: float, chat: Chat, marks: Path) -> Measured:
    """Steps as synchronous training makes them: all episodes, then the update."""
    settings = EnvironmentConfig(isolation="process", isolation_workers=args.workers)
    spec = EnvironmentSpec.of(Crashing, settings)
    engine: Engine = SlowEngine(chat, args.turn_seconds)
    measured, ledger, chance = Measured(), Ledger(), random.Random(7)
    await play_all([EpisodeStart("warm-up", seed=0)], spec, engine, chat)
    faults = spread(share, args.steps * args.episodes, chance)
    began = time.perf_counter()
    for step in range(args.steps):
        starts: list[EpisodeStart] = []
        for place in range(args.episodes):
            number, group = step * args.episodes + place, str(step * args.episodes // 8 + place // 8)
            task: dict[str, Any] = {}
            if faults.get(number):
                mark = marks / f"{share}-{number}"
                mark.touch()
                task = {"fault": faults[number], "at": chance.randint(1, TURNS), "mark": str(mark)}
            starts.append(EpisodeStart(f"{group}-{place % 8}", group, int(group), task))
        ledger.dispatch(start.episode_id for start in starts)
        played = await play_all(starts, spec, engine, chat)
        ledger.end(map(LedgerEntry.of, played))
        counted = [one.trajectory for one in played if one.trajectory.is_counted]
        balance = ledger.close(step, [one.episode_id for one in counted])
        measured.given_up += balance.given_up
        measured.trained += balance.trained
        for one in counted:
            measured.groups.setdefault(one.group_id, []).append(one.total_reward)
        await asyncio.sleep(args.update_seconds)
    measured.seconds, measured.hit = time.perf_counter() - began, len(faults)
    return measured


async def play_all(starts: list[EpisodeStart], spec: EnvironmentSpec, engine: Engine, chat: Chat) -> list[Any]:
    """All episodes at the same time, by the default failure policy."""
    rollout = RolloutSpec(environment=spec, limits=Limits(turns=TURNS), sampling=Sampling(seed=1))
    return await asyncio.gather(*[play_episode(start, rollout, engine, chat) for start in starts])


def spread(share: float, episodes: int, chance: random.Random) -> dict[int, str]:
    """Which episodes are hit, and how: every second one loses its process."""
    hit = chance.sample(range(episodes), round(share * episodes))
    return {number: ("raise", "exit")[place % 2] for place, number in enumerate(hit)}


def misses(share: float, ratio: float, changed_groups: int) -> list[str]:
    """What a share of faults did that it must not."""
    least = LIMITS.get(share, 0.0)
    missed = [f"{share:.1%}: goodput {ratio:.3f} < {least}"] * (ratio < least)
    return missed + [f"{share:.1%}: other rewards in {changed_groups} groups"] * bool(changed_groups)


def main() -> None:
    """Measure and print."""
    from transformers import AutoTokenizer

    from turnsmith.inference.models import resolve

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.003, 0.01, 0.05])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--episodes", type=int, default=128, help="in a step, in groups of 8")
    parser.add_argument("--turn-seconds", type=float, default=1.0)
    parser.add_argument("--update-seconds", type=float, default=4.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="4 steps, one in a hundred episodes hit")
    results.add_option(parser)
    args = parser.parse_args()
    if args.quick:
        args.shares, args.steps = [0.01], 4
    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))

    async def measure() -> list[str]:
        missed: list[str] = []
        found: dict[str, float] = {}
        with tempfile.TemporaryDirectory() as folder:
            clean = await make_steps(args, 0.0, chat, Path(folder))
            print(f"    0 %: {clean.trained} episodes in {clean.seconds:.1f} s")
            for share in args.shares:
                faulty = await make_steps(args, share, chat, Path(folder))
                ratio = faulty.trained / faulty.seconds * clean.seconds / clean.trained
                same = sum(faulty.groups.get(name) == rewards for name, rewards in clean.groups.items())
                missed += misses(share, ratio, len(clean.groups) - same)
                found |= {f"hit_{share * 1000:g}": ratio, f"changed_{share * 1000:g}": len(clean.groups) - same}
                print(
                    f"{share:>5.1%}: goodput {ratio:.3f} of fault-free; {faulty.trained} of {clean.trained} episodes "
                    f"trained in {faulty.seconds:.1f} s, {faulty.hit} hit, attempts given up: {dict(faulty.given_up)}; "
                    f"rewards of {same} of {len(clean.groups)} groups are the same as without faults",
                    flush=True,
                )
        results.record("goodput", found | {"groups": len(clean.groups)}, is_wanted=args.json)
        return missed

    missed = asyncio.run(measure())
    print("missed: " + "; ".join(missed) if missed else f"holds: goodput at least {LIMITS}, the same rewards")
    raise SystemExit(bool(missed))


if __name__ == "__main__":
    main()
