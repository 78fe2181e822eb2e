"""examples/rl_loop.py: a whole GRPO step in one file learns, from the probabilities that were sampled with."""

from __future__ import annotations

import asyncio
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith import Chat
from turnsmith.inference.engines.transformers_engine import TransformersEngine

EXAMPLE = Path(__file__).parents[2] / "examples" / "rl_loop.py"


@pytest.fixture
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def test_the_loss_is_of_the_tokens_that_were_sampled(example: dict[str, Any], tiny_folder: str) -> None:
    engine, chat = TransformersEngine(tiny_folder), Chat(AutoTokenizer.from_pretrained(tiny_folder))
    example["play"].__globals__["GROUPS"] = 1
    episodes = asyncio.run(example["play"](0, engine, chat))
    engine.close()
    ids, mask, rewards = example["padded"](episodes)
    assert rewards.sum(dim=1).tolist() == pytest.approx([episode.total_reward for episode in episodes])
    with torch.no_grad():
        computed = example["log_probs"](AutoModelForCausalLM.from_pretrained(tiny_folder), ids) * mask[:, 1:]
    for row, episode in zip(computed, episodes, strict=True):
        sampled_with = torch.tensor(episode.tokens.log_probs)[1:]
        torch.testing.assert_close(row[: len(sampled_with)], sampled_with, atol=1e-4, rtol=0)


def test_a_few_steps_raise_the_reward(example: dict[str, Any]) -> None:
    example["train"].__globals__["STEPS"] = 5
    means = example["train"]()
    assert means[-1] > 2 * means[0]
