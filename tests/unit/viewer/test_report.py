"""The report: complete, self-contained, safe against hostile text in a run, and of bounded size."""

from __future__ import annotations

import json
import platform
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.unit.viewer.sample_runs import episode, record, training_run

from turnsmith import ConfigStore, Outcome, RecordError, RunFolder
from turnsmith.cli.main import main
from turnsmith.config_sources import to_dict
from turnsmith.records.episodes import write_episodes
from turnsmith.records.run_warnings import RunWarning
from turnsmith.rollout.evaluation.result import EvaluationResult
from turnsmith.viewer import report_html, write_report
from turnsmith.viewer.curves import curves_of

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)> & \"'"


class Page(HTMLParser):
    """The elements and the text of a page, as a browser would see them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def ids(self) -> list[str]:
        return [str(attrs["id"]) for _, attrs in self.elements if "id" in attrs]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    return report_html(training_run(tmp_path_factory.mktemp("runs")))


def test_it_shows_the_run_its_curves_its_warnings_and_episodes(page: str) -> None:
    shown = Page(page)
    for part in (
        "Game-20260101-120000",
        "finished",
        "Board",
        "grpo, 32 episodes a step in groups of 8",
        "0.100 → 0.400",
    ):
        assert part in shown.text
    for title in ("Reward", "Entropy", "Gradient norm", "Step time", "Episodes", "generate", "completed"):
        assert title in shown.text
    assert "Always 0: KL" in shown.text
    for part in ("Turns were cut.", "ended at 3", "The gradient is zero: all the same.", "from 4"):
        assert part in shown.text
    for part in ("typical of the last step, 4", "best", "worst", "first environment_failed", "KeyError: 'door'"):
        assert part in shown.text
    for part in ("move 1", "turn 1", "advantage ", "+0.5", "-1.5", "2 tokens", "cut"):
        assert part in shown.text
    assert "learning_rate" in shown.text
    folded = [attrs for element, attrs in shown.elements if element == "details" and attrs.get("class") == "episode"]
    assert ["open" in attrs for attrs in folded] == [True] + [False] * (len(folded) - 1)
    assert len(folded) > 1


def test_warnings_link_to_their_episodes(page: str) -> None:
    shown = Page(page)
    links = [str(attrs["href"]) for tag, attrs in shown.elements if tag == "a"]
    assert "#episode-1-1-2" in links
    assert "#episode-4-4-1" in links
    assert {link[1:] for link in links} <= set(shown.ids())
    assert len(shown.ids()) == len(set(shown.ids()))


def test_every_episode_that_a_warning_names_is_a_link_and_has_its_row(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    run.append_metrics(record(1))
    names = [f"1-{number}" for number in range(20)]
    write_episodes(run, 1, [episode(name, task={"question": f"Who is {name}?", "sql": ["a"]}) for name in names])
    run.append_event("warning", content=RunWarning("cut_turns", 1, "x", "y", "z", ("1-7", "1-8", "1-9")).content())
    shown = Page(report_html(run))
    links = [str(attrs["href"]) for tag, attrs in shown.elements if tag == "a"]
    assert links == ["#episode-1-1-7", "#episode-1-1-8", "#episode-1-1-9"]
    assert 'question: Who is 1-9?\nsql: ["a"]' in shown.text


def test_it_loads_nothing_from_elsewhere(page: str) -> None:
    assert not re.search(r"(src|href)\s*=\s*[\"'](?!#)", page)
    assert "://" not in page
    assert "url(" not in page
    assert "default-src 'none'" in page
    assert len(page) < 100_000


def test_hostile_text_in_a_run_stays_text(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "<b>run")
    config = ConfigStore()
    config.model.model_name = HOSTILE
    run.write_config(to_dict(config))
    run.append_metrics(record(1, **{f"time/{HOSTILE}": 1.0, f"episodes/{HOSTILE}": 2}))
    hostile = {"role": HOSTILE, "content": HOSTILE}
    bad = episode(
        f"e{HOSTILE}",
        messages=[hostile],
        task={HOSTILE: [HOSTILE]},
        error=HOSTILE,
        outcome=Outcome.ENGINE_FAILED,
        reward_shares={HOSTILE: 1.0},
    )
    bad.reward_shares = {HOSTILE: 1.0}
    write_episodes(run, 1, [bad, episode("1-0")])
    content = dict.fromkeys(("name", "what", "why", "advice"), HOSTILE)
    run.append_event("warning", content={**content, "step": 1, "episodes": [f"e{HOSTILE}"]})
    run.append_event("failed", content=HOSTILE)
    html = report_html(run)
    shown = Page(html)
    assert not [tag for tag, _ in shown.elements if tag in ("img", "b-run")]
    assert not [name for _, attrs in shown.elements for name in attrs if name.startswith("on")]
    assert len([tag for tag, _ in shown.elements if tag == "script"]) == 2
    assert shown.text.count("onerror=alert(2)") >= 8
    assert "<script>alert" not in html
    data = re.search(r'id="curves">(.*?)</script>', html, re.DOTALL)
    assert data
    assert json.loads(data[1])["steps"] == ["1"]


def test_a_run_that_has_not_begun_and_one_that_died(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "new")
    assert "No step has finished yet" in report_html(run)
    run.append_event("training", steps=4, pid=0, host=platform.node())
    run.append_metrics(record(1))
    (run.path / "metrics.jsonl").write_bytes((run.path / "metrics.jsonl").read_bytes() + b'{"step": 2, "rew')
    (run.episodes_dir / "step-00000001-0.parquet").write_bytes(b"PAR1 half a file")
    html = report_html(run)
    assert "died" in html
    assert "step-00000001-0.parquet" in Page(html).text
    run.append_event("failed", content="\x1b[36mray\x1b[39m: out of memory")
    assert "ray: out of memory" in report_html(run)


def test_a_long_run_of_long_episodes_stays_small(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "long")
    more = {"success/mean": 0.5, "tools/calls": 3}
    records = [record(step, grad_norm=1 / step, **more) for step in range(1, 3001)]
    (run.path / "metrics.jsonl").write_text("".join(f"{json.dumps(metrics)}\n" for metrics in records))
    long_talk = [{"role": "user", "content": "word " * 4_000}, {"role": "assistant", "content": "no"}] * 100
    for step in range(1, 61):
        write_episodes(run, step, [episode(f"{step}-0", (step * 1.0,), messages=long_talk if step > 58 else [])])
    html = report_html(run)
    assert len(html) < 1_000_000
    text = Page(html).text
    assert "characters omitted" in text
    assert "messages omitted" in text
    assert "50 episodes of 50 steps, a sample of the run" in text


def test_many_steps_become_few_points_that_keep_the_extremes() -> None:
    metrics = [record(step, **{"reward/max": 9.0 if step == 777 else 1.0}) for step in range(1, 1001)]
    curves = curves_of(metrics)
    assert len(curves.steps) <= 300
    assert (curves.steps[0][0], curves.steps[-1][1]) == (1, 1000)
    assert max(value or 0.0 for value in curves.charts[0].series[0].high) == 9.0


@pytest.mark.parametrize("value", [0.0, -1e-300, 1e300, 5e-324])
def test_any_number_can_be_drawn(tmp_path: Path, value: float) -> None:
    run = RunFolder.create(tmp_path, "odd")
    for step in (1, 2, 5):
        run.append_metrics({"step": step, "entropy": value, "reward/mean": float("inf"), "grad_norm": value + step})
    assert "<svg" in report_html(run)


def test_an_evaluation_has_a_result_instead_of_curves(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "eval-Game-20260101-120000")
    run.append_event("evaluation", environment="Game", model="tiny", episodes=4)
    outcomes = (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.TURN_LIMIT, Outcome.ENVIRONMENT_FAILED)
    result = EvaluationResult(
        [episode(f"s{n // 2}-{n}", (n / 2,), outcome=outcome) for n, outcome in enumerate(outcomes)]
    )
    result.record(run, **{"compare/run": "runs/before", "compare/reward": 0.25, "compare/reward/p": 0.01})
    run.append_event("finished")
    text = Page(report_html(run)).text
    for part in ("evaluation", "Result", "pass@2", "turn_limit", "change from runs/before", "+0.250", "p = 0.0100"):
        assert part in text
    assert "Curves" not in text


def test_the_command_writes_it_to_the_run_folder_or_to_a_given_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = training_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    assert main(["runs", "report", run.name]) == 0
    assert (run.path / "report.html").read_text().startswith("<!doctype html>")
    assert main(["runs", "report", str(run.path), "--out", "here/mine.html"]) == 0
    assert "mine.html (" in capsys.readouterr().out
    assert main(["runs", "report", run.name[:-1]]) == 2
    assert f"Did you mean runs/{run.name}?" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written"):
        write_report(run, tmp_path / "file" / "report.html")
