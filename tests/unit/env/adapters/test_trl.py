"""Classes written for TRL's `environment_factory` are played as they are: tools, rewards, rows, other processes."""

from __future__ import annotations

from typing import Any

import pytest

from turnsmith import ConfigError, EnvironmentConfig, EnvironmentSpec, reward_of
from turnsmith.cli.main import main

NAME = f"{__name__}:Shop"
SELL = '<tool_call>{{"name": "sell", "arguments": {{"count": {}}}}}</tool_call>'


class Shop:
    """As a user of TRL has it: nothing of turnsmith."""

    def reset(self, **kwargs: Any) -> str:
        self.stock, self.sold = int(kwargs.get("stock", 3)), 0
        return f" There are {self.stock} pens."

    def sell(self, count: int) -> str:
        """Sell pens.

        Args:
            count: How many.
        """
        if count > self.stock:
            raise ValueError("not enough pens")
        self.stock, self.sold = self.stock - count, self.sold + count
        return f"{self.stock} left"

    def _audit(self) -> None:
        """Not offered: its name begins with an underscore."""

    def get_reward(self) -> float:
        return float(self.stock == 0)


class Judged(Shop):
    async def get_reward(self) -> float:  # type: ignore[override]
        return 0.25


class Rewardless:
    def reset(self) -> None:
        pass

    def look(self) -> str:
        """Look around."""
        return "nothing"


def half_for_each(completions: list[Any], environments: list[Shop], **kwargs: Any) -> list[float]:
    return [0.5 * environment.sold for environment in environments]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_tools_are_called_and_the_objects_own_reward_counts(isolation: str) -> None:
    settings = {"isolation": isolation}
    assert reward_of(NAME, [SELL.format(3), "Done."], settings=settings) == 1.0
    assert reward_of(NAME, [SELL.format(2), "Done."], settings=settings) == 0.0
    assert reward_of(NAME, ["Done."], task={"prompt": "Sell!", "stock": 0}, settings=settings) == 1.0


def test_an_exception_of_a_tool_is_told_to_the_model_as_in_trl() -> None:
    assert reward_of(NAME, [SELL.format(9), SELL.format(3), "Done."]) == 1.0


def test_a_reward_function_gets_the_environment_and_adds_to_its_own_reward() -> None:
    settings = {"reward": [f"{__name__}:half_for_each"]}
    assert reward_of(NAME, [SELL.format(3), "Done."], settings=settings) == 2.5


def test_an_async_reward_is_awaited() -> None:
    assert reward_of(f"{__name__}:Judged", ["Done."]) == 0.25
    settings = {"reward": [f"{__name__}:half_for_each"]}
    assert reward_of(f"{__name__}:Judged", [SELL.format(1), "Done."], settings=settings) == 0.75


def test_without_any_reward_it_earns_nothing() -> None:
    assert reward_of(f"{__name__}:Rewardless", ["Done."]) == 0.0


def test_the_opening_follows_the_rows_last_message() -> None:
    made = EnvironmentSpec.of(Shop, EnvironmentConfig()).build()
    prompt = [{"role": "system", "content": "You sell."}, {"role": "user", "content": "Hello."}]
    assert made.reset(task={"prompt": prompt, "stock": 5}) == "Hello. There are 5 pens."
    assert made.get_prompt_prefix() == "You sell."
    assert [tool.definition.name for tool in made._tools_of_server] == ["sell"]


def test_a_reward_function_may_be_named_like_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", f"{__name__}:half_for_each"])
    assert "is a reward function: also pass the rows that it scores, --data FILE" in capsys.readouterr().err


def test_a_class_with_nothing_to_play_is_still_refused() -> None:
    class Empty:
        def reset(self) -> None:
            pass

    with pytest.raises(ConfigError, match="is not an environment: it has no method step"):
        EnvironmentSpec.of(Empty)
