"""Every planted fault, the check that is for it, and the issue that it is modelled on, if there is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.unit.check.environment.zoo import leaks, learning, lengths, openings, state, steps, swallowed, timing

ROWS = [{"text": "Say yes."} for _ in range(300)]


def wavering(turn: int, prompt: str) -> str:
    """A model that answers now this, now that."""
    return "a" * (len(prompt) % 3 + 1)


def react(turn: int, prompt: str) -> str:
    """A model that writes its calls as in ReAct."""
    return "Thought: I search.\nAction: search\nAction Input: rain"


@dataclass(frozen=True)
class Case:
    """One planted fault."""

    environment: type
    check: str
    issue: str
    what: str
    status: str = "failed"
    settings: tuple[str, ...] = ()
    model: Callable[[int, str], str] | None = None
    subject: dict[str, Any] = field(default_factory=dict)
    has_tokenizer: bool = False
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For the id of the test."""
        return f"{self.environment.__name__}-{self.check.replace(' ', '_')}"


OPENING, TEXT, SAME = "same start, same opening", "any text is answered", "same actions, same episode"
OTHERS, MANY, TIMES = "episodes do not disturb others", "many at once, nothing left", "times against limits"
TOKENS, FAULTS, MODEL = "tokens against limits", "faults are not rewards", "the model has something to learn"
TOOLS, HELD_OUT, STALE = "tools are called", "held-out starts are held out", "episode length and staleness"
SANDBOX, DISK, PLACES = "code tools are closed", "disk for the whole run", "trackers and folders"
FEW = ("training.batch_size=16",)
QUICK = ("environment.call_seconds=0.1",)
ASYNC = ("training.schedule=colocate_async",)
HUGE = ("training.steps_per_epoch=1000000000", "checkpoint.keep_last_n=0")
LONG = [*ROWS, {"text": "Say yes. " * 900}]

CASES = (
    Case(openings.OwnGenerator, OPENING, "—", "start drawn from a generator that is not seeded"),
    Case(openings.Clock, OPENING, "—", "the time in the first observation"),
    Case(openings.FailingReset, OPENING, "NeMo Gym PR#2552", "resets that fail for some starts"),
    Case(steps.FirstWord, TEXT, "—", "an empty answer raises IndexError"),
    Case(steps.Number, TEXT, "—", "an answer that is no number raises ValueError"),
    Case(steps.NotANumber, TEXT, "—", "a reward that is not a number"),
    Case(steps.Dice, SAME, "OpenEnv#778", "dice that the seed does not decide", "warning"),
    Case(steps.NewIds, SAME, "OpenEnv#778", "a new id in every observation", "warning"),
    Case(state.ClassState, OTHERS, "trl PR#6001", "state in the class"),
    Case(state.Variable, OTHERS, "—", "state in an environment variable"),
    Case(state.FixedFile, OTHERS, "trl PR#6001", "state in a file of one name"),
    Case(leaks.FewSessions, MANY, "NeMo Gym PR#2552", "a simulator with four sessions", settings=FEW),
    Case(leaks.OpenFiles, MANY, "OpenEnv PR#1000", "a file left open by each episode", settings=FEW),
    Case(leaks.Threads, MANY, "OpenEnv PR#1000", "a thread left by each episode", settings=FEW),
    Case(leaks.Processes, MANY, "OpenEnv PR#1000", "a process left by each episode", settings=FEW),
    Case(timing.NearLimit, TIMES, "verl#1696", "steps that take most of their limit", settings=QUICK),
    Case(timing.OverLimit, TIMES, "verl#1696", "steps that time out", settings=QUICK),
    Case(timing.BlockingStep, TIMES, "prime-rl#1713", "a sleep in an async method", "warning"),
    Case(
        lengths.LongRow,
        TOKENS,
        "Megatron-LM#117",
        "a row of the dataset that does not fit",
        subject={"tasks": LONG},
        has_tokenizer=True,
    ),
    Case(
        lengths.GrowingHistory,
        TOKENS,
        "verl#4918",
        "observations that repeat the history",
        "warning",
        has_tokenizer=True,
    ),
    Case(swallowed.SwallowedClient, FAULTS, "NeMo-RL#431", "a failed server becomes reward 0"),
    Case(swallowed.SwallowedMethod, FAULTS, "UniRL PR#214", "a bug in the scorer becomes reward 0"),
    Case(swallowed.SwallowedTool, FAULTS, "UniRL PR#214", "a failed simulator becomes a lost turn"),
    Case(
        swallowed.Plain,
        FAULTS,
        "NeMo-RL#431",
        "a reward function that returns 0 if it fails",
        subject={"reward_fn": swallowed.lenient_reward},
    ),
    Case(learning.OpenShell, SANDBOX, "—", "a shell with the user's rights"),
    Case(learning.OpenPython, SANDBOX, "—", "exec in the process of the environment"),
    Case(learning.Untold, "tools are described", "—", "a tool without type hints", "warning"),
    Case(learning.AlwaysZero, MODEL, "agent-lightning#74", "no answer is ever right", "warning", model=wavering),
    Case(learning.AlwaysOne, MODEL, "rllm#352", "every answer is right", "warning", model=wavering),
    Case(learning.Search, TOOLS, "agentcore-rl-toolkit#97", "rewards without one tool call", "warning", model=wavering),
    Case(learning.Search, TOOLS, "verl#4757", "tool calls in a format that is not read", model=react),
    Case(learning.LongTail, STALE, "—", "a quarter of episodes goes on for ever", "warning", ASYNC, wavering),
    Case(
        swallowed.Plain,
        HELD_OUT,
        "—",
        "held-out tasks that are trained on",
        subject={"tasks": [{"q": "1 + 1"}, {"q": "2 + 2"}], "validation_tasks": [{"q": "2 +  2"}]},
    ),
    Case(
        openings.FewStarts,
        HELD_OUT,
        "—",
        "a seed that changes nothing",
        "warning",
        settings=("evaluation.every=5",),
    ),
    Case(swallowed.Plain, DISK, "ReCall#61", "2.8 TB of checkpoints and episodes", settings=HUGE),
    Case(
        swallowed.Plain,
        PLACES,
        "prime-rl PR#2970",
        "a tracker that would ask for its key",
        settings=("logging.trackers=[wandb]",),
        variables={"WANDB_API_KEY": "", "WANDB_MODE": "", "HOME": "/nonexistent"},
    ),
    Case(
        swallowed.Plain,
        PLACES,
        "prime-rl PR#2970",
        "an output folder that cannot be written to",
        settings=("checkpoint.output_dir=/proc/runs",),
    ),
    Case(
        swallowed.Plain,
        PLACES,
        "prime-rl PR#2970",
        "an output folder that other nodes do not see",
        settings=("checkpoint.output_dir=/tmp/runs", "ray.address=auto"),
    ),
)


def table() -> str:
    """The faults and the checks that find them, for the docs."""
    rows = [f"| {case.what} | {case.issue} | {case.check} | {case.status} |" for case in CASES]
    return "\n".join(["| planted fault | as in | found by | result |", "| --- | --- | --- | --- |", *rows])
