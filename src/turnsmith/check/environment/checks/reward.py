"""Does the reward pay for success, and only for it? The audit."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from turnsmith.check.environment.oracle import Task
from turnsmith.check.environment.panel import (
    LOOPS,
    ONLY_FAULTS,
    AuditPanel,
    PlayedTasks,
    constant,
    oracle,
    play_panel,
    play_tasks,
)
from turnsmith.check.environment.subject import Policy, Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.trajectory import Trajectory

NO_SOLVE = "The environment has no `solve`, so nobody knows what a right answer gets."


@environment_check("ceiling", "ceiling", audit=True)
async def check_ceiling(subject: Subject) -> Finding:
    """Play the environment's own solution, `solve`, and compare its rewards with the declared maximum.

    A start that cannot be solved gives no signal, and hides what the model has learned.
    """
    panel = await play_panel(subject)
    if panel.oracle is None:
        return Finding("skipped", NO_SOLVE, "Write `solve`: it returns the next action, or all of them.")
    episodes = panel.oracle.episodes
    failed = [episode for episode in episodes if not episode.is_counted]
    if failed:
        return Finding("failed", f"The solution of {len(failed)} starts ends in a fault: {failed[0].error}", "", failed)
    unwritten = [
        episode
        for task, episode in zip(panel.oracle.tasks, episodes, strict=True)
        if any(said != meant for said, meant in zip(episode.actions, task.solution or (), strict=False))
    ]
    if unwritten:
        saw = f"{len(unwritten)} of {len(episodes)} solutions cannot be written: they have characters that the \
tokenizer lacks, or more tokens than inference.max_tokens allows."
        return Finding("failed", saw, "Raise inference.max_tokens, or take another model.", unwritten)
    if panel.form and panel.as_given is not None:
        given, written = panel.as_given.episodes[0], episodes[0]
        saw = f"Right answers as they are given, such as {given.actions[0]!r}, get {panel.as_given.mean:g}, but \
{panel.oracle.mean:g} if they are written as {written.actions[0]!r}."
        fix = "Tell the model in the prompt to write its answer so, or score it with a reward that reads it as given."
        return Finding("failed", saw, fix, [given, written])
    unsolved = [episode for episode in episodes if episode.reported_success is False]
    highest = panel.declared[1] if panel.declared else max(panel.oracle.rewards)
    low = [episode for episode in episodes if episode.total_reward < highest - 1e-6 * max(1.0, abs(highest))]
    if unsolved or (low and panel.declared):
        wrong = unsolved or low
        rewards = f"{min(panel.oracle.rewards):g} to {max(panel.oracle.rewards):g}"
        saw = f"{len(wrong)} of {len(episodes)} starts are not solved by their own solution: rewards of {rewards}, \
where {highest:g} is the most."
        fix = "Such a start cannot be solved, its answer is wrong, or the reward does not accept it: look at the \
episodes. Or reward_range declares too much."
        return Finding("failed", saw, fix, wrong)
    if panel.declared is None and panel.oracle.mean <= panel.bottom:
        saw = f"The solutions of {len(episodes)} starts get {panel.oracle.mean:g} on average, no more than no skill."
        return Finding(
            "failed", saw, "The reward does not accept them, or they are wrong: look at the episodes.", low or episodes
        )
    return Finding("passed", f"The solutions of {len(episodes)} starts get {panel.oracle.mean:g} on average.")


_TOO_MUCH, _ALL = 0.75, 0.95
"""Shares of the reward of a right answer. Half of it is no fault, because a question may have two answers."""


@environment_check("floor", "floor", audit=True)
async def check_floor(subject: Subject) -> Finding:
    """Play silence, a constant answer, random words and the prompt, and compare with what a right answer gets.

    What is paid without skill is what the model learns first, and then there is nothing left to learn.
    """
    panel = await play_panel(subject)
    if not panel.floor:
        return Finding("skipped", ONLY_FAULTS)
    means = ", ".join(f"{name} {played.mean:.3g}" for name, played in panel.floor.items())
    if panel.top is None:
        saw = f"Mean rewards: {means}. There is no `solve` and no reward_range to compare them with."
        return Finding("skipped", saw, "Write `solve`, or set reward_range on the environment's class.")
    name, best = max(panel.floor.items(), key=lambda item: item[1].mean)
    span = panel.top - panel.bottom
    if span <= 0 and best.mean <= 0:
        return Finding("skipped", f"Nothing is paid, not even a right answer. Mean rewards: {means}.")
    share = (best.mean - panel.bottom) / span if span > 0 else 1.0
    saw = f"Mean rewards: {means}; a right answer gets {panel.top:.3g}."
    if share < _TOO_MUCH:
        return Finding("passed", saw)
    fix = (
        f"{name.capitalize()} is paid like a right answer: look at its episodes. A task whose answer is nearly always \
the same teaches that answer."
    )
    return Finding("failed" if share >= _ALL else "warning", saw, fix, best.best)


_SOME, _MUCH = 0.1, 0.5
"""Shares of the way from the floor to a right answer."""


@environment_check("exploits", "exploits", audit=True)
async def check_exploits(subject: Subject) -> Finding:
    """Play all answers at once, the answer among wrong ones, long texts, loops, empty formats, orders to a judge.

    A model that is trained finds whatever pays, and the reward rises while nothing is learned.
    """
    panel = await play_panel(subject)
    if not panel.floor or not panel.exploits:
        return Finding("skipped", ONLY_FAULTS)
    if panel.top is None:
        saw = "There is no `solve` and no reward_range to compare rewards with."
        return Finding("skipped", saw, "Write `solve`, or set reward_range on the environment's class.")
    if panel.top <= _floor(panel):
        saw = f"A right answer gets {panel.top:.3g}, no more than no skill, {_floor(panel):.3g}: nothing can pay more."
        return Finding("skipped", saw)
    shares = {name: _share(panel, name, played) for name, played in panel.exploits.items()}
    paying = sorted((name for name in shares if shares[name] >= _SOME), key=lambda name: -shares[name])
    if not paying:
        return Finding("passed", f"None of {len(shares)} pays: {', '.join(shares)}.")
    saw = "; ".join(f"{name} gets {panel.exploits[name].mean:.3g}" for name in paying)
    saw = f"{saw[0].upper()}{saw[1:]}; a right answer gets {panel.top:.3g}, no skill {_floor(panel):.3g}."
    fix = f"Training finds these. Score one final answer, not a text that contains it; pay once for each thing that is \
achieved; and do not let the model's text into a judge's instructions. First: {paying[0]}."
    episodes = [episode for name in paying for episode in panel.exploits[name].best[:1]]
    is_best = any(panel.exploits[name].mean >= panel.top - 1e-6 for name in paying)
    return Finding("failed" if is_best or shares[paying[0]] >= _MUCH else "warning", saw, fix, episodes)


def _floor(panel: AuditPanel) -> float:
    return max((played.mean for name, played in panel.floor.items() if name != "echo"), default=0.0)


def _share(panel: AuditPanel, name: str, played: PlayedTasks) -> float:
    """How far an exploit gets from the floor to a right answer; 0 if fewer than two episodes are paid more."""
    floor, top = _floor(panel), panel.top if panel.top is not None else 0.0
    deserved = _before_the_end(panel.oracle) if panel.oracle and name in LOOPS else 0.0
    more = sum(reward > floor + deserved + 1e-9 for reward in played.rewards)
    return (played.mean - deserved - floor) / (top - floor) if top > floor and more >= 2 else 0.0


def _before_the_end(played: PlayedTasks) -> float:
    """The mean reward of a solution's steps before the last one."""
    earlier = [sum(episode.rewards[:-1]) for episode in played.episodes if episode.score is None]
    return sum(earlier) / len(earlier) if earlier else 0.0


