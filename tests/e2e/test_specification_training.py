"""The training snippets of the specification, really trained: `setup` reads `turnsmith`, the model is the tiny one on
the CPU, and the numbers are small. The first is that of trainer-notes.md, with its dataset and its reward around the
text game; the second is "Example: Simple Text Game" of readme.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turnsmith import RayPPOTrainer, read_episodes

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]

CONFIG = """
from setup import ConfigStore, resolve
config = ConfigStore()
config.model.local_path = resolve("tiny")
config.inference.max_tokens = 8
config.inference.max_turns = 2
config.training.batch_size = 8
config.training.group_size = 4
config.training.num_epochs = 2
config.training.steps_per_epoch = 1
config.checkpoint.output_dir = output_dir
config.checkpoint.save_interval = 0
"""

NOTES = """
from pathlib import Path
from transformers import AutoTokenizer
from setup import CustomEnvironmentDataset, EnvironmentRewardWrapper, create_trainer, SimpleGameEnvironment

tokenizer = AutoTokenizer.from_pretrained(config.model.local_path)
environment = SimpleGameEnvironment(config.environment)

def reward_fn(trajectory, environment):
    letters = sum(map(ord, trajectory.actions[0]))  # a random model says nothing that the game pays for
    return sum(trajectory.rewards) + letters / 1000 + len(environment.inventory)

# Create dataset from environment
dataset = CustomEnvironmentDataset(environment, tokenizer, curriculum=curriculum)

# Wrap reward function
reward_wrapper = EnvironmentRewardWrapper(environment, reward_fn, low=-5)

trainer = create_trainer(
    config=config,
    environment=environment,
    tokenizer=tokenizer,
    dataset=dataset,
    reward_fn=reward_wrapper,
)

trainer.fit()

# Manually save
trainer.save_checkpoint(Path(output_dir) / "epoch_5")

# Load checkpoint
trainer.load_checkpoint(Path(output_dir) / "epoch_5")

trainer.fit(num_epochs=1, num_iters_per_epoch=1)

# Access metrics
for metric_dict in trainer.metrics_history:
    print(f"Epoch {metric_dict['epoch']}: {metric_dict['policy_loss']}")

trainer.cleanup()  # Release GPU memory
"""

README = '''
from setup import BaseEnvironment, ConfigStore, RayPPOTrainer

class TextGameEnv(BaseEnvironment):
    """Simple text-based game."""
    
    def reset(self) -> str:
        self.score = 0
        self.inventory = []
        return "Welcome to the game! You are in a room."
    
    def step(self, action: str) -> tuple:
        reward = 0.0
        
        if "take" in action.lower():
            self.inventory.append("item")
            reward = 1.0
        elif "attack" in action.lower():
            reward = 5.0
            self._done = True
        else:
            reward = -0.1
        
        self.score += reward
        return self.get_state_description(), reward, self._done, {}
    
    def get_state_description(self) -> str:
        return f"Score: {self.score}, Inventory: {self.inventory}"

# Train
env = TextGameEnv(config.environment)
trainer = RayPPOTrainer(config, env, reward_fn=lambda t: sum(t.rewards))
trainer.fit(num_epochs=1)
trainer.cleanup()
'''  # noqa: W293


def train(snippet: str, **given: Any) -> RayPPOTrainer:
    # As in a script: what is defined in it is sent to other processes by value.
    names: dict[str, Any] = {"__name__": "__main__", **given}
    exec(compile((CONFIG + snippet).replace("setup", "turnsmith"), "seed", "exec"), names)  # noqa: S102
    return names["trainer"]


def test_the_trainer_notes_snippet_trains_the_text_game(tmp_path: Path) -> None:
    def curriculum(index: int, history: Any) -> dict[str, Any]:
        return {"task": {"finished": len(history)}, "seed": 100 + len(history)}

    trainer = train(NOTES, output_dir=str(tmp_path), curriculum=curriculum)
    records = trainer.metrics_history
    assert [record["step"] for record in records] == [1, 2, 3]
    assert max(record["rollout_diff/max"] for record in records) < 1e-5
    assert all(record["reward/max"] > record["reward/min"] and record["grad_norm"] > 0 for record in records)
    assert trainer.run is not None
    for step in (1, 2, 3):
        episodes = read_episodes(trainer.run.path, step=step)
        # Two groups a step, each chosen by what was known of the steps before, also after the checkpoint was loaded.
        assert {int(episode.group_id) for episode in episodes} == {2 * step - 2, 2 * step - 1}
        assert {episode.seed for episode in episodes} == {100 + 2 * (step - 1)}
        for episode in episodes:
            assert episode.score == pytest.approx(sum(episode.rewards) + sum(map(ord, episode.actions[0])) / 1000)


def test_the_readme_snippet_trains_its_text_game(tmp_path: Path) -> None:
    trainer = train(README, output_dir=str(tmp_path))
    (record,) = trainer.metrics_history
    assert record["episodes/turn_limit"] + record.get("episodes/completed", 0) == 8
    assert record["rollout_diff/max"] < 1e-5
