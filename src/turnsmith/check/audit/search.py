"""The search for what a reward pays: many ways to play the first starts, most of them briefly."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from turnsmith.check.audit import solutions
from turnsmith.check.audit.code_answers import answer_that_is_run
from turnsmith.check.audit.ideas import ideas
from turnsmith.check.audit.programs import HOSTILE, SENSELESS, rewarding
from turnsmith.check.audit.rules import NONSENSE, Rule, hedges, in_turns, rules, say
from turnsmith.check.audit.tracing import Trace, form_of, literals, patterns, trace
from turnsmith.check.audit.writings import AROUND, CHOICE, FORMS, NEAR, WITHIN, with_choice
from turnsmith.check.environment.oracle import Task, find_tasks, in_order, oracle
from turnsmith.check.environment.subject import CannotPlay, Policy, Subject
from turnsmith.check.finding import Skipped
from turnsmith.env.adapters.scorers import NO_REWARD
from turnsmith.errors import InternalError, TurnsmithError
from turnsmith.trajectory import Outcome, Trajectory

_FEW = 3
"""Starts on which every rule is tried; those that pay there are played on all."""
_PAYS, _HARDLY, _BLIND = 0.2, 0.15, 0.95
EPSILON = 1e-9
_TIMES = 5
NO_TIME = "There was no time to play them (--seconds)."


@dataclass(frozen=True, slots=True)
class PlayedTasks:
    """The episodes of one policy, each with its task."""

    tasks: Sequence[Task]
    episodes: Sequence[Trajectory]

    @property
    def counted(self) -> list[tuple[Task, Trajectory]]:
        """The episodes that ended without a fault."""
        pairs = zip(self.tasks, self.episodes, strict=True)
        return [(task, episode) for task, episode in pairs if episode.is_counted]

    @property
    def rewards(self) -> list[float]:
        """The rewards of the episodes that ended without a fault."""
        return [episode.total_reward for _, episode in self.counted]

    @property
    def mean(self) -> float:
        """Their mean; 0 if there are none."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else 0.0

    @property
    def best(self) -> list[Trajectory]:
        """The two episodes with the highest reward."""
        return sorted((one for _, one in self.counted), key=lambda one: one.total_reward, reverse=True)[:2]


