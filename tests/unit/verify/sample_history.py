"""Run folders as training writes them, without a model: with the real ledger, writers and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.records.advantages import StepAdvantages, write_advantages
from turnsmith.records.checkpoints import PendingCheckpoint, mark_best, prune, write_state
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.signed_ledger import LedgerChain, signed_end
from turnsmith.rollout.episode_groups import episode_name, settle_groups
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.ledger import Ledger, LedgerEntry
from turnsmith.rollout.retry import EpisodeResult
from turnsmith.trajectory import Decision, Outcome, Trajectory, TurnRecord

GROUP_SIZE = 2


@dataclass(frozen=True)
class Group:
    """One group of a sample run: how many steps it takes, and what becomes of each of its episodes."""

    delay: int = 0
    decisions: tuple[Decision, ...] = (Decision.KEPT, Decision.KEPT)
    retries: tuple[int, ...] = (0, 0)
    turns: tuple[int, ...] = (1, 2)
    is_lost: bool = False
    """Whether the process that ran it died once."""


@dataclass(frozen=True)
class Plan:
    """The groups that each step dispatches."""

    steps: tuple[tuple[Group, ...], ...] = ((Group(), Group()),) * 3
    max_staleness: int = 0
    evaluate_every: int = 0
    save: bool = True
    finish: bool = True
    missing: frozenset[str] = field(default_factory=frozenset[str])
    """What is not recorded: `trained`, `ledger`, `config`."""


def sample_episode(
    name: str, first: int, last: int, decision: Decision = Decision.KEPT, *, turns: int = 1, attempt: int = 0
) -> Trajectory:
    """An episode whose weights get newer from version `first` to `last`, in the middle of its last turn."""
    fault = decision in (Decision.MASKED, Decision.DROPPED, Decision.RETRIED)
    outcome = Outcome.ENVIRONMENT_FAILED if fault else Outcome.COMPLETED
    episode = Trajectory(episode_id=name, group_id=str(int(name[:8])), outcome=outcome, decision=decision)
    episode.attempt = attempt
    episode.tokens.open([1, 2])
    for turn in range(turns):
        start, stop = episode.tokens.append_model([3, 4, 5], [-0.5, -0.25, -1.0])
        episode.tokens.append_context([6])
        swaps = ((start + 1, last),) if turn == turns - 1 and last > first else ()
        episode.turns.append(TurnRecord(start, stop, "stop", first, swaps=swaps))
        episode.actions.append("go")
        episode.states.append("here")
        episode.rewards.append(float(int(name[:8]) % 3) + turn)
        episode.dones.append(turn == turns - 1)
        episode.infos.append({})
    return episode


def write_run(parent: Path, plan: Plan | None = None) -> RunFolder:
    """Write the folder of a run that went as planned."""
    plan = plan or Plan()
    run = RunFolder.create(parent, "run")
    config = ConfigStore()
    if plan.max_staleness:
        config.training.schedule, config.training.max_staleness = "colocate_async", plan.max_staleness
    config.checkpoint.save_interval = int(plan.save)
    if "config" not in plan.missing:
        run.write_config(to_dict(config))
    (run.path / "resume.json").write_text(f'{{"steps": {len(plan.steps)}}}')
    run.append_event("training", steps=len(plan.steps))
    write_steps(run, plan)
    if plan.finish:
        run.append_event("finished", step=len(plan.steps), **signed_end(run, len(plan.steps)))
    return run


def write_steps(run: RunFolder, plan: Plan, first: int = 1) -> None:
    """Write the steps of a run from the `first` on; before a later one, no episode may be under way."""
    ledger = Ledger(may_carry=plan.max_staleness > 0)
    flight: dict[str, tuple[int, Group]] = {}
    for step, groups in enumerate(plan.steps[first - 1 :], start=first):
        for place, group in enumerate(groups):
            uid = f"{100 * step + place:08d}"
            flight[uid] = (step, group)
            names = [episode_name(uid, number) for number in range(GROUP_SIZE)]
            ledger.dispatch(names)
            if group.is_lost:
                ledger.lose(names, 0.5)
        done = [uid for uid, (begun, group) in flight.items() if begun + min(group.delay, plan.max_staleness) <= step]
        _write_step(run, plan, step, {uid: flight.pop(uid) for uid in done}, ledger)


def _write_step(run: RunFolder, plan: Plan, step: int, groups: dict[str, tuple[int, Group]], ledger: Ledger) -> None:
    results = [_play(uid, begun, step, group, n) for uid, (begun, group) in groups.items() for n in range(GROUP_SIZE)]
    settle_groups(results)
    half = len(results) // 2
    for part, some in enumerate((results[:half], results[half:])):
        if some:
            write_episodes(run, step, [one for result in some for one in result.attempts], part=str(part))
    ledger.end([LedgerEntry.of(result) for result in results])
    final = [result.trajectory for result in results]
    batch = [episode for episode in final if episode.decision.is_counted]
    line = ledger.close(step, [episode.episode_id for episode in batch]).as_dict()
    if "trained" not in plan.missing:
        rows: dict[str, Sequence[float]] = {
            one.episode_id: [0.5 * flag for flag in one.tokens.mask[one.tokens.prompt_length :]] for one in batch
        }
        write_advantages(run, step, StepAdvantages(advantages=rows))
    record = {"step": step, **report_of(final).metrics()}
    if batch:
        record["staleness/max"] = float(step - 1 - min(one.turns[0].weights_version for one in batch))
    evaluation = _evaluate(run, step) if plan.evaluate_every and step % plan.evaluate_every == 0 else {}
    record |= {f"eval/{name}": value for name, value in evaluation.items()}
    pending = _saved(run, step) if plan.save else None
    if "ledger" not in plan.missing:
        run.append_ledger(LedgerChain(run).sign(line, record, pending and pending.path))
    run.append_metrics(record)
    if evaluation:
        run.append_evaluation({"step": step, **evaluation})
    if pending is not None:
        run.append_event("checkpoint", content=str(pending.commit()))
        if evaluation:
            mark_best(run.checkpoints_dir, step, evaluation["reward/mean"], "eval/reward/mean")
        prune(run.checkpoints_dir, 2, step)


def _play(uid: str, begun: int, step: int, group: Group, number: int) -> EpisodeResult:
    name, retries = episode_name(uid, number), group.retries[number]
    versions = (begun - 1, step - 1)
    given_up = [
        sample_episode(f"{name}-try{one + 1}", *versions, Decision.RETRIED, attempt=one) for one in range(retries)
    ]
    last = sample_episode(name, *versions, group.decisions[number], turns=group.turns[number], attempt=retries)
    return EpisodeResult(last, given_up)


def _evaluate(run: RunFolder, step: int) -> dict[str, float]:
    episodes = [sample_episode(f"{900 + step + n:08d}-0", step, step) for n in range(2)]
    write_episodes(run, step, episodes, part="eval", subfolder="evaluations")
    return report_of(episodes).metrics()


def _saved(run: RunFolder, step: int) -> PendingCheckpoint:
    pending = PendingCheckpoint(run.checkpoints_dir, step)
    write_state(pending.path, {"step": step})
    (pending.path / "actor").mkdir()
    (pending.path / "actor" / "fsdp_config.json").write_text('{"world_size": 1}')
    (pending.path / "weights.bin").write_bytes(bytes([step]) * 100)
    pending.seal()
    return pending
