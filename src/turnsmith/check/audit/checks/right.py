"""Is what is right paid, however it is written?"""

from __future__ import annotations

from turnsmith.check.audit.evidence import evidence
from turnsmith.check.audit.search import EPSILON, NO_TIME, PlayedTasks, Search, comparable, search
from turnsmith.check.audit.settings import wrong_setting
from turnsmith.check.audit.solutions import LOOK_TWICE, RESPELLED, asks_for
from turnsmith.check.audit.writings import BLANK, CHOICE, PARAGRAPH, SAME_VALUE, SENTENCE, SPACES
from turnsmith.check.environment.oracle import oracle
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.adapters.question_answer import QuestionAnswer
from turnsmith.trajectory import Trajectory

_SCALE = 1.5
"""Right answers whose rewards differ by more are of different scales."""


@environment_check("right-unpaid", "right answers are paid", audit=True)
async def check_right_is_paid(subject: Subject) -> Finding:
    """Play the environment's own solution, `solve`, or the rows' answers, in the form that the reward wants.

    A start whose right answer earns nothing gives no signal, and hides what the model has learned.
    """
    found = await search(subject)
    if found.solved is None and any(task.solution for task in found.tasks):
        return Finding("skipped", found.why_unknown())
    if found.solved is None:
        saw = "The environment has no `solve`, so nobody knows what a right answer gets."
        return Finding("skipped", saw, "Write `solve`: it returns the next action, or all of them.")
    if found.is_blind:
        return await _blind(found)
    if (setting := await wrong_setting(found)) is not None:
        return setting
    if faults := [episode for episode in found.solved.episodes if not episode.is_counted]:
        return Finding("failed", f"The solution of {len(faults)} starts ends in a fault: {faults[0].error}", "", faults)
    if unwritten := _unwritten(found.solved):
        saw = f"{len(unwritten)} of {len(found.solved.episodes)} solutions cannot be written: they have characters "
        saw += "that the tokenizer lacks, or more tokens than inference.max_tokens allows."
        return Finding("failed", saw, "Raise inference.max_tokens, or take another model.", unwritten)
    if found.form and found.as_given is not None and not asks_for(found.form, found.tasks):
        given, written = found.as_given.episodes[0], found.solved.episodes[0]
        saw = f"Right answers as they are given, such as {given.actions[0]!r}, get {found.as_given.mean:g}, but "
        saw += f"{found.solved.mean:g} if they are written as {written.actions[0]!r}."
        fix = "Tell the model in the prompt to write its answer so, or score it with a reward that reads it as given."
        shown = await evidence(found, found.tasks[0], given.actions, written.actions, less=False)
        return Finding("failed", saw, fix, [given, written], shown)
    return await _unsolved(found, found.solved)


async def _blind(found: Search) -> Finding:
    """The reward is the same whatever the answer is: meant, if it is one of several."""
    assert found.wrong is not None
    task, wrong = found.wrong.counted[0]
    made = found.subject.environment.each()[0].build()
    scorers = made.scorers if isinstance(made, QuestionAnswer) else []
    saw = f"The reward does not look at the answer: {wrong.actions[0][:70]!r} gets {wrong.total_reward:.3g} from a "
    saw += f"start whose answer is {(task.solution or ('',))[0][:70]!r}; others get {found.wrong.mean:.3g} on average, "
    saw += f"a start's own {found.top:.3g}."
    fix = "Compare the answer. If this is one of several rewards, check their sum: --reward for each."
    shown = await evidence(found, task, wrong.actions, [""], less=True)
    status = "failed" if any(scorer.takes_answer for scorer in scorers) else "warning"
    return Finding(status, saw, fix, [wrong], shown)


def _unwritten(solved: PlayedTasks) -> list[Trajectory]:
    pairs = zip(solved.tasks, solved.episodes, strict=True)
    return [
        episode
        for task, episode in pairs
        if any(said != meant for said, meant in zip(episode.actions, task.solution or (), strict=False))
    ]


