"""Tasksets of verifiers 0.4 and later: `verifiers:reverse-text`. Each task is a question, answered in one turn."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.adapters.question_answer import ANSWERS
from turnsmith.env.base import BaseEnvironment
from turnsmith.errors import ConfigError, MissingDependency

_MOST_TASKS = 10_000


class VerifiersEnvironment(BaseEnvironment):
    """One task of a taskset: its prompt, the model's answer, and the sum of the task's weighted rewards.

    Settings of your own (`environment.split=train`) are those of the taskset. The seed chooses the task. What needs
    more than one answer is refused in a sentence: tool servers, an environment of its own, a container, a runtime.

    Args:
        name: The taskset's name, as verifiers has it.
        config: The settings.
    """

    def __init__(self, name: str, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        self.name = name
        self.tasks = _tasks(name, json.dumps(self.config.own_settings(), sort_keys=True))

    def reset(self, seed: int = 0) -> str | list[dict[str, str]]:
        """The prompt of the seed's task."""
        self.task = self.tasks[seed % len(self.tasks)]
        prompt = self.task.data.prompt
        if isinstance(prompt, str):
            return prompt
        if prompt is None:
            raise ConfigError(
                f"verifiers:{self.name} has tasks without a prompt, whose user begins: it can't be played."
            )
        return [{"role": one.role, "content": str(one.content)} for one in prompt]

    def get_prompt_prefix(self) -> str:
        """The task's system prompt."""
        return self.task.data.system_prompt or ""

    async def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        """Score the answer."""
        trace = _trace(self.task, action)
        await self.task.score(trace, None)
        return "", float(trace.reward), True, {name: value.value for name, value in trace.rewards.items() if value}

    def solve(self) -> str | None:
        """The task's answer, if it has a field of a usual name."""
        answer = next((value for name in ANSWERS if (value := getattr(self.task.data, name, None)) is not None), None)
        return None if answer is None else str(answer)


@lru_cache(maxsize=4)
def _tasks(name: str, settings: str) -> list[Any]:
    """The tasks of a taskset with these settings, as JSON, loaded once in a process."""
    try:
        loaders = import_module("verifiers.v1.utils.loaders")
    except ImportError as error:
        raise MissingDependency(f"Tasksets need verifiers 0.4 or later ({error}): pip install verifiers.") from error
    try:
        kind, environment = loaders.taskset_class(name), loaders.environment_class(name)
        taskset = kind(loaders.taskset_config_type(name)(id=name, **json.loads(settings)))
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        errors: Any = getattr(error, "errors", None)  # pydantic's
        told = "; ".join(f"{one['loc'][0]}: {one['msg']}" for one in errors()) if errors is not None else error
        raise ConfigError(
            f"verifiers:{name} cannot be made with these settings, environment.NAME=...: {told}"
        ) from error
    tasks = list(islice(taskset, _MOST_TASKS))
    if not tasks:
        raise ConfigError(f"verifiers:{name} has no tasks.")
    if reason := _why_not(tasks[0], environment.__name__ != "SingleAgentEnv"):
        raise ConfigError(f"verifiers:{name} can't be played as one answer: it {reason}. Run it as an agent (--agent).")
    return tasks


def _why_not(task: Any, has_environment: bool) -> str:
    if has_environment:
        return "has an environment of its own"
    if task.NEEDS_CONTAINER:
        return "needs a container"
    if type(task).toolsets(task.config):
        return "has tool servers"
    needs = [one.__name__ for one in task.hooks("reward") if "runtime" in inspect.signature(one).parameters]
    return f"scores in a runtime ({', '.join(needs)})" if needs else ""


def _trace(task: Any, answer: str) -> Any:
    """The record of one answer, as verifiers' own harness would leave it."""
    vf = import_module("verifiers.v1")
    trace = vf.Trace(
        task={"type": type(task).__name__, "data": task.data, "key": task.key, "hash": task.hash},
        agent=vf.AgentInfo(config=vf.AgentConfig()),
    )
    prompt = task.data.prompt
    messages = [vf.SystemMessage(content=task.data.system_prompt)] if task.data.system_prompt else []
    messages += [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt)
    for place, message in enumerate([*messages, vf.AssistantMessage(content=answer)]):
        is_answer = place == len(messages)
        trace.nodes.append(vf.MessageNode(parent=place - 1 if place else None, message=message, sampled=is_answer))
    trace.is_completed = trace.ok = True
    return trace
