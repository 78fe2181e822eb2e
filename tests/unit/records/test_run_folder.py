import errno
import fcntl
import json
import math
import multiprocessing
import os
import stat
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from turnsmith.config import ConfigStore
from turnsmith.config_sources import load, to_dict
from turnsmith.errors import RecordError
from turnsmith.records.files import append_line, atomic_write, flush_folder, remove_temporary
from turnsmith.records.json_records import Metrics, parse_lines
from turnsmith.records.json_text import to_json
from turnsmith.records.run_folder import RunFolder


def test_a_new_run_has_its_folders_and_opens_again(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "deep" / "runs", "guess")
    assert run.episodes_dir.is_dir()
    assert run.checkpoints_dir.is_dir()
    assert RunFolder.open(run.path) == run
    assert run.name == "guess"


def test_a_new_run_is_nobody_elses(tmp_path: Path) -> None:
    assert stat.S_IMODE(RunFolder.create(tmp_path, "run").path.stat().st_mode) == 0o700


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    assert [RunFolder.create(tmp_path, "guess").name for _ in range(3)] == ["guess", "guess-2", "guess-3"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_name_that_is_not_one_folder_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecordError, match="is not a valid run name"):
        RunFolder.create(tmp_path, name)


def test_opening_what_is_not_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="There is no run folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RecordError, match=r"it has no run\.json"):
        RunFolder.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(RecordError, match="is damaged"):
        RunFolder.open(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 1}')
    assert RunFolder.open(tmp_path).path == tmp_path, "folders of format 1 exist"
    (tmp_path / "run.json").write_text('{"format": 2}')
    with pytest.raises(RecordError, match="has run format 2, but this turnsmith reads up to 1"):
        RunFolder.open(tmp_path)


def test_a_parent_that_is_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="Cannot create the run folder"):
        RunFolder.create(tmp_path / "file", "guess")


