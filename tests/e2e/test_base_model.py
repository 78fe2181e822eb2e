"""A model without a chat template is trained, saved, exported and talked to in the plain format; and several calls of
`fit`, with a checkpoint loaded between them, count epochs on.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from turnsmith import (
    ConfigStore,
    MultiTurnInferenceEngine,
    RayPPOTrainer,
    SimpleGameEnvironment,
    create_inference_engine,
    read_episodes,
    resolve,
)
from turnsmith.errors import TrainingFailure
from turnsmith.inference.chat.formats import FORMATS, USES_PLAIN
from turnsmith.records.checkpoints import saved_steps
from turnsmith.trainer.checkpoints.export import export_model

pytestmark = [pytest.mark.e2e, pytest.mark.nightly]


def letters(trajectory: Any) -> float:
    """A random model says nothing that the game pays for."""
    return sum(map(ord, trajectory.actions[0])) / 1000


def test_a_base_model_is_trained_in_the_plain_format(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = Path(shutil.copytree(resolve("tiny"), tmp_path / "base"))
    (base / "chat_template.jinja").unlink()
    config = ConfigStore()
    config.model.local_path, config.checkpoint.output_dir = str(base), str(tmp_path / "runs")
    config.training.batch_size, config.training.group_size, config.training.learning_rate = 8, 4, 1e-3
    config.inference.max_tokens, config.inference.max_turns, config.checkpoint.save_interval = 8, 2, 2
    trainer = RayPPOTrainer(config, SimpleGameEnvironment, letters, tokenizer=AutoTokenizer.from_pretrained(base))

    trainer.fit(num_epochs=2, num_iters_per_epoch=1)
    saved = trainer.save_checkpoint(tmp_path / "epoch_2")
    trainer.fit(num_epochs=2, num_iters_per_epoch=2)
    assert trainer.run is not None
    assert [record["epoch"] for record in trainer.metrics_history] == [0, 1, 2, 2, 3, 3]
    assert sorted(saved_steps(trainer.run.checkpoints_dir)) == [2, 6]
    assert max(record["rollout_diff/max"] for record in trainer.metrics_history) < 1e-5
    assert trainer.load_checkpoint(tmp_path / "epoch_2") == 2
    trainer.fit(num_epochs=1, num_iters_per_epoch=1)
    assert (trainer.metrics_history[-1]["step"], trainer.metrics_history[-1]["epoch"]) == (3, 2)
    trainer.cleanup()
    with pytest.raises(TrainingFailure, match=r"RayPPOTrainer\.resume\("):
        trainer.fit()
    shown = capfd.readouterr().out
    assert shown.count(USES_PLAIN) == 1
    assert re.findall(r"^step (\d/\d)", shown, re.MULTILINE) == ["1/2", "2/2", "3/6", "4/6", "5/6", "6/6", "3/3"]

    tokenizer = AutoTokenizer.from_pretrained(base)
    prompts = {
        tokenizer.decode(episode.tokens.ids).partition("Assistant:\n")[0] for episode in read_episodes(trainer.run.path)
    }
    assert all(prompt.startswith("System:\n") and "<|im_end|>\nUser:\n" in prompt for prompt in prompts)
    exported = export_model(trainer.run.path, out=tmp_path / "exported")
    for folder in (saved / "actor" / "huggingface", exported):
        assert AutoTokenizer.from_pretrained(folder).chat_template == FORMATS["plain"]
    with create_inference_engine(str(exported), "transformers") as engine:
        talk = MultiTurnInferenceEngine(engine, max_turns=2)
        talk.start_conversation("Hi")
        talk.step(max_tokens=4, seed=0)
        assert talk.format_conversation().startswith(f"{tokenizer.bos_token}User:\nHi<|im_end|>\nAssistant:\n")
