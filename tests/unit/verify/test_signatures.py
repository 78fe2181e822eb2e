"""What nobody without the user's key can change in a run folder: `runs verify` finds it, and proves nothing else."""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.verify.planted_violations import change_line
from tests.unit.verify.sample_history import Group, Plan, sample_episode, write_run, write_steps

from turnsmith.cli.main import main
from turnsmith.records.compaction import compact_episodes
from turnsmith.records.episode_files import episode_files
from turnsmith.records.episodes import write_episodes
from turnsmith.records.json_records import Metrics, parse_object
from turnsmith.records.json_text import restore_number, to_json
from turnsmith.records.rewind import rewind
from turnsmith.records.row_digests import row_digests
from turnsmith.records.run_folder import RunFolder
from turnsmith.records.signed_ledger import LedgerChain, digest_of, signed_end
from turnsmith.verify.run import verify_run

PLAN = Plan(steps=((Group(), Group(retries=(1, 0))),) * 4, evaluate_every=2)
LAST = "step-00000004"


@pytest.fixture(scope="module", autouse=True)
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("user")))
        yield patch


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory, keys: pytest.MonkeyPatch) -> RunFolder:
    return write_run(tmp_path_factory.mktemp("sound"), PLAN)


@pytest.fixture
def run(sound: RunFolder, tmp_path: Path) -> RunFolder:
    return RunFolder(Path(shutil.copytree(sound.path, tmp_path / "run")))


def found_in(run: RunFolder) -> dict[str, tuple[str, str]]:
    return {verdict.check: (verdict.status, verdict.detail) for verdict in verify_run(run).verdicts}


def violated(run: RunFolder) -> set[str]:
    return {check for check, (status, _) in found_in(run).items() if status == "violated"}


def edit_rows(file: Path, column: str, change: Callable[[Any], Any]) -> None:
    table = pq.read_table(file)
    rows = [{**row, column: change(row[column])} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)


def episodes_column(column: str, change: Callable[[Any], Any]) -> Callable[[RunFolder], None]:
    def edit(run: RunFolder) -> None:
        edit_rows(run.episodes_dir / "step-00000002-0.parquet", column, change)

    edit.__name__ = column
    return edit


def advantages(run: RunFolder) -> None:
    edit_rows(run.path / "trained" / "step-00000002.parquet", "advantages", lambda values: [-one for one in values])


def batch_gone(run: RunFolder) -> None:
    shutil.rmtree(run.path / "trained")


def loss(run: RunFolder) -> None:
    change_line(run, "metrics", 2, lambda line: line.update(policy_loss=0.5))


def decision_in_the_ledger(run: RunFolder) -> None:
    change_line(run, "ledger", 1, lambda line: line.update(note="nothing was lost"))


def settings_of_the_run(run: RunFolder) -> None:
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace("learning_rate:", "learning_rate: 9.0 #"))


def evaluated_episodes(run: RunFolder) -> None:
    edit_rows(run.path / "evaluations" / "step-00000002-eval.parquet", "actions", lambda texts: ["won" for _ in texts])


def ledger_gone(run: RunFolder) -> None:
    (run.path / "ledger.jsonl").unlink()


def signature_of_the_first_step_gone(run: RunFolder) -> None:
    change_line(run, "ledger", 1, lambda line: [{k: v for k, v in line.items() if k not in ("key", "signature")}])


def last_step_gone(run: RunFolder) -> None:
    for name in ("metrics", "ledger", "evaluations"):
        change_line(run, name, 4, lambda line: [])
    for file in run.path.glob(f"*/{LAST}*"):
        file.unlink()
    shutil.rmtree(run.checkpoints_dir / "global_step_4")
    (run.checkpoints_dir / "best.json").unlink()
    events = [event for event in run.read_events() if not str(event.get("content")).endswith("global_step_4")]
    ended = [{**event, "step": 3} if event["kind"] == "finished" else event for event in events]
    (run.path / "events.jsonl").write_text("".join(to_json(event) + "\n" for event in ended))


def last_step_gone_and_an_end_without_signature(run: RunFolder) -> None:
    last_step_gone(run)
    events = [{k: v for k, v in event.items() if k != "signature"} for event in run.read_events()]
    (run.path / "events.jsonl").write_text("".join(to_json(event) + "\n" for event in events))


