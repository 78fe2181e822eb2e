"""Agents that bring their own loop: a function or a program that talks to the model by URL.

An episode treats an agent as an environment with a single step, which runs it. So agents run where environments run, in
threads or worker processes, and their failures are handled in the same way.
"""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import shlex
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

from turnsmith.env.program import run_to_its_end
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.tools.step_result import StepResult

AGENT_SECONDS = 14_400.0
"""Timeout of an agent's call; its episode ends by `inference.max_seconds`, which does not count the model's time."""
NO_REWARD = "no_reward"
"""A key of the step's info: the agent returned nothing."""
TO_SCORE = "to_score"
"""A key of the step's info: the observation is the agent's answer; if empty, the model's last message is the answer. A
second step with `{"answer": ...}` scores it."""
_TASK_FILE = "TURNSMITH_TASK_FILE"
_MOST_VARIABLE = 100_000
"""Linux allows 131,071 bytes for each variable, with its name."""
_COLUMN = re.compile(r"\{(\{?)([\w.-]+)\}")


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """The model of one episode, as an agent sees it.

    Example:
        >>> model = ModelEndpoint("http://127.0.0.1:4000/e/secret/v1", "secret")
        >>> model.anthropic_url
        'http://127.0.0.1:4000/e/secret'
        >>> sorted(model.variables())[:2]
        ['ANTHROPIC_API_KEY', 'ANTHROPIC_BASE_URL']
    """

    url: str
    """`base_url` of OpenAI's clients, and of those that speak its API."""
    key: str
    """Any API key that a client asks for."""
    seed: int = 0
    """The seed of the episode's start."""

    @property
    def anthropic_url(self) -> str:
        """`base_url` of Anthropic's client."""
        return self.url.removesuffix("/v1")

    def reward(self, value: float, turn: int | None = None) -> None:
        """Add a reward to a turn of the model: the last one, or the one with this number, counted from 0."""
        body = json.dumps({"value": value, "turn": turn}).encode()
        # With the key, a reward that is sent again counts once.
        headers = {"Content-Type": "application/json", "Idempotency-Key": uuid4().hex}
        request = urllib.request.Request(f"{self.url}/reward", body, headers)
        for is_last in (False, True):
            try:
                with urllib.request.urlopen(request, timeout=60):
                    return
            except urllib.error.HTTPError as error:
                raise ValueError(f"model.reward({value!r}) was refused: {_sentence(error)}") from None
            except OSError:
                if is_last:
                    raise

    def variables(self) -> dict[str, str]:
        """The environment variables by which programs find the model."""
        return {
            "OPENAI_BASE_URL": self.url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": self.anthropic_url,
            "ANTHROPIC_API_KEY": self.key,
            "TURNSMITH_REWARD_URL": f"{self.url}/reward",
        }


class AgentEnvironment:
    """Runs an agent in its one step; the action says where the model is.

    Args:
        answer: The column of the task's right answer, as for `QuestionAnswer`.
        reward: What scores the agent's answer, as for `QuestionAnswer`. Without both the agent gives its own rewards.
    """

    agent: ClassVar[Callable[..., Any] | None] = None
    no_reward = (
        "{name} gave no reward: return a number from it, call model.reward, pass a reward_fn, or have its answer "
        "scored (--answer COLUMN --reward NAME)."
    )
    """The message if there is no reward."""

    def __init__(self, answer: str = "", reward: Any = ()) -> None:
        self.scoring: Any = None
        if answer or reward:
            from turnsmith.env.adapters.question_answer import QuestionAnswer

            self.scoring = QuestionAnswer(answer=answer, reward=reward)

    def check_tasks(self, tasks: Iterable[Mapping[str, Any]]) -> None:
        """Raise a ConfigError if the answer to a task could not be scored."""
        if self.scoring is not None:
            self.scoring.check_tasks(tasks, has_prompt=False)

    def reset(self, seed: int = 0, task: Mapping[str, Any] | None = None) -> str:
        """Keep the task for the agent."""
        self.seed, self.task = seed, dict(task or {})
        if self.scoring is not None:
            self.scoring.take_answer(self.task)
        return ""

    def step(self, action: str) -> Any:
        """Run the agent, or score its answer."""
        fields = json.loads(action)
        if "answer" in fields:
            return self.scoring.step(fields["answer"])
        # Not async, so that an async agent runs in its own thread, where it may block.
        returned = self.run(ModelEndpoint(**fields, seed=self.seed))
        return self._finish(returned) if inspect.isawaitable(returned) else self._result(returned)

    def run(self, model: ModelEndpoint) -> Any:
        """Call the agent."""
        assert self.agent is not None
        return type(self).agent(self.task, model)  # pyright: ignore[reportOptionalCall]

    async def _finish(self, returned: Any) -> StepResult:
        return self._result(await returned)

    def _result(self, returned: Any) -> StepResult:
        is_text = isinstance(returned, str)
        if self.scoring is not None and (is_text or returned is None):
            return StepResult(returned or "", info={TO_SCORE: True})
        if returned is None:
            return StepResult("", terminated=True, info={NO_REWARD: True})
        if self.scoring is not None or is_text:
            text, number = "a text, which --reward scores", "a number, which is the reward"
            wanted, other = (text, "leave --reward out") if self.scoring else (number, "name what scores it (--reward)")
            raise EnvironmentFailure(f"The agent returned {str(returned)[:80]!r}: return {wanted}, or {other}.")
        return StepResult("", reward=returned, terminated=True)


