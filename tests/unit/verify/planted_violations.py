"""Violations of every kind, each planted in a sound run, with the check that must find it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from typing import Any

from turnsmith.records.advantages import StepAdvantages, read_advantages, write_advantages
from turnsmith.records.checkpoints import PendingCheckpoint, write_state
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.episode_report import report_of
from turnsmith.trajectory import Decision, Trajectory


def rewrite(run: RunFolder, step: int, change: Callable[[list[Trajectory]], object], place: int = -1) -> None:
    """Change the episodes in the last file of a step, or in another."""
    file = sorted(run.episodes_dir.glob(f"step-{step:08d}-*"))[place]
    rows = read_episodes(file)
    rows = change(rows) or rows
    write_episodes(run, step, rows, part=file.stem.rpartition("-")[2])


def change_line(run: RunFolder, file: str, step: int, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the line of a step in a `.jsonl` file; a change that returns a list replaces the line by it."""
    path = run.path / f"{file}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    new: list[Any] = []
    for line in lines:
        changed = change(line) if line["step"] == step else None
        new += changed if isinstance(changed, list) else [line]
    path.write_text("".join(json.dumps(line) + "\n" for line in new))


def trained_in(run: RunFolder, step: int) -> dict[str, Any]:
    return dict(read_advantages(run, step).advantages)


def write_trained(run: RunFolder, step: int, advantages: dict[str, Any]) -> None:
    write_advantages(run, step, StepAdvantages(advantages=advantages))


def trained_twice(run: RunFolder) -> None:
    write_trained(run, 2, trained_in(run, 2) | dict(list(trained_in(run, 1).items())[:1]))


def ended_twice(run: RunFolder) -> None:
    rewrite(run, 2, lambda rows: [*rows, read_episodes(run, step=1)[-1]])


def played_and_trained_twice(run: RunFolder) -> None:
    """All records of a later step say so: only the history knows."""
    again = read_episodes(run, step=1)[-1]
    ended_twice(run)
    write_trained(run, 2, trained_in(run, 2) | {again.episode_id: trained_in(run, 1)[again.episode_id]})
    sampled = sum(again.tokens.mask)

    def count(line: dict[str, Any]) -> None:
        for name in ("dispatched", "trained"):
            line[name] += 1
        line["decisions"]["kept"] += 1
        line["outcomes"]["completed"] += 1
        line["tokens"]["kept"] += sampled

    change_line(run, "ledger", 2, count)
    rows = [row for row in read_episodes(run, step=2) if row.decision is not Decision.RETRIED]
    change_line(run, "metrics", 2, lambda line: line.update(report_of(rows).metrics()))


def missing_episode(run: RunFolder) -> None:
    rewrite(run, 2, lambda rows: rows[:-1])


def missing_attempt(run: RunFolder) -> None:
    for file in run.episodes_dir.glob("step-00000001-*"):
        rows = [row for row in read_episodes(file) if row.decision is not Decision.RETRIED]
        write_episodes(run, 1, rows, part=file.stem.rpartition("-")[2])


def in_flight_forgotten(run: RunFolder) -> None:
    change_line(run, "ledger", 3, lambda line: line.update(carried=["00009999-0", *line["carried"][1:]]))


def no_outcome(run: RunFolder) -> None:
    rewrite(run, 2, lambda rows: setattr(rows[-1], "outcome", None))


def version_backwards(run: RunFolder) -> None:
    def change(rows: list[Trajectory]) -> None:
        turn = next(turn for row in rows for turn in row.turns if turn.swaps)
        turn.weights_version, turn.swaps = turn.swaps[0][1], ((turn.swaps[0][0], turn.weights_version),)

    rewrite(run, 4, change, place=0)


def swap_outside_its_turn(run: RunFolder) -> None:
    rewrite(run, 4, lambda rows: setattr(rows[-1].turns[0], "swaps", ((rows[-1].turns[0].stop + 1, 3),)))


def weights_too_old(run: RunFolder) -> None:
    rewrite(run, 4, lambda rows: setattr(rows[-1].turns[0], "weights_version", 1))


