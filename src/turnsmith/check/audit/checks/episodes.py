"""Can rewards and starts be relied on, and does nothing happen that the answer should not do?"""

from __future__ import annotations

import re
import statistics

from turnsmith.check.audit.code_answers import CALL
from turnsmith.check.audit.search import NO_TIME, search
from turnsmith.check.environment.oracle import Task, in_order
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.env.adapters.reasoning_gym import SCORER_ERROR
from turnsmith.trajectory import Outcome, Trajectory

_NOISY = 0.25
"""The standard deviation of one episode's rewards, as a share of what separates right from wrong."""
_CHOICE = re.compile(r"^\s*\(?[A-J][).:]\s+(\S.*?)\s*$", re.MULTILINE)
_LIMITS = (Outcome.TURN_LIMIT, Outcome.TOKEN_LIMIT, Outcome.TIME_LIMIT)


@environment_check("answer-run", "answers are not run as code", audit=True)
async def check_answers_are_not_run(subject: Subject) -> Finding:
    """Give answers that make a folder if somebody evaluates them, as Python or in a shell.

    A scorer that runs what the model writes does whatever the model writes, with your rights.
    """
    found = await search(subject)
    if found.executed is None:
        return Finding("skipped", NO_TIME)
    if not found.executed:
        return Finding("passed", "Answers that are code were not run.")
    what = "its function was called" if CALL in found.executed else "it made the folder"
    saw = f"The answer {found.executed!r} was run where it is scored: {what}."
    fix = "Parse answers without evaluating them (`ast.literal_eval`, not `eval`), or in a sandbox."
    programs = any("\n" in text for task in found.tasks for text in task.solution or ())  # to be run, but not like this
    return Finding("warning" if programs else "failed", saw, fix)


@environment_check("answer-raises", "scoring does not raise", audit=True)
async def check_scoring_does_not_raise(subject: Subject) -> Finding:
    """Count the episodes of the search that end in a fault.

    Each costs an episode, and groups without the answers that raise are biased.
    """
    found = await search(subject)
    told = [
        one for some in [*found.every(), *found.nothing] for _, one in some.counted if SCORER_ERROR in one.infos[-1]
    ]
    raised = [one for one in found.raised if one.actions and one.outcome is not Outcome.OVERLOADED] or told
    if not raised:
        return Finding("passed", f"None of {found.tried} episodes ended in a fault.")
    shortest = min(raised, key=lambda one: sum(map(len, one.actions)))
    saw = f"{len(raised)} of {found.tried} episodes ended in a fault; the shortest, {shortest.actions[-1][:70]!r}: "
    saw += shortest.error or str(shortest.infos[-1][SCORER_ERROR])
    fix = "Let every text be scored: what cannot be read is wrong, and earns what wrong answers earn."
    return Finding("failed", saw, fix, [shortest])


@environment_check("noise", "the same actions get the same reward", audit=True)
async def check_noise(subject: Subject) -> Finding:
    """Play the same actions five times from each of a few starts, and compare the rewards.

    The episodes of a group are compared by their rewards; what chance adds is trained as if it were skill.
    """
    found = await search(subject)
    played = found.repeated()
    if not played:
        return Finding("skipped", "No episode ended without a fault.")
    if not found.is_noisy:
        return Finding("passed", f"{len(played)} episodes got the same reward {len(played[0])} times.")
    worst = max(played, key=lambda some: statistics.pstdev(one.total_reward for one in some))
    rewards = [one.total_reward for one in worst]
    span = abs((found.top if found.top is not None else max(rewards)) - found.bottom)
    saw = f"The same actions from the same start got {', '.join(f'{reward:.3g}' for reward in rewards)}"
    saw += f"; between right and wrong there are {span:.3g}."
    fix = "Score several times and take the mean, ask a judge at temperature 0, or draw what is random from the seed."
    return Finding("failed" if statistics.pstdev(rewards) > _NOISY * span else "warning", saw, fix, worst)