@lru_cache(maxsize=256)
def agent_environment(function: Callable[..., Any]) -> type[AgentEnvironment]:
    """The environment class that runs an agent function, `function(task, model)`, which may be async.

    Example:
        >>> environment = agent_environment(lambda task, model: float(task["answer"] == 4))()
        >>> environment.reset(task={"answer": 4})
        ''
        >>> environment.step('{"url": "http://127.0.0.1:4000/e/secret/v1", "key": "secret"}').reward
        1.0
    """
    name = getattr(function, "__name__", type(function).__name__)
    body = {"agent": staticmethod(function), "__module__": getattr(function, "__module__", __name__)}
    return type(name, (AgentEnvironment,), body)


class CommandAgent(AgentEnvironment):
    """Runs a program as the agent, with the model and the task in its environment variables.

    Of a program whose answer is scored, what it prints is its answer; if it prints nothing, the model's last message.
    Others give their reward to `TURNSMITH_REWARD_URL` in a POST request, as a number or as `{"value": 1.0, "turn": 0}`.
    The task is in `TURNSMITH_TASK`, as JSON, if it has at most 100,000 characters, and always in the file that
    `TURNSMITH_TASK_FILE` names.

    Args:
        command: The program and its arguments, as in a shell. `{column}` stands for that column of the task, as a part
            of one argument whatever is in it; `{{column}}` for the text `{column}`.
        folder: The folder to run it in; empty: that of this process.
        answer: See `AgentEnvironment`.
        reward: See `AgentEnvironment`.

    Example:
        >>> agent = CommandAgent("echo --fast {question}")
        >>> agent.reset(task={"question": "What's 1 + 1?"})
        ''
        >>> agent.arguments
        ['echo', '--fast', "What's 1 + 1?"]
    """

    no_reward = (
        "The program gave no reward: it must POST one to $TURNSMITH_REWARD_URL, or have its answer scored "
        "(--answer COLUMN --reward NAME)."
    )

    def __init__(self, command: str, folder: str = "", answer: str = "", reward: Any = ()) -> None:
        super().__init__(answer, reward)
        self.folder = folder or None
        try:
            self.command = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"The agent's command {command!r} cannot be read: {error}.") from None
        if not self.command:
            raise ConfigError("The agent's command is empty.")
        program = self.command[0]
        # The program's process starts in that folder, and looks the command up from there.
        if shutil.which(Path(folder, program) if os.sep in program else program) is None:
            raise ConfigError(f"There is no program {program!r} that can be run; the agent's command is {command!r}.")

    def reset(self, seed: int = 0, task: Mapping[str, Any] | None = None) -> str:
        """Keep the task, and fill its columns into the command."""
        observation = super().reset(seed, task)
        self.arguments = [_COLUMN.sub(self._fill, argument) for argument in self.command]
        return observation

    def _fill(self, found: re.Match[str]) -> str:
        if found[1]:
            return found[0][1:]
        from turnsmith.env.adapters.question_answer import column_of

        value = column_of(self.task, found[2])
        if value is None:
            has = f"the row has {', '.join(self.task)}" if self.task else "there is no row: pass --data FILE"
            raise EnvironmentFailure(
                f"The program's command asks for the column {found[2]!r}, and {has}. Write {{{found[0]}}} for braces."
            )
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    async def run(self, model: ModelEndpoint) -> str | None:
        """Run the program; kill it and all that it started if the episode ends first."""
        task = json.dumps(self.task)
        with _file_of(task) as path:
            variables = {**os.environ, **model.variables(), "TURNSMITH_SEED": str(self.seed), _TASK_FILE: path}
            if len(task) <= _MOST_VARIABLE:
                variables["TURNSMITH_TASK"] = task
            try:
                ended = await run_to_its_end(
                    self.arguments, variables, self.folder, keeps_output=self.scoring is not None
                )
            except (OSError, ValueError) as error:  # a row with a null character, or too long for an argument
                raise EnvironmentFailure(self._not_started(error)) from error
        if ended.status:
            raise EnvironmentFailure(f"The program ended with exit status {ended.status}: {ended.errors[-500:]}")
        return None if self.scoring is None else ended.output

    def _not_started(self, error: OSError | ValueError) -> str:
        sentence = f"The program could not be started with this task: {error}."
        if not isinstance(error, OSError) or error.errno != errno.E2BIG:
            return sentence
        longest = max(len(argument.encode()) for argument in self.arguments)
        return f"{sentence} Its longest argument has {longest:,} bytes. Let it read the task from ${_TASK_FILE}."


def _sentence(error: urllib.error.HTTPError) -> str:
    """Why the gateway refused a request."""
    try:
        return json.loads(error.read())["error"]["message"]
    except (OSError, ValueError, LookupError, TypeError):
        return str(error)


@contextmanager
def _file_of(text: str) -> Generator[str]:
    """The path of a file with this text, while the context lasts."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="turnsmith-task-", suffix=".json") as file:
        file.write(text)
        file.flush()
        yield file.name
