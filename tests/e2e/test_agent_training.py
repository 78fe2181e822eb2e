"""An agent with branches is trained for real: each of its sampled tokens once, and by what its episode earned."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.branching_agent import branch, branch_unevenly
from tests.e2e.trained_on import assert_trained_on_what_was_sampled
from turnsmith import ConfigStore, EnvironmentConfig, RayPPOTrainer
from turnsmith.inference.models import resolve
from turnsmith.records.advantages import read_advantages
from turnsmith.records.episodes import read_episodes
from turnsmith.trajectory import Trajectory

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]
STEPS = 2
PROGRAM = """
import http.client, json, os, urllib.parse

url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
connection = http.client.HTTPConnection(url.netloc)
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asked = {"model": "m", "messages": [{"role": "user", "content": "Say a"}]}
connection.request("POST", url.path + "/chat/completions", json.dumps(asked), headers)
said = json.load(connection.getresponse())["choices"][0]["message"]["content"] or ""
connection.request("POST", url.path + "/reward", str(float("a" in said)), headers)
assert connection.getresponse().status == 200
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPPOTrainer]:
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 8
    config.training.batch_size, config.training.group_size = 8, 4
    config.training.credit = "turn"
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path_factory.mktemp("runs"))
    trainer = RayPPOTrainer(config, branch)
    trainer.fit(num_epochs=1, num_iters_per_epoch=STEPS)
    yield trainer
    trainer.cleanup()


def test_it_learns_from_the_tokens_that_were_sampled(trained: RayPPOTrainer) -> None:
    # Among them the advantages: statistics of groups are those of episodes.
    assert_trained_on_what_was_sampled(trained, STEPS, 8)
    assert [record["agent/branches"] for record in trained.metrics_history] == [3 * 8] * STEPS


def test_every_sampled_token_is_trained_once(trained: RayPPOTrainer) -> None:
    assert trained.run is not None
    rows = read_advantages(trained.run, 1).advantages
    episodes = read_episodes(trained.run, step=1)
    assert {one.episode_id for one in episodes} == rows.keys()
    for one in episodes:
        assert [turn.branch for turn in one.turns].count(0) >= 2
        assert len(one.segments) == 4
        assert sum(one.response_mask()) == sum(turn.stop - turn.start for turn in one.turns)
        assert len(rows[one.episode_id]) == len(one.response_mask())
        # Turns with an advantage of exactly 0 would hide one that was left out.
        with_advantage = [any(rows[one.episode_id][start:stop]) for start, stop in one.turn_spans()]
        assert with_advantage.count(True) >= 6


def test_an_episode_counts_once_over_two_ranks_and_their_micro_batches(tmp_path: Path) -> None:
    config = ConfigStore()
    config.model.model_name, config.inference.max_tokens = "tiny", 8
    config.training.batch_size, config.training.group_size, config.training.micro_batch_size = 8, 4, 2
    config.training.loss_aggregation = "seq-mean-token-mean"
    config.ray.gpus_per_node = 2
    config.checkpoint.output_dir, config.checkpoint.save_interval = str(tmp_path), 0
    trainer = RayPPOTrainer(config, branch_unevenly)
    try:
        (record,) = trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    episodes, rows = read_episodes(trainer.run, step=1), read_advantages(trainer.run, 1).advantages
    lengths = {len(one.segments) for one in episodes}
    assert len(lengths) > 2
    gradient = episode_gradient(episodes, {name: list(row) for name, row in rows.items()})
    assert record["grad_norm"] == pytest.approx(float(gradient.norm()), rel=1e-5)


def episode_gradient(episodes: list[Trajectory], advantages: dict[str, list[float]]) -> torch.Tensor:
    """The gradient of the first update in float64, in which each episode is one row: there, all ratios are 1."""
    model: Any = AutoModelForCausalLM.from_pretrained(resolve("tiny"), dtype=torch.float64)
    for one in episodes:
        first, tokens = 0, sum(one.response_mask())
        for buffer in one.segments:
            ids, prompt = torch.tensor([buffer.ids.tolist()]), buffer.prompt_length
            log_probs = model(ids).logits[0, prompt - 1 : -1].log_softmax(-1).gather(1, ids[0, prompt:, None])[:, 0]
            last = first + len(log_probs)
            weights = torch.tensor(advantages[one.episode_id][first:last]) * torch.tensor(buffer.mask[prompt:].tolist())
            (-(log_probs * weights).sum() / tokens / len(episodes)).backward()
            first = last
    return torch.cat([one.grad.flatten() for one in model.parameters()])


def test_of_500_programs_64_at_once_none_is_lost(tmp_path: Path) -> None:
    import_module("uvloop")  # Ray's workers install it where it is; its processes cannot be started in two threads

    (tmp_path / "agent.py").write_text(PROGRAM)
    config = ConfigStore(environment=EnvironmentConfig(command=f"{sys.executable} -S {tmp_path / 'agent.py'}"))
    config.model.model_name, config.inference.max_tokens = "tiny", 4
    config.training.batch_size, config.training.group_size = 64, 8
    config.ray.num_actors = 1
    config.checkpoint.output_dir, config.checkpoint.save_interval = str(tmp_path), 0
    trainer = RayPPOTrainer(config, "turnsmith.env.agent:CommandAgent")
    try:
        trainer.fit(num_epochs=1, num_iters_per_epoch=8)
    finally:
        trainer.cleanup()
    assert trainer.run is not None
    attempts = read_episodes(trainer.run)  # those that were given up are among them
    assert len(attempts) == 512
    assert Counter((one.outcome, one.decision, one.error) for one in attempts) == {("completed", "kept", ""): 512}
