"""Running checks, and what is told about them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.check.environment.zoo.openings import Clock, FailingReset
from tests.unit.check.environment.zoo.state import Variable

from turnsmith.check.environment.checks import CHECKS, limits
from turnsmith.check.environment.checks.limits import check_many_at_once, check_times
from turnsmith.check.environment.checks.settings import (
    bytes_of_parameter,
    count_parameters,
    kept_checkpoints,
    run_steps,
)
from turnsmith.check.environment.opening import check_opening
from turnsmith.check.environment.run import run_checks
from turnsmith.check.environment.subject import EnvironmentCheck, Subject
from turnsmith.check.finding import Finding, Result
from turnsmith.check.report import Report
from turnsmith.cli.main import main
from turnsmith.config import ConfigStore, EnvironmentConfig
from turnsmith.env.examples import GuessNumber
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure
from turnsmith.rollout.spec import EpisodeParts
from turnsmith.tools.registry import ToolRegistry
from turnsmith.tools.tool import tool
from turnsmith.trainer import RayPPOTrainer
from turnsmith.trainer.advantages import advantage_estimator
from turnsmith.trainer.dataset import CustomEnvironmentDataset
from turnsmith.trainer.quick_checks import run_quick_checks
from turnsmith.trainer.run_parts import RunParts

EXAMPLE = "turnsmith.env.examples:GuessNumber"


def subject() -> Subject:
    return Subject(environment=EnvironmentSpec.of(GuessNumber), config=ConfigStore())


def raising(error: Exception) -> EnvironmentCheck:
    async def function(subject: Subject) -> Finding:
        raise error

    return EnvironmentCheck(code="breaks", name="breaks", why="Why.", function=function)


async def test_a_check_that_breaks_is_a_failed_one_and_the_others_run() -> None:
    shown: list[Result] = []
    checks = [raising(KeyError("lost")), raising(EnvironmentFailure("No game is there.")), CHECKS[0]]
    results = await run_checks(subject(), checks, shown.append)
    assert shown == results
    assert [result.finding.status for result in results] == ["failed", "failed", "passed"]
    assert "KeyError: 'lost'" in results[0].finding.saw
    assert results[1].finding.saw == "No game is there."
    assert Report("game", results).failed == 2
    assert re.fullmatch(r"game: 2 of 3 checks failed, in [\d.]+ s", Report("game", results).lines()[0])


async def test_a_line_says_what_why_and_what_to_do_and_json_has_the_episodes() -> None:
    spec = EnvironmentSpec.of(FailingReset, EnvironmentConfig(isolation="thread"))
    results = await run_checks(Subject(environment=spec, config=ConfigStore()), CHECKS[:1])
    report = Report("game", results)
    text = " ".join(" ".join(report.lines()).split())
    assert "6 of 16 resets failed" in text
    assert "the simulator refused the connection" in text
    assert CHECKS[0].why[:40] in text
    assert "check-0, check-3 and 1 more" in text
    [told] = json.loads(json.dumps(report.as_dict()))["checks"]
    assert told["status"] == "failed"
    assert {episode["outcome"] for episode in told["episodes"]} == {"environment_failed"}


def test_every_check_has_a_name_of_its_own_and_says_what_it_is_for() -> None:
    for names in ([check.name for check in CHECKS], [check.code for check in CHECKS]):
        assert len(set(names)) == len(names)
    for check in CHECKS:
        assert len(check.name) <= 32, check.name
        assert check.ran.endswith("."), check.name
        assert check.why.endswith("."), check.name


def test_the_command_writes_json_and_a_page_and_exits_with_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--json", str(tmp_path / "check.json"), "--html", str(tmp_path / "check.html")]
    only = ["--only", "same-opening", "--only", "places"]
    assert main(["check", EXAMPLE, *only, *files, f"checkpoint.output_dir={tmp_path}"]) == 0
    report = json.loads((tmp_path / "check.json").read_text())
    assert [check["status"] for check in report["checks"]] == ["passed", "passed"]
    assert "same start, same opening" in (tmp_path / "check.html").read_text()
    assert "GuessNumber (no model): 2 checks ran, none failed" in capsys.readouterr().out


class Wanderer(Clock):
    """Moves to a folder of its own."""

    def reset(self, seed: int = 0) -> str:
        os.chdir(tempfile.mkdtemp())
        return super().reset(seed)


def test_the_files_are_written_where_the_command_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["environment.isolation=thread", "--only", "same-opening"]
    main(["check", f"{Wanderer.__module__}:Wanderer", *settings, "--json", "found.json", "--html", "found.html"])
    assert (tmp_path / "found.json").is_file()
    assert (tmp_path / "found.html").is_file()


def test_the_command_exits_with_1_after_a_failure_and_shows_both_plays(tmp_path: Path) -> None:
    page, settings = tmp_path / "check.html", ["environment.isolation=thread", "--only", "same-opening"]
    assert main(["check", f"{Clock.__module__}:Clock", *settings, "--html", str(page)]) == 1
    assert re.search(r'id="episode-0-check-0".*id="episode-0-check-0-play-2"', page.read_text(), re.DOTALL)


def test_before_every_run_these_are_run() -> None:
    assert {check.name for check in CHECKS if check.quick} == {
        "same start, same opening",
        "tools are described",
        "disk for the whole run",
        "trackers and folders",
        "held-out starts are held out",
        "sampling",
    }


async def test_a_batch_is_played_at_once_up_to_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.check.environment.checks.limits._SETTLE_SECONDS", 0.0)
    config = ConfigStore()
    config.training.batch_size = 100
    spec = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(isolation="loop"))
    finding = await check_many_at_once(Subject(environment=spec, config=config))
    assert finding.saw.startswith("64 episodes at once, twice: none failed")


async def test_what_is_left_is_counted_when_both_rounds_have_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    count = limits.Usage.now

    class Counted(limits.Usage):
        @classmethod
        def now(cls) -> limits.Usage:
            events.append("counted")
            return count()

    async def sleep(seconds: float) -> None:
        events.append("settled")

    monkeypatch.setattr("turnsmith.check.environment.checks.limits.Usage", Counted)
    monkeypatch.setattr("turnsmith.check.environment.checks.limits.asyncio", SimpleNamespace(sleep=sleep))
    spec = EnvironmentSpec.of(GuessNumber, EnvironmentConfig(isolation="loop"))
    assert (await check_many_at_once(Subject(environment=spec, config=ConfigStore()))).status == "passed"
    assert events == ["settled", "counted"] * 2


async def test_an_agent_opens_its_conversation_itself() -> None:
    async def agent(task: dict[str, Any], model: Any) -> float:
        return 0.0

    subject = Subject(environment=EnvironmentSpec.of(agent), config=ConfigStore())
    assert (await check_opening(subject)).status == "passed"


def test_a_name_that_no_check_has_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", EXAMPLE, "--only", "weather"]) == 2
    assert "There is no check 'weather': choose from right-unpaid" in capsys.readouterr().err


def quick(
    environment: Any,
    dataset: CustomEnvironmentDataset | None = None,
    validation: Any = None,
    reward_fn: Any = None,
    tools: ToolRegistry | None = None,
    model_path: str = "",
    kind: str = "",
    players: dict[str, Any] | None = None,
) -> Any:
    spec, said = EnvironmentSpec.of(environment, EnvironmentConfig(isolation="thread", kind=kind)), list[str]()
    data = dataset or CustomEnvironmentDataset()
    config = ConfigStore(players=players or {})
    parts = RunParts.of(config, EpisodeParts(reward_fn=reward_fn, tools=tools), spec, data, validation)
    return run_quick_checks(config, parts, model_path, say=said.append).warnings, said


def test_the_quick_checks_of_fit_say_one_line_and_return_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    warnings, said = quick(GuessNumber)
    assert warnings == []
    assert re.fullmatch(
        r"checked in [\d.]+ s: first step; same start, same opening; disk .*; trackers .* \(training.check\)", said[0]
    )
    rows = [{"word": "a"}, {"word": "b"}]
    warnings, _ = quick(Clock, CustomEnvironmentDataset(tasks=rows), rows[:1])
    assert [warning.name for warning in warnings] == [
        "check_same_opening",
        "check_held_out",
    ]
    assert "4 of 4 starts opened differently" in str(warnings[0])
    assert warnings[1].what == "1 of 1 held-out tasks are among the 2 tasks of training."
    _, rows = quick(Clock, CustomEnvironmentDataset(tasks=[{"word": "An  apple"}]), [{"word": "an Apple"}])[0]
    assert rows.what.startswith("1 of 1 held-out tasks are among"), "case and spaces do not make another task"


class Slow:
    async def reset(self) -> str:
        await asyncio.sleep(20)
        return ""

    async def step(self, action: str) -> Any:
        return "", 0.0, True, {}


def test_a_run_whose_episodes_disturb_each_other_is_refused() -> None:
    with pytest.raises(EnvironmentFailure, match=r"Episodes of Variable change .* training\.check=false goes on"):
        quick(Variable)


def test_the_quick_checks_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.trainer.quick_checks.SECONDS", 0.2)
    assert quick(Slow)[1][0].endswith(
        ": nothing, then stopped in 'first step': 0.2 s are enough for them (training.check)"
    )


class SlowReset:
    """A reset that takes long, but beside others, and steps that take some time."""

    def reset(self) -> str:
        time.sleep(0.2)
        return "Say yes."

    def step(self, action: str) -> Any:
        time.sleep(0.025)
        return "", 1.0, True, {}


async def test_slow_resets_that_run_beside_each_other_are_no_fault() -> None:
    spec = EnvironmentSpec.of(SlowReset, EnvironmentConfig(isolation="thread"))
    finding = await check_times(Subject(environment=spec, config=ConfigStore()))
    assert finding.status == "passed", finding.saw
    told = "50th and 99th percentile: reset {0} and {0} ms, step {0} and {0} ms."
    assert re.fullmatch(re.escape(told).replace(r"\{0\}", r"[\d.e+-]+"), finding.saw), finding.saw


def test_steps_checkpoints_and_parameters_are_counted(tiny_folder: str) -> None:
    config = ConfigStore()
    config.training.num_epochs, config.training.batch_size, config.training.group_size = 6, 32, 8
    assert (run_steps(config, None), run_steps(config, 40)) == (60, 60)
    assert kept_checkpoints(config, 60) == 4
    config.checkpoint.keep_last_n = 0
    assert kept_checkpoints(config, 60) == 7
    config.evaluation.every = 20  # each of them may be the best so far
    assert kept_checkpoints(config, 60) == kept_checkpoints(config, 79) == 7 + 3
    config.checkpoint.keep_last_n = 2
    assert kept_checkpoints(config, 60) == 4
    config.checkpoint.save_interval = 0
    assert kept_checkpoints(config, 60) == 0
    from safetensors.numpy import load_file

    files = Path(tiny_folder).glob("*.safetensors")
    assert (
        count_parameters(tiny_folder) == sum(tensor.size for file in files for tensor in load_file(file).values()) > 0
    )


def test_the_parameters_of_a_model_without_files_are_counted_from_its_config_without_a_hub(
    tiny_folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached = tmp_path / "models--someone--tiny"
    (cached / "snapshots/1").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("1")
    (cached / "snapshots/1/config.json").write_bytes((Path(tiny_folder) / "config.json").read_bytes())
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert count_parameters("someone/tiny") == count_parameters(tiny_folder) > 0
    assert count_parameters(str(cached / "snapshots/1")) == count_parameters(tiny_folder)
    assert [count_parameters(name) for name in ("someone/that-is-not-here", "no name", None)] == [0, 0, 0]


def test_a_critic_is_a_part_of_a_checkpoint() -> None:
    config = ConfigStore()
    alone = bytes_of_parameter(config)
    for name, more in (("gae", 12), (f"{__name__}:with_a_critic", 12), (f"{__name__}:without", 0)):
        config.training.adv_estimator = name  # pyright: ignore[reportAttributeAccessIssue]
        assert bytes_of_parameter(config) == alone + more


with_a_critic = advantage_estimator(lambda inputs: inputs.values, needs_critic=True)  # pyright: ignore[reportArgumentType]
without = advantage_estimator(lambda inputs: inputs.rewards)


class Broken(GuessNumber):
    """Fails in a way that its settings name."""

    def reset(self, seed: int = 0, task: Any = None) -> str:
        kind = self.config.kind
        if kind == "reset" or (kind == "luck" and seed == 2):
            raise ConnectionError(f"no server for {seed}")
        return "word " * 3000 if kind == "long" or (kind == "one long" and seed == 2) else super().reset(seed)

    def step(self, action: str) -> Any:
        kind = self.config.kind
        if kind == "step" or (kind == "solvable" and action != "right"):
            raise KeyError("missing")
        if kind == "refuses":
            raise ValueError("no legal move")
        if kind == "reads numbers":
            int(action)
        return "", None if kind == "none" else 1.0, True, {}

    def solve(self) -> Any:
        return "right" if self.config.kind == "solvable" else None


def raising_reward(trajectory: Any) -> float:
    return trajectory.no_such_field


def needs_the_tool(trajectory: Any) -> float:
    return {"roll": 1.0}["roll" if "roll" in trajectory.messages[0]["content"] else "no tool"]


@tool
def roll() -> int:
    """Roll a die."""
    return 4


HOPELESS = [
    ("reset", {}, "All 4 starts that were tried fail in the same way: Broken.reset raised ConnectionError: no server"),
    ("step", {}, "Broken.step raised KeyError: 'missing' (in step, test_run.py line "),
    ("none", {}, "Broken.step returned the reward None"),
    ("long", {}, "4 of 4 openings have more tokens than the 2048 allowed"),
    ("", {"reward_fn": raising_reward}, "raising_reward raised AttributeError"),
    ("", {"reward_fn": lambda trajectory: None}, "<lambda> returned 'None'"),
    ("", {"reward_fn": needs_the_tool}, "KeyError: 'no tool'"),
]


@pytest.mark.parametrize(("kind", "given", "what"), HOPELESS)
def test_a_run_that_cannot_work_is_stopped_before_it_starts(
    kind: str, given: dict[str, Any], what: str, tiny_folder: str
) -> None:
    with pytest.raises(EnvironmentFailure, match=re.escape(what)) as caught:
        quick(Broken, kind=kind, model_path=tiny_folder, **given)
    assert str(caught.value).endswith("training.check=false starts the run all the same.")


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (
            "luck",
            "1 of 4 episodes failed, the first: Broken.reset raised ConnectionError: no server for 2",
        ),
        ("one long", "1 of 4 openings have more tokens than the 2048 allowed"),
        ("refuses", "4 of 4 episodes failed, the first: Broken.step raised ValueError: no legal move"),
        (
            "reads numbers",
            "of 4 episodes failed, the first: Broken.step raised ValueError: invalid literal",
        ),
        ("solvable", "4 of 4 episodes failed, the first: Broken.step raised KeyError: 'missing'"),
    ],
)
def test_what_may_be_luck_or_the_fault_of_a_text_is_a_warning(kind: str, what: str, tiny_folder: str) -> None:
    warnings, said = quick(Broken, kind=kind, model_path=tiny_folder)
    assert what in next(str(warning) for warning in warnings if warning.name == "check_first_step")
    assert "first step" in said[0]


def test_tools_and_rewards_of_the_run_are_played() -> None:
    assert quick(Broken, kind="", reward_fn=needs_the_tool, tools=ToolRegistry([roll]))[0] == []


class NeedsTask(GuessNumber):
    def reset(self, seed: int, task: dict[str, Any]) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return task["text"]


def test_starts_that_only_training_chooses_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnsmith.trainer.quick_checks._MOST_ROWS", 4)
    rows = [{"text": str(number)} for number in range(5)]
    curriculum = CustomEnvironmentDataset(curriculum=lambda index, history: {"task": {"text": "Hi"}})
    for dataset in (CustomEnvironmentDataset(tasks=rows), curriculum):
        warnings, said = quick(NeedsTask, dataset)
        assert warnings == []
        assert ("first step" in said[0]) == (dataset is not curriculum)


class Customer(GuessNumber):
    def reset(self, seed: int = 0) -> str:
        return self.ask("customer", "What do you want?")


def wants_tea(messages: Any) -> str:
    return "Tea."


@pytest.mark.parametrize(("who", "is_tried"), [("frozen", False), (f"scripted:{__name__}:wants_tea", True)])
def test_players_that_are_models_are_not_there_to_be_tried(who: str, is_tried: bool) -> None:
    warnings, said = quick(Customer, players={"customer": who})
    assert warnings == []
    assert ("first step" in said[0]) == is_tried


def test_data_that_reset_needs_is_asked_for_at_once() -> None:
    with pytest.raises(ConfigError, match=r"NeedsTask.reset takes a task, .* pass rows \(`--data FILE`"):
        RayPPOTrainer(ConfigStore(), NeedsTask)


def test_a_process_that_has_ended_has_no_open_files() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    assert limits._entries(ended.pid, "fd") == 0  # pyright: ignore[reportPrivateUsage]
    assert limits._entries(os.getpid(), "fd") > 2  # pyright: ignore[reportPrivateUsage]


ASKING = """
from turnsmith import BaseEnvironment


class First(BaseEnvironment):
    reward_range = (0.0, 1.0)

    def reset(self, seed=0):
        return f"{seed}: " + self.ask("opponent", "A number.")

    def step(self, action):
        return "", float(action.strip() == "7"), True, {}

    def solve(self):
        return "7"


class Then(BaseEnvironment):
    def reset(self, seed=0):
        return "Say a number."

    def step(self, action):
        return self.ask("opponent", "And you?"), 1.0, True, {}


def five(messages):
    return "5"
"""


@pytest.fixture
def asking(tmp_path: Path) -> Path:
    file = tmp_path / "asking.py"
    file.write_text(ASKING)
    return file


def test_what_asks_another_player_in_reset_is_audited_as_far_as_an_episode_goes(
    asking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"players.opponent=scripted:{asking}:five", "environment.isolation=process"]
    assert main(["check", f"{asking}:First", "--audit", *words]) == 0
    assert "none failed" in capsys.readouterr().out


def test_a_game_whose_other_player_is_not_named_is_refused_in_a_sentence(
    asking: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", f"{asking}:Then", "environment.isolation=thread"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "The environment asks the player 'opponent', and the settings do not say who plays it: set players." in told
