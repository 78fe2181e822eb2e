"""The same answer, written a little differently, gets the same reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from turnsmith.check.checks.ceiling import NO_SOLVE
from turnsmith.check.finding import Check, Finding
from turnsmith.check.oracle import Task, find_tasks
from turnsmith.check.panel import convene, oracle, play_tasks
from turnsmith.check.subject import Policy, Subject
from turnsmith.trajectory import Trajectory

SPACES = "spaces around it"
WRITTEN: dict[str, Callable[[str], str]] = {
    SPACES: lambda text: f"  {text}\n",
    "a full stop after it": lambda text: f"{text}." if text[-1:].isalnum() else text,
    "another case": lambda text: text.upper() if text != text.upper() else text.lower(),
}


async def check_equivalent_answers(subject: Subject) -> Finding:
    """Play the solution with spaces, a full stop and in another case, and compare with the plain one."""
    tasks = [task for task in await find_tasks(subject) if task.solution and task.is_text]
    plain = await play_tasks(subject, oracle, tasks)
    if plain is None:
        return Finding("skipped", f"{NO_SOLVE[:-1]}, or its solutions are tool calls.")
    panel = await convene(subject)
    if panel.top is None or panel.top <= panel.bottom:
        return Finding("skipped", "Right answers get no more than wrong ones, however they are written.")
    less = dict[str, list[Trajectory]]()
    for name, write in WRITTEN.items():
        played = await play_tasks(subject, lambda task, write=write: _rewritten(task, write), tasks)
        pairs = zip(plain.episodes, played.episodes, strict=True) if played else ()
        less[name] = [other for one, other in pairs if other.total_reward < one.total_reward - 1e-9]
    found = {name: episodes for name, episodes in less.items() if episodes}
    if not found:
        written = [name for name, write in WRITTEN.items() if any(write(text) != text for text in _texts(tasks))]
        return Finding("passed", f"{len(tasks)} right answers get the same reward with {', '.join(written)}.")
    saw = "; ".join(f"with {name}, {len(episodes)} of {len(tasks)} get less" for name, episodes in found.items())
    fix = "Compare answers without spaces, final points and case where these mean nothing, or tell the model in the \
prompt how to write its answer."
    saw = f"Right answers, written differently: {saw}."
    # Spaces never mean anything in an answer; a full stop or the case may.
    status = "warning" if SPACES in found else "passed"
    return Finding(status, saw, "" if status == "passed" else fix, [episodes[0] for episodes in found.values()])


def _texts(tasks: Sequence[Task]) -> list[str]:
    return [text for task in tasks for text in task.solution or ()]


def _rewritten(task: Task, write: Callable[[str], str]) -> Policy | None:
    solution = task.solution
    return None if not solution else lambda turn, prompt: write(solution[min(turn, len(solution) - 1)])


EQUIVALENT_ANSWERS = Check(
    "equivalent answers",
    "Plays the environment's own solution with spaces around it, with a full stop and in another case.",
    "A reward that refuses right answers teaches a way of writing, and reports a model as worse than it is.",
    check_equivalent_answers,
    audit=True,
)
