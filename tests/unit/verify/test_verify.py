"""`turnsmith runs verify`: a sound run passes whatever happened in it, and each kind of violation is found."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.verify.planted_violations import PLANTED, change_line, rewrite, trained_twice, write_trained
from tests.unit.verify.sample_history import GROUP_SIZE, Group, Plan, sample_episode, write_run

from turnsmith.cli.main import main
from turnsmith.records.compaction import compact_episodes
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.rewind import rewind
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.episode_report import report_of
from turnsmith.trajectory import Decision, Trajectory
from turnsmith.verify.run import Verification, verify_run

KEPT, MASKED, DROPPED, PENALISED = Decision.KEPT, Decision.MASKED, Decision.DROPPED, Decision.PENALISED
ASYNC = Plan(
    steps=(
        (Group(delay=1), Group(retries=(1, 0)), Group()),
        (Group(), Group(delay=1, decisions=(KEPT, MASKED))),
        (Group(delay=2), Group(decisions=(DROPPED, KEPT)), Group(is_lost=True)),
        (Group(), Group(delay=1)),
    ),
    max_staleness=1,
    evaluate_every=2,
)


def statuses(verification: Verification) -> dict[str, str]:
    return {verdict.check: verdict.status for verdict in verification.verdicts}


def detail(verification: Verification, check: str) -> str:
    return next(verdict.detail for verdict in verification.verdicts if verdict.check == check)


def groups(most_delay: int) -> st.SearchStrategy[Group]:
    decision = st.sampled_from([KEPT, KEPT, KEPT, MASKED, DROPPED, PENALISED, Decision.FILTERED])
    pair = st.tuples(decision, decision)
    small = st.tuples(st.integers(0, 2), st.integers(0, 2))
    turns = st.tuples(st.integers(1, 3), st.integers(1, 3))
    return st.builds(Group, st.integers(0, most_delay), pair, small, turns, st.booleans())


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    staleness = draw(st.integers(0, 2))
    # At least one group that ends at once and is trained on: a step without any stops a run.
    step = st.lists(groups(staleness), max_size=2).map(lambda more: (Group(), *more))
    steps = draw(st.lists(step, min_size=1, max_size=4).map(tuple))
    return Plan(steps, staleness, draw(st.integers(0, 2)), save=draw(st.booleans()), finish=draw(st.booleans()))


@settings(max_examples=15, deadline=None)
@given(plans())
def test_a_sound_run_passes_whatever_happened_in_it(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), plan)
        found = verify_run(run)
        assert found.violations == []
        expected = dict.fromkeys(("files", "episodes", "batches", "versions", "ledger", "metrics", "signatures"), "ok")
        assert statuses(found) == expected | {"checkpoints": "ok" if plan.save else "not recorded"}


@settings(max_examples=15, deadline=None)
@given(plans(), st.data())
def test_no_row_of_any_run_can_be_lost_or_doubled(plan: Plan, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), replace(plan, save=False))
        file = data.draw(st.sampled_from(sorted(run.episodes_dir.glob("*.parquet"))))
        rows = read_episodes(file)
        row = data.draw(st.integers(0, len(rows) - 1))
        changed = data.draw(st.sampled_from([rows[:row] + rows[row + 1 :], [*rows, rows[row]]]))
        _, step, part = file.stem.split("-")
        write_episodes(run, int(step), changed, part=part)
        assert verify_run(run).violations != []


# Each of these changes one record of the run ASYNC, and names the check that must find it.


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    run = write_run(tmp_path_factory.mktemp("sound"), ASYNC)
    assert verify_run(run).violations == []
    return run


@pytest.mark.parametrize(("check", "plant"), PLANTED, ids=[f"{name}-{one.__name__}" for name, one in PLANTED])
def test_a_planted_violation_is_found(
    sound: RunFolder, tmp_path: Path, check: str, plant: Callable[[RunFolder], None]
) -> None:
    copy = RunFolder(Path(shutil.copytree(sound.path, tmp_path / "run")))
    plant(copy)
    assert statuses(verify_run(copy))[check] == "violated"


@pytest.mark.parametrize(("branches", "status"), [((0, 1), "ok"), ((0, 0), "violated")])
def test_turns_at_the_same_time_may_both_get_new_weights(
    sound: RunFolder, tmp_path: Path, branches: tuple[int, int], status: str
) -> None:
    copy = RunFolder(Path(shutil.copytree(sound.path, tmp_path / "run")))

    def repeat_last_turn(rows: list[Trajectory]) -> None:
        episode = next(row for row in rows if row.turns[-1].swaps)
        episode.branches.append(episode.tokens)
        episode.turns[-1:] = [replace(episode.turns[-1], branch=branch) for branch in branches]
        lists: list[list[Any]] = [episode.states, episode.actions, episode.rewards, episode.dones, episode.infos]
        for each in lists:
            each.append(each[-1])

    rewrite(copy, 4, repeat_last_turn, place=0)
    found = statuses(verify_run(copy))
    assert (found["files"], found["versions"]) == ("ok", status)


def test_a_batch_with_an_episode_twice_is_damaged(sound: RunFolder, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    copy = RunFolder(Path(shutil.copytree(sound.path, tmp_path / "run")))
    file = copy.path / "trained" / "step-00000002.parquet"
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), file)
    assert statuses(verify_run(copy))["files"] == "violated"


def test_what_is_not_recorded_is_not_called_ok(tmp_path: Path) -> None:
    plan = Plan(missing=frozenset({"trained", "ledger", "config"}), save=False)
    found = statuses(verify_run(write_run(tmp_path, plan)))
    assert {check: found[check] for check in ("batches", "ledger", "versions", "checkpoints")} == dict.fromkeys(
        ("batches", "ledger", "versions", "checkpoints"), "not recorded"
    )
    bare = verify_run(RunFolder.create(tmp_path, "bare"))
    assert {status for check, status in statuses(bare).items() if check != "files"} == {"not recorded"}


def test_an_interrupted_step_is_not_counted_and_a_resumed_run_passes(tmp_path: Path) -> None:
    run = write_run(tmp_path, replace(ASYNC, finish=False))
    stray = sample_episode("00000900-0", 4, 4)
    write_episodes(run, 5, [stray])
    write_trained(run, 5, {})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "rew')
    found = verify_run(run)
    assert found.violations == []
    assert "step 5 was not finished" in detail(found, "episodes")
    rewind(run, 3)
    run.append_event("resumed", step=3)
    found = verify_run(run)
    assert (found.violations, found.steps) == ([], 3)


def test_steps_made_again_from_a_loaded_checkpoint_are_no_violation(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    lines = {name: (run.path / f"{name}.jsonl").read_text().splitlines() for name in ("metrics", "ledger")}
    for name, old in lines.items():
        (run.path / f"{name}.jsonl").write_text("\n".join([*old, *old[1:]]) + "\n")
    assert statuses(verify_run(run))["metrics"] == "violated"
    run.append_event("loaded", step=1)
    assert verify_run(run).violations == []


def test_a_run_that_was_finished_twice_ends_where_it_was_finished_last(tmp_path: Path) -> None:
    run = write_run(tmp_path, replace(ASYNC, finish=False))
    run.append_event("finished", step=2)
    run.append_event("resumed", step=2)
    run.append_event("finished", step=4)
    assert statuses(verify_run(run))["metrics"] == "ok"
    run.append_event("finished", step=3)
    assert statuses(verify_run(run))["metrics"] == "violated"


def test_a_limit_that_was_changed_on_resuming_is_not_held_against_earlier_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path, replace(ASYNC, finish=False))
    run.append_event("resumed", step=4, overrides=["training.max_staleness=0"])
    config = (run.path / "config.yaml").read_text()
    (run.path / "config.yaml").write_text(config.replace("max_staleness: 1", "max_staleness: 0"))
    found = verify_run(run)
    assert found.violations == []
    assert "not recorded" in detail(found, "versions")


def test_merged_episode_files_are_the_same(tmp_path: Path) -> None:
    run = write_run(tmp_path, ASYNC)
    before = verify_run(run).as_dict()
    compact_episodes(run.episodes_dir, 4, most=2)
    assert [file.name for file in run.episodes_dir.iterdir()] == ["steps-00000001-00000004.parquet"]
    assert verify_run(run).as_dict() == before


def test_an_evaluation_is_compared_with_its_episodes(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "eval")
    run.append_event("evaluation", episodes=2)
    episodes = [sample_episode(f"{n:08d}-0", 0, 0) for n in range(2)]
    write_episodes(run, 0, episodes, part="eval")
    run.append_metrics({"step": 0, **report_of(episodes).metrics(), "success/mean": 0.5})
    found = statuses(verify_run(run))
    assert (found["episodes"], found["metrics"], found["batches"]) == ("ok", "ok", "not recorded")
    write_episodes(run, 0, episodes[:1], part="eval")
    assert statuses(verify_run(run))["metrics"] == "violated"


def test_text_of_a_run_stays_on_its_line_and_does_not_act_on_the_terminal(
    sound: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunFolder(Path(shutil.copytree(sound.path, tmp_path / "run")))
    change_line(copy, "ledger", 3, lambda line: line.update(carried=["a\nfiles ok\x1b[2J", *line["carried"][1:]]))
    rewrite(copy, 4, lambda rows: setattr(rows[-1], "infos", [{"tool_calls": 3}]))
    assert main(["runs", "verify", str(copy.path)]) == 1
    printed = capsys.readouterr().out
    assert "never ended: a files ok" in printed
    assert "\x1b" not in printed
    assert "tool calls in the infos of its episodes are damaged" in printed


def test_the_command_has_a_table_json_and_an_exit_status(
    sound: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", "verify", str(sound.path)]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "files        ok            every file can be read",
        f"episodes     ok            {9 * GROUP_SIZE} ended, each once and in one outcome, 2 still in flight",
    ]
    copy = shutil.copytree(sound.path, tmp_path / "run")
    trained_twice(RunFolder(copy))
    assert main(["runs", "verify", str(copy), "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["checks"]["batches"]["violations"][0]["step"] == 2
    assert main(["runs", "verify"]) == 2
    assert main(["runs", str(tmp_path), "--json"]) == 0
