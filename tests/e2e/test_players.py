"""Other players for real: a user behind a server, and a model that trains against itself and is resumed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.self_play import Auction, against_first, misses, train
from transformers import AutoTokenizer

from tests.unit.rollout.talking import Shop
from turnsmith import ConfigStore, EnvironmentConfig, EnvironmentSpec, RayPPOTrainer, ScriptedEngine, read_episodes
from turnsmith.config_sources import apply_overrides
from turnsmith.inference import Chat
from turnsmith.inference.models import resolve
from turnsmith.rollout.evaluation.evaluate import EvaluationPlan, evaluate
from turnsmith.rollout.players import Players
from turnsmith.trajectory import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def test_a_served_model_plays_the_user_and_both_sides_count_the_same_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    command = [sys.executable, "-m", "turnsmith", "serve", "tiny", "--port", "0", "--backend", "transformers"]
    command += ["--record", "--name", "user"]
    own = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=own) as server:
        try:
            assert server.stdout is not None
            printed = "".join(server.stdout.readline() for _ in range(3))
            found = re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", printed)
            assert found is not None, printed
            monkeypatch.setenv("OPENAI_API_KEY", found[2])
            plan = EvaluationPlan(
                episodes=6, players=Players.of({"customer": {"who": found[1], "max_tokens": 12, "temperature": 1.0}})
            )
            environment = EnvironmentSpec.of(Shop, EnvironmentConfig(isolation="process", max_steps=3))
            result = evaluate(environment, ScriptedEngine(["Hm?", "Well?", "So?"], chat), chat, plan)
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(timeout=60)
    assert result.report.first_error == ""
    assert {one.outcome for one in result.trajectories} <= {Outcome.COMPLETED, Outcome.TRUNCATED}
    served = read_episodes(tmp_path / "runs" / "user")
    said = result.report.others
    assert said["customer/replies"] == sum(one.num_turns for one in served) > 6
    assert said["customer/tokens"] == sum(one.sampled_tokens for one in served)
    ours = sum(len(chat.encode(action)) + 1 for one in result.trajectories for action in one.actions)
    assert sum(one.sampled_tokens for one in result.trajectories) == ours, "what the user says is not the model's"


def test_self_play_beats_the_first_model(tmp_path: Path) -> None:
    after = against_first(str(train(str(tmp_path), steps=20, seed=0)))
    assert misses(after.success.value) == []
    run = next(tmp_path.glob("Auction*"))
    for episode in read_episodes(run):
        assert episode.sampled_tokens == episode.num_turns == 3, "one token a turn is the model's, and no other"
        assert (episode.others["opponent"]["replies"], episode.others["opponent"]["tokens"]) == (3, 3)
        step = re.fullmatch(r"step-(\d+)", episode.others["opponent"]["who"])
        assert step is None or int(step[1]) <= episode.turns[0].weights_version


def test_a_resumed_run_meets_the_same_opponents(tmp_path: Path) -> None:
    settings = (
        "model.model_name=tiny inference.max_tokens=1 training.batch_size=32 training.group_size=2 "
        "training.learning_rate=1e-2 training.steps_per_epoch=1 environment.isolation=thread "
        "players.opponent=self players.opponent.past=0.8"
    )

    def trainer(name: str) -> RayPPOTrainer:
        wanted = [*settings.split(), f"checkpoint.output_dir={tmp_path}", f"checkpoint.run_name={name}"]
        return RayPPOTrainer(apply_overrides(ConfigStore(), wanted), Auction)

    whole, first = trainer("whole"), trainer("parts")
    for run, epochs in ((whole, 4), (first, 2)):
        try:
            run.fit(epochs)
        finally:
            run.cleanup()
    rest = RayPPOTrainer.resume(tmp_path / "parts", Auction)
    try:
        rest.fit(2)
    finally:
        rest.cleanup()
    expected, resumed = (
        {one.episode_id: (one.others, one.states, one.actions) for one in read_episodes(tmp_path / name)}
        for name in ("whole", "parts")
    )
    assert resumed == expected
    who = {others["opponent"]["who"] for others, _, _ in expected.values()}
    assert {"now", "first", "step-1", "step-2", "step-3"} <= who
