"""The same episode, scored again, gets the same reward."""

from __future__ import annotations

import statistics

from turnsmith.check.finding import Check, Finding
from turnsmith.check.panel import ONLY_FAULTS, constant, convene, oracle, play_tasks
from turnsmith.check.subject import Subject

_TIMES = 5
_TOO_MUCH = 0.25
"""The standard deviation of one episode's rewards, as a share of what separates right from wrong."""


async def check_scorer_noise(subject: Subject) -> Finding:
    """Play the same actions five times from each of a few starts, and compare the rewards."""
    panel = await convene(subject)
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
    return Finding("failed" if spread > _TOO_MUCH * abs(span) else "warning", saw, fix, episodes)


SCORER_NOISE = Check(
    "scorer noise",
    "Plays and scores the same actions five times from a few starts.",
    "The episodes of a group are compared by their rewards; what chance adds to them is trained as if it were skill.",
    check_scorer_noise,
    audit=True,
)
