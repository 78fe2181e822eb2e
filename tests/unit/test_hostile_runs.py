"""Run folders of somebody else, and bytes from another machine: an answer or one error in words, and never a traceback.

The long runs over the same targets are `python -m tests.fuzz.run_readers`, every night.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.fuzz.make_corpus import episode
from tests.fuzz.mutants import VALUES, parquet
from tests.fuzz.readers import CORPUS, FILES, SAMPLE, TARGETS, MemoryRun, read_files, sample_files
from tests.fuzz.run_readers import run_target

import turnsmith.cli
from turnsmith.cli.eval_view import EvaluationView
from turnsmith.cli.main import main
from turnsmith.errors import RecordError
from turnsmith.records.advantages import StepAdvantages, read_advantages, write_advantages
from turnsmith.records.episodes import read_episode_file, read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trajectory import Outcome
from turnsmith.viewer import report_html
from turnsmith.viewer.run_view import read_run
from turnsmith.viewer.summary import list_runs, show_run

EVIL = "a\x1b]0;pwned\x07\x1b]52;c;cHduZWQ=\x07\x1b[2J\x9b31m\u202eevil\x00\rb\x7f"
ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]")


def hostile_run(parent: Path, name: str = "run") -> RunFolder:
    """A run whose every name and text has escape sequences in it."""
    run = RunFolder.create(parent, name)
    run.append_metrics({"step": 1, "grad_norm": 0.0, f"episodes/{EVIL}": 1, "episodes/total": 1, f"tools/{EVIL}": 2})
    attempts = {"episode": EVIL, "decision": "masked", "attempts": [[EVIL, 3, 1.0]], "error": EVIL}
    run.append_ledger({"step": 1, "dispatched": 1, "masked": 1, "outcomes": {EVIL: 1}, "episodes": [attempts]})
    warning = {"name": "zero_gradient", "step": 1, "what": EVIL, "why": EVIL, "advice": EVIL, "episodes": [EVIL]}
    run.append_event("warning", content=warning)
    run.append_event("failed", content=EVIL)
    run.write_config({"model": {"model_name": EVIL}, "training": {"adv_estimator": EVIL}})
    (run.path / "resume.json").write_text(json.dumps({"environment": f"a:{EVIL}", "steps": 5}))
    return run


@pytest.mark.parametrize("words", [["{runs}"], ["show", "{run}"], ["show", "{runs}/no\x1b[2Jsuch"]])
def test_no_text_of_a_run_acts_on_the_terminal(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = hostile_run(tmp_path)
    shutil.copytree(run.path, tmp_path / f"name\n{EVIL.replace(chr(0), '')}")
    main(["runs", *(word.format(runs=tmp_path, run=run.path) for word in words)])
    said = capsys.readouterr()
    assert "\ufffd" in said.out + said.err, "what was taken out can be seen"
    assert not ACTIVE.findall(said.out + said.err)


def test_a_name_with_line_ends_is_one_line_of_the_list(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    shutil.copytree(run.path, tmp_path / "two\nlines")
    assert len(list_runs(tmp_path).split("\n")) == 3


@pytest.mark.parametrize("live", [True, False])
def test_no_error_of_an_environment_acts_on_the_terminal_in_eval(live: bool) -> None:
    plan, out = EvaluationPlan(episodes=1), io.StringIO()
    failed = episode()
    failed.outcome, failed.error = Outcome.ENVIRONMENT_FAILED, f"cannot parse {EVIL}"
    with EvaluationView(plan, f"header {EVIL}", out, live=live) as view:
        view.start()
        view.add(failed)
        view.finish(view.result(), folder=EVIL)
    own = re.sub(r"\x1b\[(\?25[lh]|[0-9;]*[mAK])", "", out.getvalue().replace("\r", ""))  # colours and the cursor, ours
    assert "cannot parse" in own
    assert not ACTIVE.findall(own)


def test_commands_print_only_through_the_one_function_that_makes_text_harmless() -> None:
    source = Path(turnsmith.cli.__file__).parent.parent
    for file in (*source.glob("cli/*.py"), *source.glob("trainer/display/*.py")):
        found = re.findall(
            r"^.*(?<![\w.])print\(.*|^.*std(?:out|err)\.write.*|^.*(?<!\w)Console\(.*", file.read_text(), re.M
        )
        assert [line for line in found if ">>>" not in line] == [], file.name


def test_damaged_runs_are_lines_of_the_list_and_hide_no_other(tmp_path: Path) -> None:
    good = hostile_run(tmp_path, "good")
    damage = {"run.json": '{"format":1,"created":1e99}', "evaluations.jsonl": '{"step":"x"}\n', "metrics.jsonl": "x\n"}
    for place, (name, text) in enumerate(damage.items()):
        shutil.copytree(good.path, tmp_path / f"bad-{place}")
        (tmp_path / f"bad-{place}" / name).write_text(text)
        with pytest.raises(RecordError, match=f"{name} is damaged"):
            show_run(tmp_path / f"bad-{place}")
    listed = list_runs(tmp_path)
    assert [line.split()[1] for line in listed.splitlines()[1:]] == ["damaged"] * 3 + ["failed"]


def test_a_folder_that_may_not_be_entered_hides_no_other() -> None:
    with tempfile.TemporaryDirectory() as parent:
        hostile_run(Path(parent), "good").path.chmod(0o755)
        closed = hostile_run(Path(parent), "closed")
        Path(parent).chmod(0o755)
        closed.path.chmod(0)
        is_root = os.geteuid() == 0
        try:
            os.seteuid(65534 if is_root else os.geteuid())
            listed = list_runs(parent)
        finally:
            os.seteuid(0 if is_root else os.geteuid())
            closed.path.chmod(0o700)
    assert [line.split()[0] for line in listed.splitlines()[1:]] == ["good"]


def test_a_pipe_in_place_of_a_file_is_an_error_and_nobody_waits_for_it(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "config.yaml", "episodes/step-00000001-0.parquet"):
        run = hostile_run(tmp_path)
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)
        with pytest.raises(RecordError, match="is not a file"):
            read_run(run), read_episodes(run)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def with_value(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = with_value(value[path[0]], path[1:], new)
    return copy


@pytest.mark.parametrize("name", FILES[:-1])
def test_any_value_at_any_place_of_a_json_file_is_shown_or_refused(name: str) -> None:
    lines = [json.loads(line) for line in sample_files()[name].splitlines()]
    for number, line in enumerate(lines):
        for path in leaves(line):
            for value in VALUES:
                changed = [*lines[:number], with_value(line, path, value), *lines[number + 1 :]]
                read_files({name: "".join(f"{json.dumps(one)}\n" for one in changed).encode()})


YAML = ["[]", "3", "a: &a [*a]", "x: " + "[" * 3000, "training: 3\nmodel: 5", "1: 2\n3: {4: 5}", "? [a]\n: b", "\x00"]
YAML += [
    "a: !!python/object/apply:os.system ['id']",
    "date: 2001-01-01\n=: <<",
    "a: " + "9" * 100_000,
    "a: 0x" + "f" * 9,
]


@pytest.mark.parametrize("text", YAML, ids=lambda text: repr(text[:20]))
def test_any_settings_are_shown_or_left_out(text: str) -> None:
    read_files({"config.yaml": text.encode()})
    report_html(MemoryRun(Path("/nowhere/run"), {**SAMPLE, "config.yaml": text.encode()}))


@pytest.mark.parametrize(("target", "count"), [("files", 1500), ("parquet", 200), ("frames", 5000), ("session", 100)])
def test_nothing_but_errors_in_words_comes_of_hostile_bytes(target: str, count: int) -> None:
    assert run_target(target, count, seed=3) == []


def test_the_corpus_has_a_valid_input_for_each_reader() -> None:
    for target, run in TARGETS.items():
        for file in (CORPUS / target).iterdir():
            run(file.read_bytes())
    assert [step for step, _ in read_episode_file(CORPUS / "parquet" / "episodes")] == [1, 1]
    for name in FILES:
        read_run(MemoryRun(Path("/nowhere/run"), {**SAMPLE, name: (CORPUS / "files" / name).read_bytes()[1:]}))


def test_damaged_parquet_files_of_a_run_are_named_in_its_report(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    write_episodes(run, 1, [episode()])
    advantages = write_advantages(run, 1, StepAdvantages(advantages={"e1": [0.5, 0.5]}))
    assert "cannot be read" not in report_html(run).lower()
    advantages.write_bytes(b"PAR1 no")
    assert advantages.name in report_html(run)
    with pytest.raises(RecordError, match="Cannot read the Parquet file"):
        read_advantages(run, 1)
    rng = random.Random(5)
    for _ in range(20):
        (run.episodes_dir / "step-00000001-0.parquet").write_bytes(parquet(rng))
        report_html(run)


def test_a_file_name_does_not_make_readers_count_for_ever(tmp_path: Path) -> None:
    run = hostile_run(tmp_path)
    write_episodes(run, 1, [episode()]).rename(run.episodes_dir / "steps-00000001-99999999999999.parquet")
    report_html(run)


@pytest.mark.parametrize("text", ["[", "[]", '{"source": "rows"}', '{"source": "seeds", "seed": "x"}', "[" * 100_000])
def test_a_damaged_dataset_of_a_run_is_an_error_in_words(text: str, tmp_path: Path) -> None:
    CustomEnvironmentDataset().save(tmp_path, seed=0)
    assert CustomEnvironmentDataset.load(tmp_path).seed == 0
    (tmp_path / "starts.json").write_text(text)
    with pytest.raises(RecordError, match="damaged"):
        CustomEnvironmentDataset.load(tmp_path)