@dataclass
class Search:
    """What was tried on the first starts, and what it got."""

    subject: Subject
    tasks: Sequence[Task] = ()
    bare: Sequence[Task] = ()
    """The tasks with their solutions as they are given, without a form."""
    declared: tuple[float, float] | None = None
    """Lowest and highest reward of an episode, as the environment declares them."""
    solved: PlayedTasks | None = None
    """The environment's own solution."""
    form: str = ""
    """How solutions are paid that get nothing as they are. The tasks have them in this form."""
    is_blind: bool = False
    """Whether the right answers of other starts are paid like a start's own."""
    unscored: list[Trajectory] = field(default_factory=list[Trajectory])
    """The episodes of starts for which the reward is None: TRL leaves them out."""
    as_given: PlayedTasks | None = None
    """The episodes with the solutions as they are, if there is a form."""
    nothing: list[PlayedTasks] = field(default_factory=list[PlayedTasks])
    """Nonsense, for which nobody is paid on purpose."""
    wrong: PlayedTasks | None = None
    """The answers to other starts: what a wrong answer gets."""
    crossed: list[PlayedTasks] = field(default_factory=list[PlayedTasks])
    """Three more answers to other starts, others for each start."""
    unskilled: dict[str, PlayedTasks] = field(default_factory=dict[str, PlayedTasks])
    hedged: dict[str, PlayedTasks] = field(default_factory=dict[str, PlayedTasks])
    near: dict[str, PlayedTasks] = field(default_factory=dict[str, PlayedTasks])
    honest: dict[str, PlayedTasks] = field(default_factory=dict[str, PlayedTasks])
    edited: dict[str, PlayedTasks] = field(default_factory=dict[str, PlayedTasks])
    """Solutions of several actions, changed."""
    raised: list[Trajectory] = field(default_factory=list[Trajectory])
    """The episodes that ended in a fault."""
    worst: tuple[Task, Trajectory] | None = None
    """The episode with the lowest reward."""
    words: Sequence[str] = ()
    """The texts of the scorer's own code."""
    rounds: list[list[Trajectory]] = field(default_factory=list[list[Trajectory]])
    """The solutions of a few starts, or one text, played again and again."""
    is_single: bool = True
    """Whether an episode is one answer."""
    was_cut: bool = False
    """Whether there was no time to look for the form in which right answers are paid."""
    executed: str | None = None
    """An answer that was run as code; empty if none was, None if none could be tried."""
    bottom: float = 0.0
    """What no skill gets: the most of nonsense and of wrong answers."""
    tried: int = 0
    ended: int = 0
    """Episodes that the environment itself ended."""
    candidates: Sequence[Rule] = ()
    """The rules without skill."""
    error: Exception | None = None
    """Why the search failed."""
    left_out: int = 0
    """Rules for which there was no time."""
    _end: float = 0.0
    _pace: float = 0.0
    """Seconds of an episode."""

    @property
    def top(self) -> float | None:
        """The reward of a solved episode: the solution's if there is one, otherwise the declared maximum."""
        if self.solved is not None and self.solved.rewards:
            return self.solved.mean
        return self.declared[1] if self.declared else None

    def share(self, reward: float) -> float:
        """How far a reward is on the way from no skill to a right answer; 0 where that is not known."""
        top = self.top
        return (reward - self.bottom) / (top - self.bottom) if top is not None and top > self.bottom else 0.0

    @property
    def all_are_paid(self) -> bool:
        """Whether nonsense earns what a right answer does, and that is more than nothing."""
        least = min((reward for one in (*self.every(), *self.nothing) for reward in one.rewards), default=0.0)
        top = self.top
        return top is not None and top <= self.bottom + EPSILON and (top > 0 or top > least + EPSILON)

    @property
    def is_noisy(self) -> bool:
        """Whether the same actions get different rewards."""
        return any(len({round(one.total_reward, 9) for one in some}) > 1 for some in self.repeated())

    def repeated(self) -> list[list[Trajectory]]:
        """The episodes of each start that was played several times, without those that ended in a fault."""
        return [list(some) for some in zip(*self.rounds, strict=True) if all(one.is_counted for one in some)]

    def every(self) -> list[PlayedTasks]:
        """All that was played on more than a few starts, but nonsense."""
        kinds = (self.unskilled, self.hedged, self.near, self.honest, self.edited)
        return [*(played for kind in kinds for played in kind.values()), *([self.solved] if self.solved else [])]

    def why_unknown(self) -> str:
        """Why rewards cannot be compared, as a sentence; empty if they can."""
        if self.solved is not None and not self.solved.rewards:
            return "No episode of the solution ended without a fault."
        if self.top is None and any(task.solution for task in self.tasks):
            return NO_TIME
        if self.top is None:
            return "There is no `solve` and no reward_range to compare rewards with."
        if self.is_blind:
            return "The reward does not look at the answer: see the first check of the reward."
        if self.is_noisy:
            return "Rewards differ from one time to the next."
        if self.top <= self.bottom + EPSILON:
            return f"A right answer gets {self.top:.3g}, no more than no skill: nothing can pay more."
        if self.top - self.bottom < _HARDLY * abs(self.top):
            return f"A right answer gets {self.top:.3g}, hardly more than no skill, {self.bottom:.3g}."
        return ""

    async def play(self, player: Callable[[Task], Policy | None], tasks: Sequence[Task]) -> PlayedTasks | None:
        """Play each task once; None if the policy cannot be applied to any, or time is up."""
        able = [(task, policy) for task in tasks if (policy := player(task)) is not None]
        if not able or time.monotonic() > self._end:
            self.left_out += bool(able)
            return None
        episodes = await asyncio.gather(*(self.subject.play(policy, [task.start]) for task, policy in able))
        played = PlayedTasks([task for task, _ in able], [episode for [episode] in episodes])
        self.tried += len(able)
        self.ended += sum(one.outcome in (Outcome.COMPLETED, Outcome.TRUNCATED) for one in played.episodes)
        self.raised += [episode for episode in played.episodes if not episode.is_counted]
        known = [*played.counted, *([self.worst] if self.worst else [])]
        self.worst = min(known, key=lambda pair: pair[1].total_reward, default=None)
        return played

    async def run(self, seconds: float) -> Search:
        """Try everything, in an order in which what matters most comes first."""
        self._end = time.monotonic() + seconds
        self.declared = reward_bounds(self.subject)
        self.tasks = self.bare = await find_tasks(self.subject, 2 * self.subject.episodes)
        opened = time.monotonic()
        self.solved = await self.play(oracle, self.tasks)
        self._leave_out_the_unscored()
        self._pace = (time.monotonic() - opened) / len(self.tasks)
        await self._find_bottom()
        await self._repeat()
        await self._find_form()
        await self._try_code()
        seen = await self._traces()
        self.words = list(dict.fromkeys(text for one in seen for text in literals(one.codes)))
        if self.solved is not None:
            await self._around_the_solution()
        thought_of = await ideas(self.subject, list(self.tasks[:_FEW]))
        await self._search(
            [
                *(
                    say(f"the model's idea {n + 1}", lambda task, one=one: one.get(task.number))
                    for n, one in enumerate(thought_of)
                ),
                *rules(self.tasks, self.words, self.form),
                *in_turns(self.tasks, self.form),
            ]
        )
        return self

    def _leave_out_the_unscored(self) -> None:
        pairs = list(zip(self.solved.tasks, self.solved.episodes, strict=True)) if self.solved is not None else []
        self.unscored = [episode for _, episode in pairs if NO_REWARD in (episode.error or "")]
        scored = [pair for pair in pairs if NO_REWARD not in (pair[1].error or "")]
        if not self.unscored or not scored:
            return
        self.subject.unscored.extend(task.start.task for task, episode in pairs if episode in self.unscored)
        self.tasks = self.bare = [task for task, _ in scored]
        self.raised = []
        self.solved = PlayedTasks(self.tasks, [episode for _, episode in scored])

    async def _find_bottom(self) -> None:
        """What meaningless answers get."""
        played = [await self.play(lambda task, text=text: in_order([text]), self.tasks) for text in NONSENSE]
        self.nothing = [one for one in played if one is not None and one.rewards]
        self.bottom = max((one.mean for one in self.nothing), default=0.0)
        self.is_single = all(map(_end_at_once, self.nothing))

    async def _find_form(self) -> None:
        """The form in which right answers are paid, and what wrong ones get."""
        if self.solved is None or not self.solved.rewards:
            return
        if self.solved.mean <= self.bottom + EPSILON and not self.is_noisy:
            seen = await self._traces()
            found = dict.fromkeys(form for one in seen for pattern in patterns(one.codes) if (form := form_of(pattern)))
            if form := await self._paid_form([*found, *FORMS]):
                self.form, self.as_given = form, self.solved
                self.tasks = [solutions.with_form(task, form) for task in self.tasks]
                self.solved = await self.play(oracle, self.tasks)
        self.wrong = await self.play(lambda task: in_order(task.others[:1]) if task.others else None, self.tasks)
        if self.wrong is not None:
            self.is_single = self.is_single and _end_at_once(self.wrong)
        top, least = self.top or 0.0, self.bottom if self.as_given is None else self.as_given.mean
        beyond = 0.0 if self.wrong is None else self.wrong.mean - least
        self.is_blind = top > least + EPSILON and beyond > _BLIND * (top - least)
        if self.wrong is not None and self.wrong.mean < (self.top or 0.0):
            self.bottom = max(self.bottom, self.wrong.mean)
        for step in (1, 2, 3) if self.is_single else ():
            played = await self.play(lambda task, step=step: solutions.answer_of_another(task, step), self.tasks)
            self.crossed += [played] if played is not None else []

    async def _paid_form(self, forms: Sequence[str]) -> str:
        """The form in which solutions get most, if that is more than they get as they are; otherwise empty."""
        tasks = [task for task in self.tasks if task.is_text and len(task.solution or ()) == 1][:_FEW]
        best, most = "", self.solved.mean if self.solved is not None else 0.0
        forms = sorted(forms, key=lambda form: not solutions.asks_for(form, self.tasks))
        for form in forms:
            brief = await self.play(lambda task, form=form: oracle(solutions.with_form(task, form)), tasks[:1])
            self.was_cut = self.was_cut or time.monotonic() > self._end
            if brief is None or brief.mean <= most + EPSILON:
                continue
            played = await self.play(lambda task, form=form: oracle(solutions.with_form(task, form)), tasks)
            if played is not None and played.mean > most + EPSILON:
                best, most = form, played.mean
        return best

    async def _traces(self) -> list[Trace]:
        """Which lines a right, a wrong and an empty answer execute, where that can be seen."""
        found = list[Trace]()
        task = next((task for task in self.tasks if task.solution), self.tasks[0])
        for actions in (task.solution or ("7",), ("",)):
            try:
                found.append(await trace(self.subject, task, actions))
            except (TurnsmithError, OSError, ValueError):
                break
        return found

    async def _search(self, candidates: Sequence[Rule]) -> None:
        """Try each rule on a few starts, and those that are paid there on all."""
        slow = _FEW * len(candidates) * self._pace > self._end - time.monotonic()
        few = self.tasks[: 1 if slow else _FEW]
        self.candidates = candidates
        for rule in candidates:
            brief = await self.play(rule.policy, few)
            if brief is None or not brief.rewards:
                continue
            most = max(self.share(reward) for reward in brief.rewards) if self.top is not None else max(brief.rewards)
            if most >= _PAYS:
                played = await self.play(rule.policy, self.tasks)
                if played is not None and played.rewards:
                    self.unskilled[rule.name] = played

    async def _around_the_solution(self) -> None:
        if any(len(task.solution or ("",)) > 1 for task in self.tasks):
            edits = {**solutions.EDITS, solutions.REWARDING: partial(rewarding, words=self.words)}
            for into, some in ((self.edited, edits), (self.honest, solutions.HONEST_EDITS)):
                for name, edit in some.items():
                    await self._keep(into, name, lambda task, edit=edit: solutions.if_changed(task, edit))
            return
        few = [task for task in self.bare if task.is_text and task.solution][: self.subject.episodes]
        programs = {**HOSTILE, **SENSELESS}
        slow = len(programs) * len(few) * self._pace > (self._end - time.monotonic()) / 2
        for name, player in hedges(lambda task: task.others, self.form).items():
            await self._keep(self.hedged, name, player, few)
        for into, writes in ((self.unskilled, programs), (self.near, NEAR), (self.honest, WITHIN)):
            for name, write in writes.items():
                some = few[:2] if slow and into is self.unskilled else few
                await self._keep(into, name, lambda task, write=write: solutions.written(task, write, self.form), some)

        def with_its_choice(task: Task) -> Policy | None:
            return solutions.written(task, lambda text: with_choice(text, task.opening), self.form)

        await self._keep(self.honest, CHOICE, with_its_choice, few)
        few = [solutions.with_form(task, self.form) for task in few]
        for name, write in AROUND.items():
            await self._keep(self.honest, name, lambda task, write=write: solutions.written(task, write, ""), few)

    async def _keep(
        self,
        into: dict[str, PlayedTasks],
        name: str,
        player: Callable[[Task], Policy | None],
        tasks: Sequence[Task] | None = None,
    ) -> None:
        played = await self.play(player, self.tasks if tasks is None else tasks)
        if played is not None and played.rewards:
            into[name] = played

    async def _try_code(self) -> None:
        # A scorer that looks whether a formula may be evaluated counts the letters, with those of the right answer.
        task = min(self.tasks, key=lambda one: len(set(re.findall("[a-z]", " ".join(one.solution or ())))))
        before = len(self.raised)

        async def play(answer: str) -> bool:
            return await self.play(lambda _: in_order([answer]), [task]) is not None

        forms = list(dict.fromkeys((self.form, "", "\\boxed{X}")))
        self.executed = await answer_that_is_run(self.subject, task, forms, play)
        del self.raised[before:]

    async def _repeat(self) -> None:
        """Play the same actions several times."""
        tasks = sorted(self.tasks, key=lambda task: not task.solution)[:_FEW]  # `solve` may know only some
        for _ in range(_TIMES):
            played = await self.play(lambda task: oracle(task) or in_order(["yes"]), tasks)
            self.rounds += [list(played.episodes)] if played is not None else []

    async def again(self, name: str) -> PlayedTasks | None:
        """Play a rule on other starts than it was found on, four times as many; None if there is no such rule."""
        later = await find_tasks(self.subject, 10 * self.subject.episodes)
        rule = next((one for one in self.candidates if one.name == name), None)
        return None if rule is None else await self.play(rule.policy, later[2 * self.subject.episodes :])


