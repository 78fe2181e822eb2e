"""Several environments as one: which of them a start is for, what is refused, and in which words."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from turnsmith import BaseEnvironment, ConfigStore, EnvironmentConfig, EnvironmentMix, EnvironmentSpec, MixMember
from turnsmith.env.examples import GuessNumber, SimpleGameEnvironment
from turnsmith.errors import ConfigError
from turnsmith.trainer import RayPPOTrainer

GUESS = "turnsmith.env.examples:GuessNumber"


class Sized(BaseEnvironment):
    """Cannot be built without a size."""

    def __init__(self, size: int) -> None:
        self.size = size

    def reset(self) -> str:
        return f"A board of {self.size}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "", 0.0, True, {}


class Pair(Sized):
    """Needs two settings."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(left + right)


def test_seeds_are_spread_by_weight_whatever_their_remainders() -> None:
    mix = EnvironmentMix({"a": (GuessNumber, 3), "b": (GuessNumber, 1)})
    for step in (1, 2, 3, 4, 8):  # seeds of which only each second, third ... is used
        counts = Counter(mix.member_for("", seed)[0] for seed in range(10**6, 10**6 + 400 * step, step))
        assert 280 <= counts["a"] <= 320
        assert counts["a"] + counts["b"] == 400
    assert mix.member_for("", 10**30)[0] == mix.member_for("", 10**30)[0]
    assert mix.member_for("b", 0)[0] == "b"


def test_each_environment_has_its_own_settings_or_those_of_the_run() -> None:
    own = EnvironmentSpec(Sized, EnvironmentConfig(size=9))
    mix = EnvironmentSpec.of(EnvironmentMix({"own": own, "runs": Sized}), EnvironmentConfig(size=3))
    assert [spec.build().size for spec in mix.each()] == [9, 3]


def test_a_list_is_named_after_its_environments() -> None:
    mix = EnvironmentMix([GuessNumber, ("gymnasium:FrozenLake-v1", 2), partial(Sized, size=2)])
    assert list(mix.members) == ["GuessNumber", "FrozenLake-v1", "Sized"]


def test_isolation_is_decided_for_each() -> None:
    given = {"ours": GUESS, "theirs": MixMember(partial(Sized, size=1), dataset=[{"a": 1}])}
    mix = EnvironmentSpec.of(EnvironmentMix(given)).isolated()
    assert [spec.mode for spec in mix.each()] == ["thread", "process"]
    assert isinstance(mix, EnvironmentMix)
    assert mix.members["theirs"].dataset is None, "workers do not need the tasks of all groups"


def test_a_mix_in_a_module_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "my_mix.py"
    file.write_text(
        "from turnsmith import EnvironmentMix\n"
        "from turnsmith.env.examples import GuessNumber\n"
        'MIX = EnvironmentMix({"one": (GuessNumber, 2)}, curriculum=True)\n'
    )
    mix = EnvironmentSpec.of(f"{file}:MIX", EnvironmentConfig(highest=4))
    assert isinstance(mix, EnvironmentMix)
    assert (mix.weights, mix.curriculum, mix.target) == ({"one": 2.0}, True, f"{file}:MIX")
    assert mix.each()[0].build().config.highest == 4


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: EnvironmentMix({}), "The mix has no environment"),
        (
            lambda: EnvironmentMix({"a": (GuessNumber, 0)}),
            "GuessNumber has the weight 0 in the mix; it must be a number",
        ),
        (lambda: EnvironmentMix({"a": (GuessNumber, -1)}), "the weight -1 in the mix"),
        (lambda: EnvironmentMix({"a": (GuessNumber, float("nan"))}), "the weight nan in the mix"),
        (lambda: EnvironmentMix({"a": (GuessNumber, "3")}), "the weight 3 in the mix; it must be a number above 0"),
        (lambda: EnvironmentMix({"a": (GuessNumber, 1, 2)}), "pass (environment, weight), or a MixMember"),
        (lambda: EnvironmentMix({"": GuessNumber}), "empty name"),
        (lambda: EnvironmentMix([GuessNumber, (GuessNumber, 2)]), "Two environments of the mix are called GuessNumber"),
        (lambda: MixMember(GuessNumber, max_turns=0), "max_turns=0 in the mix; it must be more than 0, or None"),
        (lambda: MixMember(GuessNumber, max_seconds=-1), "max_seconds=-1 in the mix"),
        (lambda: MixMember(GuessNumber, reward_range=(1, 1)), "the lowest and the highest reward of an episode"),
        (lambda: MixMember(GuessNumber, reward_range=(0, float("inf"))), "reward_range=(0, inf)"),
        (
            lambda: EnvironmentSpec.of(EnvironmentMix({"p": Pair})),
            "p, in the mix: Pair cannot be built: its __init__ needs left, right",
        ),
        (lambda: EnvironmentSpec.of(EnvironmentMix({"s": int})), "s, in the mix: int is not an environment"),
        (lambda: EnvironmentSpec.of(EnvironmentMix({"m": EnvironmentMix([GuessNumber])})), "m is a mix itself"),
        (lambda: EnvironmentMix({"a": GuessNumber}).build(), "A mix is not one environment: build one of a"),
        (lambda: EnvironmentMix({"a": GuessNumber}).member_for("b", 0), "The mix has no environment b, only a"),
        (
            lambda: RayPPOTrainer(ConfigStore(), EnvironmentMix([GuessNumber]), dataset=[{"a": 1}]),
            "A mix has no dataset of its own",
        ),
        (
            lambda: RayPPOTrainer(ConfigStore(), EnvironmentMix([GuessNumber]), validation=[{"a": 1}]),
            "validation has tasks, but the run has a mix",
        ),
    ],
)
def test_what_cannot_work_is_said_in_words(make: Any, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert sentence in str(raised.value)


def test_an_agent_in_a_mix_makes_it_one_with_agents() -> None:
    async def solve(task: Any, model: Any) -> float:
        return 1.0

    assert EnvironmentSpec.of(EnvironmentMix({"agent": solve, "game": SimpleGameEnvironment})).is_agent
    assert not EnvironmentSpec.of(EnvironmentMix({"game": SimpleGameEnvironment})).is_agent
