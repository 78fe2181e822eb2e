"""ServiceNow/BrowserGym: what it makes of a MiniWoB task's reward, with a stand-in for the browser's page."""

from __future__ import annotations

import random
import re
from typing import Any

from published_subjects import Subject
from turnsmith import BaseEnvironment

_URL = "http://localhost/miniwob/"


class Page:
    """Three cards face down, of which one at a time is turned up, and a button; it pays as the page does."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.cards = random.Random(seed).sample(range(25), 3)
        self.shown: int | None = None
        self.raw, self.done = 0.0, False

    def click(self, element: str) -> None:
        """Turn up a card, or press the button."""
        if element != "submit":
            self.shown = int(element)
            return
        self.done = True
        is_greatest = self.shown is not None and self.cards[self.shown] == max(self.cards)
        self.raw = 1.0 if is_greatest else -1.0 if self.shown is None else 0.1

    def evaluate(self, script: str) -> list[Any]:
        """The variables that the project asks the page for."""
        return [self.raw, self.raw, None, self.done, 1, True]

    def text(self) -> str:
        """What is seen."""
        cards = [str(card) if index == self.shown else "face down" for index, card in enumerate(self.cards)]
        shown = [f"[{index}] card, {card}" for index, card in enumerate(cards)]
        return "\n".join([*shown, "[submit] button"])


class FindGreatest(BaseEnvironment):
    """Find the card with the greatest number."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        from browsergym.miniwob.all import FindGreatestTask

        self.task = FindGreatestTask(seed=seed, base_url=_URL)
        self.page = self.task.page = Page(self.task.url, seed)
        return (
            "Find and pick the card with the greatest number, then press submit. Answer with one action, such as "
            f"click('0').\n{self.page.text()}"
        )

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        clicked = re.search(r"click\(['\"]?(0|1|2|submit)['\"]?\)", action)
        if clicked:
            self.page.click(clicked[1])
        reward, done, message, info = self.task.validate(self.page, [])
        return message or self.page.text(), reward, done, info

    def solve(self) -> list[str]:
        return [f"click('{self.page.cards.index(max(self.page.cards))}')", "click('submit')"]


def _a_wrong_card_is_a_success() -> bool:
    game = FindGreatest()
    game.reset(seed=1)
    wrong = game.page.cards.index(min(game.page.cards))
    game.step(f"click('{wrong}')")
    return game.step("click('submit')")[1] == 1


SUBJECTS = {
    "browsergym-miniwob-positive": Subject(("published_subjects.browsergym:FindGreatest",), _a_wrong_card_is_a_success),
}
