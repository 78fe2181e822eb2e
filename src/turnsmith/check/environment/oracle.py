"""The environment's own solution of an episode, as the texts that a model would write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from turnsmith.check.environment.subject import Policy, Subject
from turnsmith.check.environment.template_facts import write_call
from turnsmith.env.asking import NO_EPISODE
from turnsmith.env.host import open_host
from turnsmith.errors import EnvironmentFailure
from turnsmith.inference.chat import Chat
from turnsmith.inference.chat.byte_chat import ByteChat
from turnsmith.rollout.attempt import EpisodeStart, in_mix
from turnsmith.rollout.turn import EpisodeTools, apply_action
from turnsmith.tools.definition import ToolCall
from turnsmith.tools.parsing import ActionParser, FunctionCallingParser


@dataclass(frozen=True, slots=True)
class Task:
    """A start of an episode and its solution."""

    start: EpisodeStart
    number: int
    """The number of the start in the audit."""
    solution: tuple[str, ...] | None = None
    """The actions that solve it; None if the environment has no `solve`."""
    is_text: bool = True
    """Whether all actions are texts, without a tool call."""
    others: tuple[str, ...] = ()
    """Actions that solve other starts and are not part of this solution."""
    opening: str = ""
    """What the model is shown first: system prompt and first observation."""


def oracle(task: Task) -> Policy | None:
    """The policy that plays the environment's own solution."""
    return None if not task.solution else in_order(task.solution)


def in_order(actions: Sequence[str]) -> Policy:
    """These actions, one in each turn, and then the last of them again and again."""
    return lambda turn, prompt: actions[min(turn, len(actions) - 1)] if actions else ""


async def find_tasks(subject: Subject, count: int | None = None) -> list[Task]:
    """The first starts of training with their solutions."""
    starts = subject.starts(count)
    opened = await subject.openings(starts)
    openings = ["\n\n".join(str(message["content"]) for message in episode.messages) for episode in opened]
    found = await asyncio.gather(*(_solve(subject, start) for start in starts))
    known = list(dict.fromkeys(action for actions in found for action in (actions or ([], True))[0]))
    tasks = list[Task]()
    for number, (start, actions, opening) in enumerate(zip(starts, found, openings, strict=True)):
        texts, is_text = actions or (None, True)
        others = tuple(action for action in known if texts is None or action not in texts)
        tasks.append(Task(start, number, None if texts is None else tuple(texts), is_text, others, opening))
    return tasks


async def _solve(subject: Subject, start: EpisodeStart) -> tuple[list[str], bool] | None:
    """Ask a second copy of the environment for its solution; it is stepped if `solve` returns one action at a time."""
    start, spec, _ = in_mix(start, subject.rollout())
    if spec.environment.is_agent:
        return None
    parser = subject.parser or FunctionCallingParser()
    host = open_host(spec.environment)
    texts, is_text = list[str](), True
    try:
        await host.reset(start.seed, start.task)
        tools = EpisodeTools(host, spec.tools, parser) or None
        for _ in range(spec.limits.turns):
            given = await host.solve()
            if given is None:
                return (texts, is_text) if texts else None
            actions: Sequence[Any] = given if isinstance(given, (list, tuple)) else [given]
            is_text = is_text and not any(isinstance(action, Mapping) for action in actions)
            texts += [_write(action, parser, subject.chat) for action in actions]
            try:
                if actions is given or (await apply_action(texts[-1], host, tools)).done:
                    break
            except EnvironmentFailure:  # told when the solution is played
                break
        return texts, is_text
    except EnvironmentFailure as error:
        if NO_EPISODE in str(error):  # it asks another player, and only an episode has them
            return None
        raise
    finally:
        await host.close()


def _write(action: Any, parser: ActionParser, chat: Chat | ByteChat) -> str:
    """An action as the model would write it: a tool call in the format that the parser reads."""
    if not isinstance(action, Mapping):
        return str(action)
    call = ToolCall(str(action["name"]), dict(action.get("arguments") or {}))
    if parser.is_native and isinstance(chat, Chat):
        native = write_call(chat, {"name": call.name, "arguments": call.arguments})
        if native is not None:
            return native.partition(chat.show([chat.close_id]))[0]
    return parser.write(call)