@environment_check("answer-shown", "the answer is not shown", audit=True)
async def check_answer_is_not_shown(subject: Subject) -> Finding:
    """Give a wrong answer, look for the right one in what comes back, and give that.

    A model that is told the answer learns to wait for it.
    """
    found = await search(subject)
    able = [task for task in found.tasks if task.is_text and len(task.solution or ()) == 1 and task.others]
    if found.is_single or not able:
        return Finding("skipped", "Episodes are one answer, or solutions have several actions.")
    told = list[tuple[Task, Trajectory]]()
    for task in able:
        right = (task.solution or ("",))[0]
        [episode] = await subject.play(in_order([task.others[0], right]), [task.start])
        later = " ".join(str(one["content"]) for one in episode.messages[2:] if one["role"] != "assistant")
        known = len(right) > 1 and right in later and right not in task.opening
        if known and len(episode.actions) > 1 and found.share(episode.total_reward) >= 0.5:
            told.append((task, episode))
    if 2 * len(told) < len(able):
        return Finding("passed", f"After a wrong answer {len(told)} of {len(able)} starts show the right one.")
    saw = f"After a wrong answer {len(told)} of {len(able)} starts show the right one and go on; then it gets "
    saw += f"{told[0][1].total_reward:g}."
    return Finding("failed", saw, "End the episode with the answer, or do not say it.", [one for _, one in told[:2]])


@environment_check("starts", "questions have one answer", audit=True)
async def check_starts(subject: Subject) -> Finding:
    """Compare the first observations and the answers of the starts.

    Where the same question has different right answers nobody can be right.
    """
    found = await search(subject)
    opened = [task for task in found.tasks if task.opening and task.solution]
    for task in opened:
        choices = _CHOICE.findall(task.opening)
        if twice := next((text for text in choices if choices.count(text) > 1), ""):
            saw = f"The question of seed {task.start.seed} has the choice {twice[:70]!r} twice."
            return Finding("warning", saw, "Look at how choices are written: nobody can tell which of them is meant.")
    if not found.is_single or not opened:
        return Finding("skipped", "Episodes are more than one answer, or there is no `solve`.")
    answers: dict[str, dict[tuple[str, ...], Task]] = {}
    for task in opened:
        answers.setdefault(task.opening, {}).setdefault(task.solution or (), task)
    split = [list(some.values()) for some in answers.values() if len(some) > 1]
    if split:
        one, other = [(task, (task.solution or ("",))[0][:70]) for task in split[0][:2]]
        saw = f"The same question has different answers: {one[1]!r} from seed {one[0].start.seed}, {other[1]!r} from "
        saw += f"seed {other[0].start.seed}."
        return Finding("failed", saw, "Show the model what the answer depends on.")
    if len(opened) > 3 and len(answers) <= len(opened) // 4:
        saw = f"{len(opened)} starts have {len(answers)} different questions."
        return Finding("warning", saw, "Draw the question from the seed that `reset` gets, or from the row.")
    return Finding("passed", f"{len(opened)} starts have {len(answers)} different questions.")


@environment_check("endless", "episodes end", audit=True)
async def check_episodes_end(subject: Subject) -> Finding:
    """Look for an episode that the environment itself ends, among all that the search has played.

    Episodes that only a limit ends are cut where nothing is decided, and cost the most.
    """
    found = await search(subject)
    every = [episode for some in [*found.every(), *found.nothing] for _, episode in some.counted]
    if not every:
        return Finding("skipped", "No episode of the search ended without a fault.")
    solved = found.solved.counted if found.solved is not None else []
    cut = [episode for _, episode in solved if episode.outcome in (Outcome.TRUNCATED, *_LIMITS)]
    going_on = [one for one in cut if any(one.rewards) and not any(one.rewards[-2:])]
    longer = [one for task, one in solved if one in cut and len(one.actions) > len(task.solution or ()) > 1]
    if going_on := longer if len(longer) == len(solved) else going_on:
        saw = f"{len(going_on)} of {len(solved)} episodes go on after their solution, until a limit ends them."
        return Finding("warning", saw, "End the episode where the task is solved: return done=True.", going_on[:2])
    if not found.ended and not solved:
        return Finding("skipped", "No episode of the search came to an end; a `solve` would tell whether one can.")
    if not found.ended:
        saw = f"Only limits end episodes: none of {found.tried} was ended by the environment, nor was the solution."
        return Finding("warning", saw, "Return done=True where the task is over.", every[:2])
    return Finding("passed", "Episodes are ended by the environment.")
