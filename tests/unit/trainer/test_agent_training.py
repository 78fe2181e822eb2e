"""Agents in verl's worker: what verl gets is what was sampled, and the trained model gives it the same log-probs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.rollout import agents
from tests.unit.trainer.episode_queue import Queue, replace_queue
from tests.unit.trainer.test_episode_worker import rows
from transformers import AutoModelForCausalLM

from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Sampling
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.spec import Limits, RolloutSpec
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.run_parts import EpisodePlan
from turnsmith.trainer.verl.agent_loop import EpisodeWorker, to_verl_outputs
from turnsmith.trajectory import Trajectory


@pytest.fixture(autouse=True)
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    return replace_queue(monkeypatch)


async def play(agent: Any, tiny_folder: str, folder: Path) -> tuple[list[Trajectory], Any]:
    """Two groups of two episodes in verl's worker; returns their records and the report."""
    config = ConfigStore()
    config.training.batch_size, config.training.group_size = 4, 2
    settings = verl_config(config, model_path=tiny_folder, run_dir="unused", steps=1)
    spec = RolloutSpec(
        environment=EnvironmentSpec.of(agent),
        limits=Limits(prompt_tokens=2048),
        sampling=Sampling(max_tokens=12, seed=3),
    )
    plan = EpisodePlan(ConfigStore(), spec, str(RunFolder.create(folder, "run").path))
    engine = TransformersEngine(tiny_folder, max_concurrency=8)
    try:
        worker = EpisodeWorker("0", plan, settings, engine)
        await worker.generate_sequences(rows("a", "b"))
        await asyncio.gather(*worker.background_tasks)
        done = await worker.finish_step(1, ["a", "b"])
    finally:
        engine.close()
    return list(read_episodes(plan.run_dir, step=1)), done.report


@pytest.mark.parametrize("agent", [agents.plain_agent, agents.rewarding_agent], ids=lambda agent: agent.__name__)
async def test_an_agents_episode_is_trained_on_as_it_was_sampled(
    agent: Any, tiny_folder: str, tmp_path: Path, queue: Queue
):
    episodes, report = await play(agent, tiny_folder, tmp_path)
    assert sorted(key for key in queue if "_" in key) == ["a_0_0", "a_1_0", "b_0_0", "b_1_0"]
    assert report.metrics()["agent/turns_bridged"] == 8
    assert report.metrics()["agent/turns_opened"] == 4
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    for episode in episodes:
        assert (episode.error, episode.decision.value, episode.num_turns) == ("", "kept", 3)
        (output,) = to_verl_outputs(episode)
        assert check_log_probs(model, output) >= 3


async def test_an_agent_with_branches_is_trained_on_every_token_once(tiny_folder: str, tmp_path: Path, queue: Queue):
    episodes, report = await play(agents.parallel_agent, tiny_folder, tmp_path)
    sessions = [f"{group}_{number}" for group in "ab" for number in range(2)]
    assert sorted(key for key in queue if "_" in key) == [f"{one}_{place}" for one in sessions for place in range(4)]
    assert report.metrics()["agent/branches"] == 12
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    for episode in episodes:
        assert (episode.error, episode.decision.value, episode.num_turns) == ("", "kept", 7)
        outputs = to_verl_outputs(episode, with_places=True)
        trained = sum(check_log_probs(model, output) for output in outputs)
        assert trained == episode.sampled_tokens == sum(turn.stop - turn.start for turn in episode.turns)
        assert sum(output.num_turns for output in outputs) == 7
        assert [sum(output.token_rewards) for output in outputs] == [0.0, 0.0, 0.0, 1.0], "it is the summary's"


def check_log_probs(model: Any, output: Any) -> int:
    """The model gives what was sampled the log-probs that the engine reported; returns how many tokens that were."""
    ids = torch.tensor([output.prompt_ids + output.response_ids])
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0, :-1], dim=-1)
    actor = scores.gather(1, ids[0, 1:, None])[len(output.prompt_ids) - 1 :, 0]
    sampled = torch.tensor(output.response_mask).bool()
    assert (actor - torch.tensor(output.response_logprobs))[sampled].abs().max() < 1e-5
    return int(sampled.sum())
