"""Answers that are written to hold up a reward, while other episodes are played: what do these notice?

For each reward that ships with turnsmith, answers are scored where `QuestionAnswer` scores them, 16 at a time:
hostile ones (long, nested, repeated, numbers, Unicode, catastrophic for a pattern), drawn from a seed, and harmless
ones, in turn. Beside them episodes with right answers are played all the time, and a timer measures how late the event
loop is. Exits 1 if any of these episodes ends otherwise than completed with a reward of 1, or if the 99.9th percentile
of the delay under hostile answers is more than `MOST` times that under harmless ones.

`regex` is a pattern that is catastrophic for `re` and takes linear time with re2. `math`, and `look_ahead`, a
catastrophic pattern that re2 does not take, have a hundredth of the answers.

Run, with google-re2 and math-verify installed: python -m benchmarks.hostile_answers [REWARD ...] [--count 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from benchmarks import results
from tests.unit.env.adapters.hostile_answers import drawn, worst
from transformers import AutoTokenizer

from turnsmith import Chat, EnvironmentConfig, EnvironmentSpec, EpisodeStart, QuestionAnswer, ScriptedEngine
from turnsmith.concurrency.environment_threads import shared_environment_threads
from turnsmith.inference.engine import Sampling
from turnsmith.inference.models import resolve
from turnsmith.rollout import run_episode
from turnsmith.rollout.spec import Limits

COUNT, ROUNDS, TOGETHER, PLAYED_TOGETHER = 100_000, 4, 16, 4
MOST = 3.0
_CATASTROPHE = r"(\w+\s?)+\."
_SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "number", "minimum": 5}}}
REWARDS: dict[str, tuple[str, Any, str, int]] = {
    "exact": ("exact", "Paris", "Paris", 1),
    "number": ("number", "42", "It is 42.", 1),
    "choice": ("choice", "B", "Answer: (b)", 1),
    "regex": ("regex", _CATASTROPHE, "It is so.", 1),
    "json_schema": ("json_schema", _SCHEMA, '{"a": 5.5}', 1),
    "look_ahead": ("regex", rf"(?!x){_CATASTROPHE}", "It is so.", 100),
    "math": ("math", "1/2", r"\boxed{\frac{1}{2}}", 100),
}
"""The reward, the answer column, a right answer, and by how much fewer answers are scored."""


def misses(name: str, figures: dict[str, float]) -> list[str]:
    """What misses its threshold."""
    missed = []
    if figures["changed"]:
        missed.append(f"{name}: {figures['changed']:.0f} of {figures['played']:.0f} innocent episodes changed")
    if figures["delay_ratio"] > MOST:
        missed.append(f"{name}: the event loop is {figures['delay_ratio']:.1f} times as late, more than {MOST:g}")
    return missed


async def measure_delays(delays: list[float], is_over: Callable[[], bool]) -> None:
    """How late the event loop is, every two milliseconds."""
    while not is_over():
        due = time.perf_counter() + 0.002
        await asyncio.sleep(0.002)
        delays.append(time.perf_counter() - due)


async def play_innocents(
    spec: EnvironmentSpec, row: Any, right: str, chat: Chat, is_over: Callable[[], bool]
) -> list[bool]:
    """Play episodes with the right answer, one after another: whether each was paid."""
    paid: list[bool] = []
    while not is_over():
        trajectory = await run_episode(
            EpisodeStart(f"innocent-{len(paid)}", task=row),
            environment=spec,
            engine=ScriptedEngine([right], chat),
            chat=chat,
            limits=Limits(seconds=120),
            sampling=Sampling(),
        )
        paid.append(str(trajectory.outcome) == "completed" and trajectory.total_reward == 1.0)
    return paid


async def score_all(reward: str, row: Any, answers: Iterator[str]) -> None:
    """Score answers in environments' threads, some at a time."""

    async def score_one_after_another() -> None:
        for answer in answers:
            environment, thread = QuestionAnswer(reward=reward), shared_environment_threads().assign()
            try:
                environment.reset(task=row)
                await thread.run(environment.step, answer, limit=120)
            finally:
                thread.leave()

    await asyncio.gather(*(score_one_after_another() for _ in range(TOGETHER)))


