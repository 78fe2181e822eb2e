"""Is anything paid that does not deserve it?"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence

from turnsmith.check.audit.evidence import evidence, shortest
from turnsmith.check.audit.programs import HOSTILE, SENSELESS
from turnsmith.check.audit.rules import NONSENSE
from turnsmith.check.audit.search import EPSILON, NO_TIME, PlayedTasks, Search, comparable, search
from turnsmith.check.audit.solutions import LAST_STEP, REWARDING, says_the_answer
from turnsmith.check.environment.oracle import Task
from turnsmith.check.environment.subject import Subject, environment_check
from turnsmith.check.finding import Finding
from turnsmith.trajectory import Trajectory

_TOO_MUCH, _ALL = 0.75, 0.95
"""Shares of the way from no skill to a right answer. Half of it is no fault: a question may have two answers."""
_MUCH, _SOME = 0.5, 0.4
_FAR = 1000


@environment_check("skill-unneeded", "no skill is not paid", audit=True)
async def check_no_skill_is_paid(subject: Subject) -> Finding:
    """Play rules that know nothing: constants, parts of the question, texts of the scorer's own code, loops.

    What is paid without skill is what the model learns first, and then there is nothing left to learn.
    """
    found = await search(subject)
    if found.all_are_paid and not found.is_noisy:
        saw = f"Nonsense and silence get {found.bottom:g} on average, and right answers {found.top:g}."
        fix = "Look at what is paid: a text that says nothing earns as much as the task solved."
        paid = max(found.nothing, key=lambda played: played.mean)
        task, episode = max(paid.counted, key=lambda pair: pair[1].total_reward)
        shown = await evidence(found, task, episode.actions, task.solution or (), less=True)
        return Finding("failed", saw, fix, paid.best, shown)
    if unknown := found.why_unknown():
        return Finding("skipped", unknown)
    undeserved = {name: without_the_answer(played) for name, played in found.unskilled.items()}
    shares = {name: _share(found, played) for name, played in undeserved.items()}
    best = max(shares, key=lambda name: shares[name], default="")
    if best and shares[best] >= _MUCH:
        return await _paid(found, best, undeserved[best], shares)
    right = {name: found.share(played.mean) for name, played in found.unskilled.items()} if found.is_single else {}
    name = max(right, key=lambda one: right[one], default="")
    if name and right[name] >= _TOO_MUCH and (later := await found.again(name)) is not None:
        # The best of many rules on a few starts is better than it is: other starts decide.
        share = found.share(later.mean)
        saw = f"{_first(name)} is right nearly always: on {len(later.tasks)} other starts it gets {later.mean:.3g} on "
        saw += f"average, a right answer {found.top:.3g}."
        fix = "A task whose answer can be read off teaches that rule: draw answers evenly, and keep them out of sight."
        if share >= _TOO_MUCH:
            return Finding("failed" if share >= _ALL else "warning", saw, fix, later.best)
    return Finding("passed", f"None of {len(found.candidates)} rules without skill is paid like a right answer.")


async def _paid(found: Search, name: str, played: PlayedTasks, shares: Mapping[str, float]) -> Finding:
    task, episode = max(played.counted, key=lambda pair: pair[1].total_reward)
    actions = episode.actions
    if found.is_single and len(actions) == 1:
        actions = list(await shortest(found.subject, task, actions, episode.total_reward))
    also = [one for one, share in shares.items() if one != name and share >= _MUCH]
    saw = f"Paid {played.mean:.3g} on average without being right: {name}. A right answer gets {found.top:.3g}, no "
    saw += f"skill {found.bottom:.3g}."
    saw += f" Also paid: {also[0]}{f' and {len(also) - 1} more' if len(also) > 1 else ''}." if also else ""
    fix = "Pay for what only a right answer has: compare the whole final answer."
    shown = await evidence(found, task, actions, ["qwzx"], less=True)
    is_sure = shares[name] >= _TOO_MUCH and name not in HOSTILE
    return Finding("failed" if is_sure else "warning", saw, fix, played.best, shown)


@environment_check("start-open", "no start pays for anything", audit=True)
async def check_no_start_is_open(subject: Subject) -> Finding:
    """Play nonsense, silence and the answers to other starts from each start, and look at each start alone.

    A start that is solved already, or whose answer is compared with nothing, pays whatever is said.
    """
    found = await comparable(subject)
    if found.solved is None:
        return Finding("skipped", "There is no `solve` to compare rewards with.")
    right = {task.number: one.total_reward for task, one in found.solved.counted}
    paid: dict[int, dict[str, tuple[Task, Trajectory]]] = {}
    senseless = [found.unskilled[name] for name in SENSELESS if name in found.unskilled]
    alone = {one.actions[0] for played in senseless for _, one in played.counted if one.actions}.union(NONSENSE)
    for task, one in (pair for played in (*found.nothing, *found.crossed, *senseless) for pair in played.counted):
        enough = right.get(task.number, found.bottom) - EPSILON
        if enough > found.bottom and one.total_reward >= enough and not says_the_answer(task, one):
            paid.setdefault(task.number, {})[one.actions[0] if one.actions else ""] = (task, one)
    starts = [some for some in paid.values() if len(some) > 1 or any(text in alone for text in some)]
    if not starts or 2 * len(starts) > len(right):  # where most are open, several answers are right
        return Finding("passed", f"{len(paid)} of {len(right)} starts pay for a wrong answer.")
    (text, (task, episode)), *more = starts[0].items()
    saw = f"{len(starts)} of {len(right)} starts pay for wrong answers like for right ones, {episode.total_reward:.3g}"
    saw += f": {text[:70]!r}{f', {more[0][0][:70]!r}' if more else ''} from seed {task.start.seed}."
    fix = "Such a start is solved before the model answers, or its answer is compared with nothing: look at it."
    shown = await evidence(found, task, episode.actions, task.solution or (), less=True)
    return Finding("failed", saw, fix, [episode for some in starts for _, episode in some.values()], shown)


@environment_check("more-than-right", "nothing is paid more than a right answer", audit=True)
async def check_nothing_is_paid_more(subject: Subject) -> Finding:
    """Compare every reward of the search with those of right answers, and with the declared range.

    A model that is trained finds whatever pays most, and leaves the right answer for it.
    """
    found = await search(subject)
    every = [pair for some in found.every() for pair in some.counted]
    if not every:
        return Finding("skipped", "No episode of the search ended without a fault.")
    if found.declared is not None:
        low, high = found.declared
        outside = (
            []
            if found.subject.success_reward is not None
            else [pair for pair in every if not low - 1e-6 <= pair[1].total_reward <= high + 1e-6]
        )
        if outside:
            task, episode = max(outside, key=lambda pair: abs(pair[1].total_reward))
            saw = f"{len(outside)} of {len(every)} episodes get rewards outside of the declared range {low:g} to "
            saw += f"{high:g}, up to {episode.total_reward:g}."
            shown = await evidence(found, task, episode.actions, [""], less=episode.total_reward > high)
            return Finding("failed", saw, "Cut rewards off, or declare the range that they have.", [episode], shown)
    if (far := await _far_below(found)) is not None:
        return far
    if unknown := found.why_unknown():
        return Finding("skipped", unknown)
    right = {task.number: episode.total_reward for task, episode in found.solved.counted} if found.solved else {}
    more = [(task, one) for task, one in every if one.total_reward > right.get(task.number, float("inf")) + 1e-6]
    if len(more) < 2:
        return Finding("passed", f"{len(every)} episodes get no more than a right answer.")
    task, episode = max(more, key=lambda pair: pair[1].total_reward - right[pair[0].number])
    saw = f"{len(more)} of {len(every)} episodes get more than the solution of their start: up to "
    saw += f"{episode.total_reward:.3g}, where the solution gets {right[task.number]:.3g}."
    shown = await evidence(found, task, episode.actions, task.solution or (), less=True)
    fix = "Let nothing be paid more than the task solved: look at what this episode is paid for."
    return Finding("failed", saw, fix, [episode], shown)


async def _far_below(found: Search) -> Finding | None:
    """The lowest reward of all, if the others are nothing beside it."""
    usual = [abs(reward) for played in (*found.every(), *found.nothing) for reward in played.rewards]
    if found.worst is None or -found.worst[1].total_reward < _FAR * max(1.0, statistics.median(usual)):
        return None
    task, episode = found.worst
    saw = f"{episode.actions[-1][:70]!r} gets {episode.total_reward:.3g}; half of all rewards are within "
    saw += f"{statistics.median(usual):.3g} of 0."
    shown = await evidence(found, task, episode.actions, [""], less=False)
    fix = "Give the reward a lower limit: one such episode decides the update of its whole batch."
    return Finding("warning", saw, fix, [episode], shown)


@environment_check("hedge-paid", "several answers at once are not paid", audit=True)
async def check_hedges_are_not_paid(subject: Subject) -> Finding:
    """Play the right answer among wrong ones: before, after, in between, in one line and in several.

    A model that lists what could be right is paid for it, and never has to decide.
    """
    found = await comparable(subject)
    if not found.hedged:
        return Finding("skipped", "Solutions have several actions, or all starts have the same answer.")
    shares = {name: _share(found, played) for name, played in found.hedged.items()}
    # A reward may read the first answer or the last one. Who is paid whatever the order is not asked to decide.
    ends = ("wrong answers before it", "wrong answers after it")
    ways = [name for name, share in shares.items() if name not in ends and share >= _SOME]
    if min(shares.get(name, 0.0) for name in ends) >= _MUCH:
        ways += ends
    if not ways:
        return Finding("passed", f"A right answer among wrong ones is not paid, in {len(shares)} ways.")
    best = max(ways, key=lambda name: shares[name])
    played = found.hedged[best]
    task, episode = max(played.counted, key=lambda pair: pair[1].total_reward)
    saw = f"A right answer with {best} gets {played.mean:.3g}; a right answer alone gets {found.top:.3g}, no skill "
    saw += f"{found.bottom:.3g}."
    fix = "Score one final answer, not a text that contains it."
    shown = await evidence(found, task, episode.actions, task.others[:1] or [""], less=True)
    return Finding("failed" if _fully_paid(found, played) >= _TOO_MUCH else "warning", saw, fix, played.best, shown)


@environment_check("near-paid", "wrong answers near to a right one are not paid", audit=True)
async def check_near_is_not_paid(subject: Subject) -> Finding:
    """Change right answers a little: another sign, a digit more, half of them, parts in another order.

    What is paid as right though it is wrong sets the limit of what the model learns.
    """
    found = await comparable(subject)
    if not found.near:
        return Finding("skipped", "Solutions have several actions." if found.edited else NO_TIME)
    shares = {name: _share(found, played) for name, played in found.near.items()}
    full = {name: _fully_paid(found, played) for name, played in found.near.items()}
    paid = sorted((name for name in shares if shares[name] >= _MUCH and full[name] > 0), key=lambda name: -full[name])
    if not paid:
        return Finding("passed", f"Right answers changed in {len(shares)} ways are not paid.")
    sure = [name for name in paid if re.search("digit|letter|times", name) and full[name] >= _TOO_MUCH]
    best = (sure or paid)[0]
    played = found.near[best]
    task, episode = max(played.counted, key=lambda pair: pair[1].total_reward)
    right = (task.solution or ("",))[0]
    saw = f"{_first(best)}, {episode.actions[0][:70]!r} for {right[:70]!r}, gets {played.mean:.3g} of {found.top:.3g}."
    others = [name for name in paid if name != best]
    saw += f" So do {', '.join(others)}." if others else ""
    fix = "Compare the whole answer, numbers with a tolerance that no neighbour fits into; or more than one is right."
    unpaid = [
        one.actions
        for some in found.near.values()
        for other, one in some.counted
        if other.number == task.number and one.total_reward <= found.bottom
    ]
    shown = await evidence(found, task, episode.actions, next(iter(unpaid), task.others[:1] or [""]), less=True)
    return Finding("failed" if sure else "warning", saw, fix, played.best, shown)


@environment_check("steps-unneeded", "the steps of a solution are needed", audit=True)
async def check_steps_are_needed(subject: Subject) -> Finding:
    """Play solutions of several actions with steps left out, repeated, and the last of them alone.

    Where the last word alone is paid, the work before it is not learned; where a step can be repeated, that is.
    """
    found = await comparable(subject)
    if not found.edited or found.solved is None:
        return Finding("skipped", "Solutions have one action.")
    before_the_end = found.share(found.bottom + _before_the_end(found.solved))
    deserved = {name: 0.0 if name in (LAST_STEP, REWARDING) else before_the_end for name in found.edited}
    shares = {name: _share(found, played) - deserved[name] for name, played in found.edited.items()}
    best = max(shares, key=lambda name: shares[name])
    if shares[best] < _MUCH:
        return Finding("passed", f"Solutions changed in {len(shares)} ways are not paid like whole ones.")
    played = found.edited[best]
    task, episode = max(played.counted, key=lambda pair: pair[1].total_reward)
    saw = f"Of a solution, {best} gets {played.mean:.3g}; all of it gets {found.top:.3g}, no skill {found.bottom:.3g}."
    fix = "Pay for the state that is reached, not for a text at the end; pay once for each thing that is achieved."
    shown = await evidence(found, task, episode.actions, task.solution or (), less=True)
    # A solution may have a step too many, and the order of some means nothing; its last step alone is no solution.
    is_sure = (best in (LAST_STEP, REWARDING) and shares[best] >= _TOO_MUCH) or played.mean > (
        found.top or 0.0
    ) + EPSILON
    return Finding("failed" if is_sure else "warning", saw, fix, played.best, shown)


def without_the_answer(played: PlayedTasks) -> PlayedTasks:
    """The episodes of a rule that did not happen to say the right answer."""
    pairs: Sequence[tuple[Task, Trajectory]] = [pair for pair in played.counted if not says_the_answer(*pair)]
    return PlayedTasks([task for task, _ in pairs], [episode for _, episode in pairs])


def _share(found: Search, played: PlayedTasks) -> float:
    """How far the mean reward is on the way from no skill to a right answer; 0 if fewer than two are paid."""
    more = sum(reward > found.bottom + EPSILON for reward in played.rewards)
    return found.share(played.mean) if more >= 2 else 0.0


def _fully_paid(found: Search, played: PlayedTasks) -> float:
    """The share of episodes that get all that a right answer gets: a part of it is mostly meant."""
    right = {task.number: one.total_reward for task, one in found.solved.counted} if found.solved else {}
    full = [one.total_reward >= right.get(task.number, found.top or 0.0) - 1e-6 for task, one in played.counted]
    return sum(full) / len(full) if full else 0.0


def _before_the_end(solved: PlayedTasks) -> float:
    """The mean reward of a solution's steps before the last one."""
    earlier = [sum(episode.rewards[:-1]) for _, episode in solved.counted if episode.score is None]
    return sum(earlier) / len(earlier) if earlier else 0.0


def _first(name: str) -> str:
    return name[:1].upper() + name[1:]