def test_the_config_is_saved_as_yaml_that_loads(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    run.write_config(to_dict(ConfigStore()))
    run.write_verl_config("trainer: {}")
    assert load(run.path / "config.yaml") == ConfigStore()
    assert (run.path / "verl.yaml").read_text() == "trainer: {}\n"


def test_metrics_come_back_and_stay_strict_json(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    run.append_metrics({"step": 1, "kl": math.nan, "grad_norm": math.inf, "name": "x"})
    run.append_metrics({"step": 2, "kl": 0.1})
    first, second = run.read_metrics()
    assert math.isnan(first["kl"])
    assert first["grad_norm"] == math.inf
    assert second == {"step": 2, "kl": 0.1}

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for line in (run.path / "metrics.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_an_unfinished_last_line_is_left_out_and_overwritten(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    run.append_metrics({"step": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    assert run.read_metrics() == [{"step": 1}]
    run.append_metrics({"step": 2})
    assert run.read_metrics() == [{"step": 1}, {"step": 2}]


def test_a_file_of_one_unfinished_line_starts_over(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    (run.path / "metrics.jsonl").write_text("x" * 200_000)
    run.append_metrics({"step": 1})
    assert run.read_metrics() == [{"step": 1}]


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    (run.path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(RecordError, match=r"Line 2 of .*metrics\.jsonl is damaged"):
        run.read_metrics()


@pytest.mark.parametrize("bad", [b"{", b"[1]", b"\xff\xfe", b"\0" * 4096])
def test_a_damaged_event_hides_no_other(tmp_path: Path, bad: bytes) -> None:
    run = RunFolder.create(tmp_path, "guess")
    run.append_event("starting")
    with (run.path / "events.jsonl").open("ab") as file:
        file.write(bad + b"\n")
    run.append_event("finished")
    assert [event["kind"] for event in run.read_events()] == ["starting", "finished"]


def test_evaluations_and_ledger_come_back(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    run.append_evaluation({"step": 2, "reward/mean": math.inf})
    run.append_ledger({"step": 1, "kept": 8})
    assert run.read_evaluations() == [{"step": 2, "reward/mean": math.inf}]
    assert run.read_ledger() == [{"step": 1, "kept": 8}]
    assert sorted(file.name for file in tmp_path.glob("guess/*.jsonl")) == ["evaluations.jsonl", "ledger.jsonl"]


def test_events_have_a_kind_and_a_time(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    run.append_event("checkpoint", step=3, path=tmp_path)
    (event,) = run.read_events()
    assert event["kind"] == "checkpoint"
    assert event["step"] == 3
    assert event["path"] == str(tmp_path)
    assert event["time"] > 1.7e9
    assert run.read_metrics() == []


@pytest.mark.parametrize(
    ("field", "largest"), [("pid", 2**31 - 1), ("step", 2**53), ("born", 2**53)], ids=["pid", "step", "born"]
)
def test_an_event_with_a_number_that_no_process_or_counter_has_is_left_out(
    tmp_path: Path, field: str, largest: int
) -> None:
    run = RunFolder.create(tmp_path, "guess")
    for number in (0, largest, largest + 1, -1):
        run.append_event("starting", **{field: number})
    assert [event[field] for event in run.read_events()] == [0, largest]


def test_a_damaged_line_is_an_error_unless_it_may_be_left_out() -> None:
    lines = b'{"step": 1}\n{"step": -1}\n{"step": 2}\n'
    with pytest.raises(RecordError, match=r"^Line 2 of some\.jsonl is damaged"):
        parse_lines(lines, Metrics, "some.jsonl")
    assert parse_lines(lines, Metrics, "some.jsonl", skip_damaged=True) == [{"step": 1}, {"step": 2}]


def test_a_run_is_created_at_a_time_that_a_calendar_has(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    for created, is_good in ((0, True), (253402300799, True), (253402300800, False), (-1, False)):
        (run.path / "run.json").write_text(f'{{"format": 1, "created": {created}}}')
        with nullcontext() if is_good else pytest.raises(RecordError, match=r"run\.json is damaged"):
            RunFolder.open(run.path)


def test_a_failed_attempt_is_all_that_a_ledger_must_say_of_an_episode(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    episode = {"episode": "e", "decision": "masked", "attempts": [["engine_failed", 0, 1.5]]}
    run.append_ledger({"step": 1, "episodes": [episode]})
    assert run.read_ledger() == [{"step": 1, "episodes": [episode]}]
    run.append_ledger({"step": 2, "episodes": [{**episode, "attempts": []}]})
    with pytest.raises(RecordError, match=r"Line 2 of .*ledger\.jsonl is damaged"):
        run.read_ledger()


@pytest.mark.parametrize(("code", "is_raised"), [(errno.EIO, True), (errno.EINVAL, False), (errno.ENOTSUP, False)])
def test_a_folder_that_cannot_be_flushed_is_an_error_unless_its_file_system_never_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_raised: bool
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(code)) if is_raised else nullcontext():
        flush_folder(tmp_path)


def _append(path: Path, worker: int) -> None:
    run = RunFolder.open(path)
    for index in range(50):
        run.append_event("tick", worker=worker, index=index, padding="x" * 5000)


def test_processes_can_append_at_the_same_time(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "guess")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append, args=(run.path, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len({(event["worker"], event["index"]) for event in run.read_events()}) == 200


def test_what_another_process_has_deleted_meanwhile_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = Path.unlink

    def unlink_late(path: Path, missing_ok: bool = False) -> None:
        unlink(path)
        unlink(path, missing_ok)

    leftover = tmp_path / ".run.json.17.tmp"
    leftover.write_bytes(b"half")
    monkeypatch.setattr(Path, "unlink", unlink_late)
    remove_temporary(tmp_path)
    assert not leftover.exists()


def test_appending_waits_for_the_lock_of_another_writer(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    with path.open("ab") as other_writer:
        fcntl.flock(other_writer, fcntl.LOCK_EX)
        appending = threading.Thread(target=append_line, args=(path, "mine"))
        appending.start()
        appending.join(0.3)
        assert path.read_bytes() == b""
        other_writer.write(b"theirs\n")
    appending.join(30)
    assert path.read_bytes() == b"theirs\nmine\n"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(target) as temporary:
        temporary.write_text("half \ud800", encoding="utf-8")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert target.read_text() == "old"


def test_to_json_accepts_any_object() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError

    class Tensor:
        def tolist(self) -> list[float]:
            return [1.0, math.nan]

    loop: list[object] = []
    loop.append(loop)
    numbers = {"large": 10**4000, "huge": -(10**5000)}
    text = to_json({("a", 1): Broken(), "t": Tensor(), "half": "\ud800", "loop": loop, "type": Tensor, **numbers})
    read = json.loads(text)
    assert (read["large"], int(read["huge"], 16)) == tuple(numbers.values())
    assert read["('a', 1)"] == "<Broken>"
    assert read["t"] == [1.0, "NaN"]
    assert read["half"] == "\ufffd"


def test_a_line_is_appended_without_reading_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    append_line(path, "one")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", lambda path: pytest.fail("a run with many steps would take ever longer"))
        append_line(path, "two")
    assert path.read_text() == "one\ntwo\n"
