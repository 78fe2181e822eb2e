"""Every reward of TRL by name, with the real package: the number that TRL computes, or a sentence before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.packages import install
from turnsmith import QuestionAnswer
from turnsmith.errors import ConfigError

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
MATH = ("math-verify==0.9.0", "latex2sympy2-extended==1.11.0", "antlr4-python3-runtime==4.13.2")
SAID = (r"<think>hm</think> \boxed{\frac{1}{2}}", r"<think>hm</think> \boxed{0.3}", r"\boxed{0.5}", "a half", "")
ROW = {"prompt": [{"role": "user", "content": "1 / 2?"}], "solution": r"\frac{1}{2}"}

OF_TEXTS = ("accuracy_reward", "reasoning_accuracy_reward", "think_format_reward")
OF_TOKENS: dict[str, tuple[int, ...]] = {
    "get_cosine_scaled_reward": (100,),
    "get_repetition_penalty_reward": (),
    "get_soft_overlong_punishment": (100, 20),
}


@pytest.fixture(scope="module", autouse=True)
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    install(tmp_path_factory.mktemp("packages"), "trl==1.16.0", *MATH)


def rewards(reward: Any, row: dict[str, Any] = ROW) -> list[float]:
    environment = QuestionAnswer(reward=reward)
    environment.check_tasks([row])
    environment.reset(row)
    return [environment.step(said).reward for said in SAID]


@pytest.mark.parametrize("name", OF_TEXTS)
def test_it_gives_what_trl_computes(name: str) -> None:
    from trl import rewards as theirs  # pyright: ignore[reportMissingImports]

    completions = [[{"role": "assistant", "content": said}] for said in SAID]
    computed = getattr(theirs, name)(completions=completions, solution=[ROW["solution"]] * len(SAID))
    print(name, computed)
    assert rewards(f"trl.rewards:{name}") == computed
    assert len(set(computed)) == 2


def test_an_answer_that_trl_skips_is_left_to_the_other_rewards() -> None:
    both = ["trl.rewards:accuracy_reward", "trl.rewards:think_format_reward"]
    assert rewards(both, {**ROW, "solution": ""}) == [1.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(("name", "settings"), OF_TOKENS.items())
def test_those_of_tokens_are_refused(name: str, settings: tuple[int, ...]) -> None:
    from trl import rewards as theirs  # pyright: ignore[reportMissingImports]

    with pytest.raises(ConfigError, match=r"needs `completion_ids`, which a reward of rows does not have: write"):
        QuestionAnswer(reward=getattr(theirs, name)(*settings))


def test_all_of_them_are_here() -> None:
    from trl import rewards as theirs  # pyright: ignore[reportMissingImports]

    assert {name for names in theirs._import_structure.values() for name in names} == {*OF_TEXTS, *OF_TOKENS}