async def search(subject: Subject) -> Search:
    """The search, made once for all checks. If it fails, the first check that needs it says why."""
    found = await subject.once(run_search)
    if found.error is not None:
        error, found.error = found.error, Skipped("The search failed: see the first check of the reward.")
        raise error
    return found


async def comparable(subject: Subject) -> Search:
    """The search, for a check that compares rewards with that of a right answer; it is skipped if none is known."""
    found = await search(subject)
    if unknown := found.why_unknown():
        raise Skipped(unknown)
    return found


async def run_search(subject: Subject) -> Search:
    """Search."""
    made = Search(subject)
    try:
        return await made.run(subject.seconds)
    except (InternalError, CannotPlay):
        raise
    except Exception as error:  # noqa: BLE001  (what an environment raises where it should not)
        made.error = error
        return made


def reward_bounds(subject: Subject) -> tuple[float, float] | None:
    """The lowest and highest reward of an episode, if the environment declares them and gives the rewards itself."""
    if subject.success_reward is not None:
        return -math.inf, subject.success_reward
    specs = subject.environment.each()
    if subject.reward_fn is not None or len(specs) > 1:
        return None
    return getattr(specs[0].load(), "reward_range", None)


def _end_at_once(played: PlayedTasks) -> bool:
    """Whether the episodes are one turn."""
    return all(len(one.actions) <= 1 and one.outcome is not Outcome.TURN_LIMIT for _, one in played.counted)