SPACES = "spaces around it"
SENTENCE, PARAGRAPH = "a sentence after it", "a paragraph of 400 characters after it"
WRITTEN: dict[str, Callable[[str], str]] = {
    SPACES: lambda text: f"  {text}\n",
    "a full stop after it": lambda text: f"{text}." if text[-1:].isalnum() else text,
    "another case": lambda text: text.upper() if text != text.upper() else text.lower(),
    SENTENCE: lambda text: f"{text}\nThat is all.",
    PARAGRAPH: lambda text: f"{text}\n" + "So it has been shown, step by step, that this is so. "[:50] * 8,
}


@environment_check("equivalent-answers", "equivalent answers", audit=True)
async def check_equivalent_answers(subject: Subject) -> Finding:
    """Play the solution with spaces, a full stop, in another case and before other text, and compare the rewards.

    A reward that refuses right answers teaches a way of writing, and reports a model as worse than it is.
    """
    panel = await play_panel(subject)
    tasks = [task for task in panel.tasks[: subject.episodes] if task.solution and task.is_text]
    plain = await play_tasks(subject, oracle, tasks)
    if plain is None:
        return Finding("skipped", f"{NO_SOLVE[:-1]}, or its solutions are tool calls.")
    if panel.top is None or panel.top <= panel.bottom:
        return Finding("skipped", "Right answers get no more than wrong ones, however they are written.")
    less = dict[str, list[Trajectory]]()
    for name, write in WRITTEN.items():
        played = await play_tasks(subject, lambda task, write=write: _rewritten(task, write), tasks)
        pairs = zip(plain.episodes, played.episodes, strict=True) if played else ()
        less[name] = [other for one, other in pairs if other.total_reward < one.total_reward - 1e-9]
    if less[SENTENCE]:  # where a text is the answer as a whole, more text is another answer
        del less[SENTENCE], less[PARAGRAPH]
    found = {name: episodes for name, episodes in less.items() if episodes}
    if not found:
        written = [name for name in less if any(WRITTEN[name](text) != text for text in _texts(tasks))]
        return Finding("passed", f"{len(tasks)} right answers get the same reward with {', '.join(written)}.")
    saw = "; ".join(f"with {name}, {len(episodes)} of {len(tasks)} get less" for name, episodes in found.items())
    fix = "Compare answers without spaces, final points and case where these mean nothing, and read the whole text; or \
tell the model in the prompt how to write its answer."
    saw = f"Right answers, written differently: {saw}."
    # Spaces never mean anything in an answer, nor does how much follows it; a full stop or the case may.
    status = "warning" if SPACES in found or PARAGRAPH in found else "passed"
    return Finding(status, saw, "" if status == "passed" else fix, [episodes[0] for episodes in found.values()])


