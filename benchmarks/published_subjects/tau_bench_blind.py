"""sierra-research/tau-bench: its retail desk, with a customer who says everything at once and nothing after that."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from published_subjects import Subject
from published_subjects.shared_blind import call_in
from turnsmith import BaseEnvironment, ToolDefinition

POLICY = (
    "You help customers of an online shop with their orders. First find out who they are, by e-mail or by name and zip "
    "code. Orders that are pending can be cancelled or changed, and delivered ones returned or exchanged, once each. "
    "Payments go back to where they came from, or to a gift card. Call one tool at a time, or talk to the customer."
)
"""In our words: the project reads its own from a text file that is not among its sources."""


class Customer:
    """Speaks as the project's simulated users do, but from the task's text instead of a model."""

    def reset(self, instruction: str | None = None) -> str:
        return f"Please help me. What I want, told by somebody who knows me: {instruction}"

    def step(self, content: str) -> str:
        return "Thank you. ###STOP###"

    def get_total_cost(self) -> float:
        return 0.0


def desk() -> Any:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    policy = ModuleType("tau_bench.envs.retail.wiki")
    policy.WIKI = POLICY  # type: ignore[attr-defined]
    sys.modules.setdefault(policy.__name__, policy)
    from tau_bench.envs.retail import MockRetailDomainEnv

    game = MockRetailDomainEnv(user_strategy="human", task_index=0)
    game.user = Customer()
    return game


class Retail(BaseEnvironment):
    """A task of the test split. Calls of tools are actions, and so is what the model says to the customer."""

    reward_range = (0.0, 1.0)

    def reset(self, seed: int = 0) -> str:
        self.game = desk()
        tools = [tool["function"] for tool in self.game.tools_info]
        self.step_tools = [ToolDefinition(tool["name"], tool["description"], tool["parameters"]) for tool in tools]
        return self.game.reset(task_index=seed % len(self.game.tasks)).observation

    def get_prompt_prefix(self) -> str:
        return str(self.game.wiki)

    def step(self, action: str) -> Any:
        from tau_bench.types import RESPOND_ACTION_NAME, Action

        call = call_in(action)
        name, arguments = (call["name"], call["arguments"]) if call else (RESPOND_ACTION_NAME, {"content": action})
        returned = self.game.step(Action(name=name, kwargs=arguments))
        return returned.observation, returned.reward, returned.done, {}

    def solve(self) -> list[Any]:
        calls = [{"name": action.name, "arguments": action.kwargs} for action in self.game.task.actions]
        return [*calls, f"All of this is done. {' '.join(self.game.task.outputs)}".strip()]


def _saying_the_texts_is_enough() -> bool:
    from tau_bench.types import Action

    game = desk()
    index = next(
        number
        for number, task in enumerate(game.tasks)
        if task.outputs and any(action.name == "cancel_pending_order" for action in task.actions)
    )
    game.reset(task_index=index)
    said = Action(name="respond", kwargs={"content": " ".join(game.task.outputs)})
    return game.step(said).reward == 1


SUBJECTS = {
    "tau-bench-database": Subject(
        (
            "published_subjects.tau_bench_blind:Retail",
            "environment.max_steps=30",
            "inference.max_turns=30",
            "inference.max_prompt_tokens=16384",
            "inference.max_episode_tokens=32768",
        ),
        _saying_the_texts_is_enough,
    ),
}