def weights_from_the_future(run: RunFolder) -> None:
    rewrite(run, 4, lambda rows: setattr(rows[-1].turns[-1], "weights_version", 4))


def batch_missing(run: RunFolder) -> None:
    (run.path / "trained" / "step-00000002.parquet").unlink()


def batch_with_a_stranger(run: RunFolder) -> None:
    write_trained(run, 2, trained_in(run, 2) | {"00009999-0": [0.5]})


def batch_without_one(run: RunFolder) -> None:
    write_trained(run, 2, dict(list(trained_in(run, 2).items())[1:]))


def advantages_cut(run: RunFolder) -> None:
    name, numbers = next(iter(trained_in(run, 2).items()))
    write_trained(run, 2, trained_in(run, 2) | {name: numbers[:-1]})


def advantage_of_a_context_token(run: RunFolder) -> None:
    name, numbers = next(iter(trained_in(run, 2).items()))
    write_trained(run, 2, trained_in(run, 2) | {name: [*numbers[:-1], 0.5]})


def ledger_total(name: str) -> Callable[[RunFolder], None]:
    def change(run: RunFolder) -> None:
        change_line(run, "ledger", 2, lambda line: line.update({name: line[name] + 1}))

    change.__name__ = f"ledger_{name}"
    return change


def ledger_count(name: str, kind: str) -> Callable[[RunFolder], None]:
    def change(run: RunFolder) -> None:
        change_line(run, "ledger", 2, lambda line: line[name].update({kind: line[name].get(kind, 0) + 1}))

    change.__name__ = f"ledger_{name}"
    return change


def ledger_line_missing(run: RunFolder) -> None:
    change_line(run, "ledger", 2, lambda line: [])


def ledger_line_twice(run: RunFolder) -> None:
    change_line(run, "ledger", 2, lambda line: [line, line])


def ledger_masked_for_trained(run: RunFolder) -> None:
    change_line(run, "ledger", 2, lambda line: line.update(masked=line["masked"] + 1, trained=line["trained"] - 1))


def carried_in_from_nowhere(run: RunFolder) -> None:
    """The line balances; only the step before knows that nothing was carried over."""
    change_line(
        run,
        "ledger",
        2,
        lambda line: line.update(carried_in=line["carried_in"] + 1, dispatched=line["dispatched"] - 1),
    )


def metric_changed(run: RunFolder) -> None:
    change_line(run, "metrics", 2, lambda line: line.update({"reward/mean": line["reward/mean"] + 0.01}))


def staleness_changed(run: RunFolder) -> None:
    change_line(run, "metrics", 2, lambda line: line.update({"staleness/max": 0.0}))


def metrics_line_missing(run: RunFolder) -> None:
    change_line(run, "metrics", 2, lambda line: [])


def metrics_line_twice(run: RunFolder) -> None:
    change_line(run, "metrics", 2, lambda line: [line, line])


def metrics_without_their_end(run: RunFolder) -> None:
    change_line(run, "metrics", 4, lambda line: [])


def first_metrics_missing(run: RunFolder) -> None:
    change_line(run, "metrics", 1, lambda line: [])


def evaluation_changed(run: RunFolder) -> None:
    change_line(run, "evaluations", 4, lambda line: line.update({"turns/mean": 9.0}))


def evaluation_episodes_missing(run: RunFolder) -> None:
    (run.path / "evaluations" / "step-00000002-eval.parquet").unlink()


def eval_metric_changed(run: RunFolder) -> None:
    change_line(run, "metrics", 4, lambda line: line.update({"eval/turns/mean": 9.0}))


def checkpoint_file_changed(run: RunFolder) -> None:
    (run.checkpoints_dir / "global_step_4" / "weights.bin").write_bytes(b"\0" * 100)


def checkpoint_file_missing(run: RunFolder) -> None:
    (run.checkpoints_dir / "global_step_4" / "weights.bin").unlink()


def newest_checkpoint_missing(run: RunFolder) -> None:
    (run.checkpoints_dir / "best.json").unlink()
    shutil.rmtree(run.checkpoints_dir / "global_step_4")