async def phase(name: str, chat: Chat, answers: Iterator[str]) -> tuple[float, list[float], list[bool]]:
    """Score answers and play beside it; returns seconds, delays of the loop, and whether each innocent was paid."""
    reward, answer, right, _ = REWARDS[name]
    row, over = {"question": "?", "answer": answer}, asyncio.Event()
    spec = EnvironmentSpec.of(QuestionAnswer, EnvironmentConfig(reward=reward)).isolated()
    delays: list[float] = []
    beside = [asyncio.create_task(measure_delays(delays, over.is_set))]
    players = [asyncio.create_task(play_innocents(spec, row, right, chat, over.is_set)) for _ in range(PLAYED_TOGETHER)]
    began = time.perf_counter()
    await score_all(reward, row, answers)
    seconds = time.perf_counter() - began
    over.set()
    paid = [one for each in await asyncio.gather(*players) for one in each]
    await asyncio.gather(*beside)
    return seconds, delays, paid


def percentile(delays: list[float], share: float) -> float:
    """The delay that this share of all does not exceed."""
    return sorted(delays)[min(len(delays) - 1, int(share * len(delays)))]


def harmless(answer: str, seconds: float) -> Iterator[str]:
    """The same answer for so long."""
    due = time.perf_counter() + seconds
    while time.perf_counter() < due:
        yield answer


async def measure(name: str, count: int, seed: int) -> dict[str, float]:
    """Score hostile answers, and harmless ones for as long or a minute, in rounds: others use the machine, too."""
    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    right, numbers, each = REWARDS[name][2], random.Random(seed), max(1, count // REWARDS[name][3] // ROUNDS)
    spent, late, late_harmless, paid = 0.0, list[float](), list[float](), list[bool]()
    await phase(name, chat, iter([right] * TOGETHER))  # processes start
    for _ in range(ROUNDS):
        seconds, delays, innocents = await phase(name, chat, (drawn(numbers) for _ in range(each)))
        spent, late, paid = spent + seconds, late + delays, paid + innocents
        _, delays, innocents = await phase(name, chat, harmless(right, min(seconds, 60 / ROUNDS)))
        late_harmless, paid = late_harmless + delays, paid + innocents
    return {
        "answers": ROUNDS * each,
        "us_each": 1e6 * spent / (ROUNDS * each),
        "played": len(paid),
        "changed": paid.count(False),
        "p999_ms_harmless": 1e3 * percentile(late_harmless, 0.999),
        "p999_ms_hostile": 1e3 * percentile(late, 0.999),
        "delay_ratio": percentile(late, 0.999) / percentile(late_harmless, 0.999),
    }


def slowest(name: str) -> dict[str, float]:
    """CPU seconds of the worst answer of 10,000 and of 100,000 characters, for a reward that needs no process."""
    seconds = {}
    for length in (10_000, 100_000):
        for answer in worst(length):
            environment = QuestionAnswer(reward=REWARDS[name][0])
            environment.reset(task={"question": "?", "answer": REWARDS[name][1]})
            began = time.thread_time()
            environment.step(answer)
            seconds[length] = max(seconds.get(length, 0.0), time.thread_time() - began)
    return {f"worst_{length}_ms": 1e3 * took for length, took in seconds.items()}


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    results.add_names(parser, REWARDS)
    parser.add_argument("--count", type=int, default=COUNT, help="hostile answers for each reward")
    parser.add_argument("--seed", type=int, default=1)
    results.add_option(parser)
    options = parser.parse_args()
    if not (find_spec("re2") and find_spec("math_verify")):
        parser.error("pip install -e '.[re2,math]' first")
    logging.disable()
    missed: list[str] = []
    recorded: dict[str, float] = {}
    for name in options.names or REWARDS:
        figures = asyncio.run(measure(name, options.count, options.seed))
        if name in ("exact", "number", "choice"):
            figures |= slowest(name)
        print(name + ": " + ", ".join(f"{what} {value:.4g}" for what, value in figures.items()), flush=True)
        recorded |= {f"{name}_{what}": value for what, value in figures.items()}
        missed += misses(name, figures)
    results.record("hostile_answers", recorded, is_wanted=options.json)
    print("missed: " + "; ".join(missed) if missed else "ok")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