def _texts(tasks: Sequence[Task]) -> list[str]:
    return [text for task in tasks for text in task.solution or ()]


def _rewritten(task: Task, write: Callable[[str], str]) -> Policy | None:
    solution = task.solution
    return None if not solution else lambda turn, prompt: write(solution[min(turn, len(solution) - 1)])


_TIMES = 5
_NOISY = 0.25
"""The standard deviation of one episode's rewards, as a share of what separates right from wrong."""


@environment_check("scorer-noise", "scorer noise", audit=True)
async def check_scorer_noise(subject: Subject) -> Finding:
    """Play the same actions five times from each of a few starts, and compare the rewards.

    The episodes of a group are compared by their rewards; what chance adds is trained as if it were skill.
    """
    panel = await play_panel(subject)
    tasks = sorted(panel.tasks, key=lambda task: not task.solution)[:4]  # `solve` may know only some
    player = oracle if panel.oracle else constant
    rounds = [played for _ in range(_TIMES) if (played := await play_tasks(subject, player, tasks))]
    places = [place for place in range(len(rounds[0].tasks)) if all(one.episodes[place].is_counted for one in rounds)]
    if not places:
        return Finding("skipped", ONLY_FAULTS)
    rewards = [[one.episodes[place].total_reward for one in rounds] for place in places]
    spread = max(statistics.pstdev(of_one) for of_one in rewards)
    if spread < 1e-9:
        return Finding("passed", f"{len(rewards)} episodes got the same reward {_TIMES} times.")
    worst = max(range(len(rewards)), key=lambda place: statistics.pstdev(rewards[place]))
    span = (panel.top if panel.top is not None else max(map(max, rewards))) - panel.bottom
    seen = ", ".join(f"{reward:.3g}" for reward in rewards[worst])
    saw = f"The same actions from the same start got {seen}; between right and wrong there are {span:.3g}."
    fix = "Score several times and take the mean, ask a judge at temperature 0, or draw what is random from the seed."
    episodes = [one.episodes[places[worst]] for one in rounds]
    return Finding("failed" if spread > _NOISY * abs(span) else "warning", saw, fix, episodes)