@pytest.mark.parametrize(
    "change",
    [
        episodes_column("token_ids", lambda ids: [5 for _ in ids]),
        episodes_column("log_probs", lambda values: [value and -0.1 for value in values]),
        episodes_column("actions", lambda texts: ["I solved it" for _ in texts]),
        episodes_column("task", lambda _: '{"question": "easy"}'),
        episodes_column("messages", lambda _: [{"role": "user", "content": "hello"}]),
        advantages,
        batch_gone,
        loss,
        decision_in_the_ledger,
        settings_of_the_run,
        evaluated_episodes,
        ledger_gone,
        signature_of_the_first_step_gone,
        last_step_gone,
        last_step_gone_and_an_end_without_signature,
    ],
    ids=lambda change: change.__name__,
)
def test_a_change_that_fits_all_other_records_is_found_by_its_signature(
    run: RunFolder, change: Callable[[RunFolder], None]
) -> None:
    change(run)
    assert violated(run) == {"signatures"}


def remanifest(checkpoint: Path, step: int) -> None:
    """A manifest that fits the files, of somebody who does not have the key."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    manifest["step"] = step
    for name in manifest["files"]:
        content = (checkpoint / name).read_bytes()
        manifest["files"][name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def test_weights_with_another_bit_are_found_though_their_manifest_fits(run: RunFolder) -> None:
    checkpoint = run.checkpoints_dir / "global_step_4"
    weights = bytearray((checkpoint / "weights.bin").read_bytes())
    weights[50] ^= 1
    (checkpoint / "weights.bin").write_bytes(weights)
    remanifest(checkpoint, 4)
    assert violated(run) == {"checkpoints"}


def test_a_checkpoint_called_another_step_is_found(run: RunFolder) -> None:
    checkpoint = run.checkpoints_dir / "global_step_4"
    shutil.rmtree(checkpoint)
    shutil.copytree(run.checkpoints_dir / "global_step_3", checkpoint)
    (checkpoint / "trainer.json").write_text('{"step":4}\n')
    remanifest(checkpoint, 4)
    assert violated(run) == {"checkpoints"}


def test_a_checkpoint_that_the_ledger_does_not_have_is_unsigned_without_the_key(run: RunFolder) -> None:
    """As of a step that was saved only when the run failed: nothing tells then who wrote it."""
    checkpoint = run.checkpoints_dir / "global_step_4"
    remanifest(checkpoint, 4)
    lines = run.read_ledger()
    del lines[3]["files"]["checkpoint"]
    (run.path / "ledger.jsonl").write_text("".join(to_json(line) + "\n" for line in lines))
    (checkpoint / "manifest.json").write_text((checkpoint / "manifest.json").read_text().replace('"signature"', '"no"'))
    status, detail = found_in(run)["checkpoints"]
    assert (status, "unchanged" in detail) == ("unsigned", False)


@pytest.mark.parametrize("key", ["another user's", "none"])
def test_without_the_key_everything_is_unsigned_and_nothing_called_unchanged(
    run: RunFolder, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / ("file" if key == "none" else "other")))
    assert main(["runs", "verify", str(run.path)]) == 0
    printed = capsys.readouterr().out
    assert "unchanged" not in printed
    found = found_in(run)
    assert {check for check, (status, _) in found.items() if status == "unsigned"} == {"signatures", "checkpoints"}
    assert violated(run) == set()
    loss(run)  # digests that do not fit contradict each other, whoever wrote them
    assert violated(run) == {"signatures"}


def test_a_folder_from_before_signatures_can_be_read_and_is_unsigned(run: RunFolder) -> None:
    new = ("files", "key", "signature")
    for step in range(1, 5):
        change_line(run, "ledger", step, lambda line: [{k: v for k, v in line.items() if k not in new}])
    assert violated(run) == {"signatures"}, "the signed end of the run says that its ledger was signed"
    events = [{k: v for k, v in event.items() if k not in new} for event in run.read_events()]
    (run.path / "events.jsonl").write_text("".join(to_json(event) + "\n" for event in events))
    found = found_in(run)
    assert found["signatures"][0] == "unsigned"
    assert "4 of 4 steps (by an older turnsmith, or without a key)" in found["signatures"][1]
    assert found["checkpoints"] == ("ok", "2 signed and unchanged, the newest of step 4")
    assert violated(run) == set()


@pytest.mark.parametrize("last", [0, 1, 3])
def test_a_resume_goes_on_with_the_chain(last: int, tmp_path: Path) -> None:
    run = write_run(tmp_path, PLAN)
    compact_episodes(run.episodes_dir, 4, most=2)
    rewind(run, last)
    run.append_event("resumed", step=last)
    if last:
        assert found_in(run)["signatures"][0] == "ok"
    write_steps(run, PLAN, last + 1)
    run.append_event("finished", step=4, **signed_end(run, 4))
    assert found_in(run)["signatures"] == ("ok", "4 steps and the end of the run, signed with your key")
    assert violated(run) == set()


def test_a_run_that_goes_on_under_another_key_is_signed_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path, PLAN)
    rewind(run, 2)
    run.append_event("resumed", step=2)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "colleague"))
    write_steps(run, PLAN, 3)
    run.append_event("finished", step=4, **signed_end(run, 4))
    status, detail = found_in(run)["signatures"]
    assert (status, detail[:31]) == ("unsigned", "2 of 4 steps (not by your key):")
    change_line(run, "ledger", 2, lambda line: line.update(note="changed"))
    assert violated(run) == {"signatures"}, "the first line of the other key covers what was there before"


def test_a_run_without_an_end_says_that_later_steps_may_be_gone(run: RunFolder) -> None:
    (run.path / "events.jsonl").write_text("")
    assert "whether later steps were removed cannot be told" in found_in(run)["signatures"][1]


def test_a_line_of_another_run_does_not_fit(run: RunFolder, tmp_path: Path) -> None:
    other = write_run(tmp_path / "other", PLAN)
    first = (other.path / "ledger.jsonl").read_text().splitlines()[0]
    lines = (run.path / "ledger.jsonl").read_text().splitlines()
    (run.path / "ledger.jsonl").write_text("\n".join([first, *lines[1:]]) + "\n")
    assert "signatures" in violated(run)


@pytest.mark.nightly
def test_signing_a_step_takes_less_time_than_writing_it(tmp_path: Path) -> None:
    draw, run = random.Random(1), RunFolder.create(tmp_path, "run")
    episodes = [sample_episode(f"{number:08d}-0", 0, 0, turns=4) for number in range(256)]
    for episode in episodes:
        for _ in range(4):
            episode.tokens.append_model(draw.choices(range(150_000), k=320), [-draw.random() for _ in range(320)])
        episode.messages = [{"role": "assistant", "content": draw.randbytes(2500).hex()}]
    spent = {"write": 0.0, "sign": 0.0}
    for step in range(1, 6):
        began = time.process_time()
        write_episodes(run, step, episodes)
        between = time.process_time()
        LedgerChain(run).sign({"step": step}, {"step": step})
        spent["write"] += between - began
        spent["sign"] += time.process_time() - between
    assert spent["sign"] < spent["write"], spent


@settings(max_examples=8, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=4), st.integers(1, 4))
def test_rows_have_the_same_digest_in_files_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[int]], last: int
) -> None:

    run = RunFolder.create(tmp_path_factory.mktemp("rows"), "run")
    for step, parts in enumerate(steps, start=1):
        for part, count in enumerate(parts):
            rows = [sample_episode(f"{100 * step + 10 * part + n:08d}-0", 0, n % 2, turns=n) for n in range(count)]
            write_episodes(run, step, rows, part=str(part))
    before = dict(row_digests(episode_files(run)))
    assert len(set(before.values())) == len(before)
    compact_episodes(run.episodes_dir, len(steps), most=1)
    assert dict(row_digests(episode_files(run))) == before
    rewind(run, last)
    assert dict(row_digests(episode_files(run))) == {step: one for step, one in before.items() if step <= last}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), values, max_size=4))
def test_a_record_has_the_same_digest_before_it_is_written_and_after_it_was_read(record: dict[str, Any]) -> None:
    record = {**record, "step": 1}
    read = parse_object(to_json(record).encode(), Metrics, "metrics.jsonl")
    assert digest_of({name: restore_number(value) for name, value in read.items()}) == digest_of(record)


def test_a_digest_tells_numbers_apart_that_are_not_finite() -> None:
    assert len({digest_of({"loss": value}) for value in (math.nan, math.inf, -math.inf, 0.0, 0, None)}) == 6