async def _unsolved(found: Search, solved: PlayedTasks) -> Finding:
    """Whether some solutions get less than they should."""
    if found.was_cut:
        return Finding("skipped", NO_TIME)
    if found.top is not None and found.top <= found.bottom + EPSILON and not found.all_are_paid:
        saw = f"The solutions of {len(solved.episodes)} starts get {solved.mean:g} on average, no more than no skill."
        fix = "The reward does not accept them, or they are wrong: look at the episodes."
        task, _ = solved.counted[0]
        return Finding(
            "failed", saw, fix, solved.best, await evidence(found, task, task.solution or (), [""], less=False)
        )
    refused = [pair for pair in solved.counted if pair[1].reported_success is False]
    highest = found.declared[1] if found.declared else max(solved.rewards)
    low = [pair for pair in solved.counted if pair[1].total_reward < highest - 1e-6 * max(1.0, abs(highest))]
    unpaid = [pair for pair in low if pair[1].total_reward <= found.bottom + EPSILON and not found.is_noisy]
    wrong = refused or (low if found.declared and not found.is_noisy else unpaid)
    again = await found.play(oracle, [task for task, _ in wrong])
    before = {task.number: episode.total_reward for task, episode in wrong}
    more = [one for task, one in again.counted if one.total_reward > before[task.number] + EPSILON] if again else []
    if more and not refused:
        saw = f"The solutions of {len(more)} of {len(solved.episodes)} starts get less at one time than at another."
        return Finding(
            "failed", saw, "Draw all that is random from the seed, and share nothing between episodes.", more
        )
    least, most = min(solved.rewards, default=0.0), max(solved.rewards, default=0.0)
    if not wrong and found.is_single and not found.is_noisy and most > _SCALE * least > 0:
        saw = f"One right answer gets {least:.3g} and another {most:.3g}: rewards of starts differ in scale."
        fix = "If it is not meant, divide by the most that a start can earn: else a few starts decide what is learned."
        ordered = sorted((one for _, one in solved.counted), key=lambda one: one.total_reward)
        return Finding("warning", saw, fix, [ordered[0], ordered[-1]])
    if not wrong:
        return Finding("passed", f"The solutions of {len(solved.episodes)} starts get {solved.mean:g} on average.")
    rewards = f"{min(solved.rewards):g} to {max(solved.rewards):g}"
    most = f"where {highest:g} is the most" if found.declared else f"and no skill gets {found.bottom:g}"
    saw = f"{len(wrong)} of {len(solved.episodes)} starts are not solved by their own solution: rewards of {rewards}, "
    saw += f"{most}."
    fix = "Such a start cannot be solved, its answer is wrong, or the reward does not accept it: look at the episodes."
    fix += " Or reward_range declares too much." if found.declared else ""
    task, _ = wrong[0]
    shown = await evidence(found, task, task.solution or (), [""], less=False)
    return Finding("failed", saw, fix, [episode for _, episode in wrong], shown)


@environment_check("writing", "right answers may be written differently", audit=True)
async def check_writing(subject: Subject) -> Finding:
    """Write right answers in some 20 honest ways: spaces, text around them, number formats, case, marks.

    A reward that refuses right answers teaches a way of writing, and reports a model as worse than it is.
    """
    found = await comparable(subject)
    if not found.honest or found.solved is None:
        several = any(len(task.solution or ()) > 1 for task in found.tasks)
        return Finding("skipped", "Solutions have several actions." if several else NO_TIME)
    right = {task.number: one.total_reward for task, one in found.solved.counted}
    less = {
        name: [(task, one) for task, one in played.counted if one.total_reward < right.get(task.number, 0.0) - EPSILON]
        for name, played in found.honest.items()
    }
    refused = [name for name, pairs in less.items() if 2 * len(pairs) > max(2, len(found.honest[name].rewards))]
    told = f"{sum(not pairs for pairs in less.values())} of {len(less)} ways to write a right answer are paid"
    serious = _serious(refused, [name for name, pairs in less.items() if not pairs])
    if not serious:
        others = f", not {', '.join(refused)}" if refused else ""
        return Finding("passed", f"{told}{others}.")
    pairs, count = less[serious[0]], len(found.honest[serious[0]].rewards)
    saw = f"Right answers with {' or with '.join(serious)}: {len(pairs)} of {count} get less. {told}."
    fix = (
        "Compare answers without spaces, numbers and lists by value, and read the whole text; or tell the model in the "
        "prompt how to write its answer."
    )
    task, episode = pairs[0]
    shown = await evidence(found, task, episode.actions, task.solution or (), less=False)
    return Finding("warning", saw, fix, [one for _, one in pairs[:2]], shown)


def _serious(refused: list[str], taken: list[str]) -> list[str]:
    """The refused ways that mean nothing; where text is the answer as a whole, more text is another answer."""
    around = {
        "a new line after it": SPACES,
        "Windows line ends": SPACES,
        PARAGRAPH: SENTENCE,
        "reasons before it": "a line before it",
    }
    reads_values = any(name in taken for name in SAME_VALUE)
    values = [name for name in SAME_VALUE if reads_values or "brackets" in name or "JSON" in name]
    wanted = [
        LOOK_TWICE,
        RESPELLED,
        SPACES,
        BLANK,
        CHOICE,
        *(name for name, shorter in around.items() if shorter in taken),
        *values,
    ]
    return [name for name in wanted if name in refused]
