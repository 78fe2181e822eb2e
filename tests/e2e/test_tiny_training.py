"""The walking skeleton on real parts: verl, Ray, FSDP2 and TransferQueue train a tiny model over three turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from tests.e2e import another_user
from tests.e2e.marked_processes import command_of
from tests.e2e.reach import listening_to_others, pickle_for_transfer_queue, reachable_by_others
from tests.e2e.three_letters import ThreeLetters
from tests.e2e.trained_on import assert_advantages_are_ours
from turnsmith import ConfigStore, RayPPOTrainer
from turnsmith.records.episodes import read_episodes
from turnsmith.trajectory import Outcome

pytestmark = pytest.mark.e2e
STEPS = 20


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayPPOTrainer]:
    """A trainer that has made 20 steps, after which the task is solved, and still runs."""
    config = ConfigStore()
    config.model.model_name = "tiny"
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    config.checkpoint.output_dir = str(tmp_path_factory.mktemp("runs"))
    trainer = RayPPOTrainer(config, ThreeLetters)
    trainer.fit(num_epochs=2, num_iters_per_epoch=STEPS // 2)
    yield trainer
    trainer.cleanup()


def test_grpo_raises_the_reward(trained: RayPPOTrainer) -> None:
    rewards = [record["reward/mean"] for record in trained.metrics_history[:STEPS]]
    assert len(rewards) == STEPS
    assert rewards[0] < 0.1
    assert rewards[-1] > 0.8


def test_rollout_and_actor_agree_at_every_step(trained: RayPPOTrainer) -> None:
    assert max(record["rollout_diff/max"] for record in trained.metrics_history) < 1e-5


def test_the_actor_trained_on_the_advantages_of_algo(trained: RayPPOTrainer) -> None:
    for step in (1, 5):  # later, every episode earns all there is, and nothing is left to compare
        assert_advantages_are_ours(trained, step)


def test_metrics_have_what_the_seeds_name(trained: RayPPOTrainer) -> None:
    first, last = trained.metrics_history[0], trained.metrics_history[STEPS - 1]
    assert first["epoch"] == 0
    assert last["epoch"] == 1
    assert {"policy_loss", "entropy", "kl", "grad_norm", "time/step"} <= first.keys()
    assert first["grad_norm"] > 0


def test_other_machines_cannot_reach_it_and_other_users_need_a_token(trained: RayPPOTrainer) -> None:
    import ray
    from ray._raylet import AuthenticationMode, get_authentication_mode

    assert listening_to_others() == []
    assert get_authentication_mode() == AuthenticationMode.TOKEN
    assert ray.util.get_node_ip_address() == "127.0.0.1"
    commands = [command_of(process) for process in psutil.Process().children(recursive=True)]
    assert [command for command in commands if "UsageStatsHead" in command or "dashboard.py" in command] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_gets_nothing(trained: RayPPOTrainer, tmp_path: Path) -> None:
    assert trained.run is not None
    for folder in (*tmp_path.parents[:2], *trained.run.path.parents[:4]):  # pytest's own are closed to others
        folder.chmod(0o755)
    tmp_path.chmod(0o777)
    proof = tmp_path / "a pickle was unpacked"
    targets = reachable_by_others(trained.run.path)
    page = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text(encoding="utf-8")
    assert [name for name in targets.pop("listeners") if f"`{name}`" not in page] == []
    assert len(targets["ports"]) > 5
    assert len(targets["files"]) > 20
    targets["frames"] = [bytes(frame).hex() for frame in pickle_for_transfer_queue(proof)]
    script = Path(another_user.__file__)
    done = subprocess.run(
        [sys.executable, script], input=json.dumps(targets), capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == []
    assert not proof.exists()


def test_every_episode_is_recorded(trained: RayPPOTrainer) -> None:
    assert trained.run is not None
    assert trained.run.read_metrics()[:STEPS] == trained.metrics_history[:STEPS]
    episodes = read_episodes(trained.run.path, step=1)
    assert len(episodes) == trained.config.training.batch_size
    assert len({episode.group_id for episode in episodes}) == 4
    for episode in episodes:
        assert episode.outcome is Outcome.COMPLETED
        assert episode.num_turns == 3
        assert sum(episode.tokens.mask) == sum(turn.stop - turn.start for turn in episode.turns)
        assert [turn.weights_version for turn in episode.turns] == [0, 0, 0]
    mean = sum(episode.total_reward for episode in episodes) / len(episodes)
    assert mean == pytest.approx(trained.metrics_history[0]["reward/mean"])


def test_recorded_log_probs_are_those_of_the_initial_model(trained: RayPPOTrainer, tiny_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    assert trained.run is not None
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    tokens = read_episodes(trained.run.path, step=1)[0].tokens
    ids = torch.tensor([tokens.ids.tolist()])
    with torch.no_grad():
        expected = torch.log_softmax(model(ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0]
    mask = torch.tensor(tokens.mask.tolist()[1:], dtype=torch.bool)
    recorded = torch.tensor(tokens.log_probs.tolist()[1:])
    assert torch.allclose(recorded[mask], expected[mask], atol=1e-5)


def test_saved_model_loads_in_plain_transformers(trained: RayPPOTrainer) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert trained.run is not None
    folder = trained.run.checkpoints_dir / f"global_step_{STEPS}" / "actor" / "huggingface"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Say a"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)[0, prompt["input_ids"].shape[1] :]
    assert tokenizer.decode(answer) == "aaaa"


def test_training_goes_on_and_a_checkpoint_brings_it_back(trained: RayPPOTrainer, tmp_path: Path) -> None:
    trained.save_checkpoint(tmp_path / "mine")
    trained.fit(num_epochs=1, num_iters_per_epoch=1)
    assert trained.metrics_history[-1]["step"] == STEPS + 1
    assert trained.load_checkpoint(tmp_path / "mine") == STEPS
    trained.fit(num_epochs=1, num_iters_per_epoch=1)
    assert trained.metrics_history[-1]["step"] == STEPS + 1
    assert trained.metrics_history[-1]["rollout_diff/max"] < 1e-5