def checkpoint_of_an_unrecorded_step(run: RunFolder) -> None:
    pending = PendingCheckpoint(run.checkpoints_dir, 7)
    write_state(pending.path, {"step": 7})
    pending.seal()
    pending.commit()


def checkpoint_of_another_step(run: RunFolder) -> None:
    pending = PendingCheckpoint(run.checkpoints_dir, 4)
    write_state(pending.path, {"step": 3})
    pending.seal()
    pending.commit()


def best_without_checkpoint(run: RunFolder) -> None:
    (run.checkpoints_dir / "best.json").write_text('{"step": 2, "metric": "eval/reward/mean", "value": 9.0}')


def best_of_another_value(run: RunFolder) -> None:
    (run.checkpoints_dir / "best.json").write_text('{"step": 4, "metric": "eval/reward/mean", "value": 9.0}')


def better_than_the_best(run: RunFolder) -> None:
    best = run.read_evaluations()[-1]
    run.append_evaluation({**best, "step": 3, "reward/mean": best["reward/mean"] + 1.0})


def damaged_episodes(run: RunFolder) -> None:
    next(run.episodes_dir.glob("step-00000002-*")).write_bytes(b"PAR1 nothing")


def damaged_line(run: RunFolder) -> None:
    path = run.path / "ledger.jsonl"
    path.write_text(path.read_text().replace('"step":2', '"step":"two"'))


def damaged_settings(run: RunFolder) -> None:
    (run.path / "config.yaml").write_text("training: {max_staleness: many}")


def rows_in_another_file(run: RunFolder) -> None:
    file = sorted(run.episodes_dir.glob("step-00000002-*"))[-1]
    file.rename(file.with_name("step-00000003-9.parquet"))


PLANTED: list[tuple[str, Callable[[RunFolder], None]]] = [
    ("batches", trained_twice),
    ("episodes", ended_twice),
    ("episodes", played_and_trained_twice),
    ("batches", played_and_trained_twice),
    ("episodes", missing_episode),
    ("ledger", missing_episode),
    ("batches", missing_episode),
    ("episodes", missing_attempt),
    ("ledger", missing_attempt),
    ("episodes", in_flight_forgotten),
    ("episodes", no_outcome),
    ("versions", version_backwards),
    ("versions", swap_outside_its_turn),
    ("versions", weights_too_old),
    ("versions", weights_from_the_future),
    ("batches", batch_missing),
    ("batches", batch_with_a_stranger),
    ("batches", batch_without_one),
    ("batches", advantages_cut),
    ("batches", advantage_of_a_context_token),
    *(("ledger", ledger_total(name)) for name in ("dispatched", "trained", "masked", "dropped", "carried_in")),
    ("ledger", ledger_count("outcomes", "completed")),
    ("ledger", ledger_count("decisions", "kept")),
    ("ledger", ledger_count("tokens", "kept")),
    ("ledger", ledger_count("given_up", "time_limit")),
    ("ledger", ledger_line_missing),
    ("ledger", ledger_line_twice),
    ("ledger", ledger_masked_for_trained),
    ("ledger", carried_in_from_nowhere),
    ("metrics", metric_changed),
    ("metrics", staleness_changed),
    ("metrics", metrics_line_missing),
    ("metrics", metrics_line_twice),
    ("metrics", metrics_without_their_end),
    ("checkpoints", metrics_without_their_end),
    ("metrics", first_metrics_missing),
    ("metrics", evaluation_changed),
    ("metrics", evaluation_episodes_missing),
    ("metrics", eval_metric_changed),
    ("checkpoints", checkpoint_file_changed),
    ("checkpoints", checkpoint_file_missing),
    ("checkpoints", newest_checkpoint_missing),
    ("checkpoints", checkpoint_of_an_unrecorded_step),
    ("checkpoints", checkpoint_of_another_step),
    ("checkpoints", best_without_checkpoint),
    ("checkpoints", best_of_another_value),
    ("checkpoints", better_than_the_best),
    ("files", damaged_episodes),
    ("files", damaged_line),
    ("files", damaged_settings),
    ("files", rows_in_another_file),
]
