"""Shared by the tests of weight updates: weights of several versions, 64 episodes, and a check of the versions."""

from __future__ import annotations

import asyncio
from typing import Any

import torch

from turnsmith import BaseEnvironment, Chat, Limits, Sampling, Trajectory
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.rollout.episode import EpisodeStart, run_episode

EPISODES, TURNS = 64, 3
Named = dict[str, torch.Tensor]


class Count(BaseEnvironment):
    """Goes on for ever."""

    def reset(self) -> str:
        return "Go."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        return "On.", 0.0, False, {}


def make_versions(model: Any, numbers: tuple[int, ...] = (5, 6, 7)) -> dict[int, Named]:
    """Weights whose distributions are peaked and have nothing to do with each other."""
    made: dict[int, Named] = {}
    for version in numbers:
        draw = torch.Generator().manual_seed(version)
        state = model.state_dict()
        made[version] = {name: _peaked(tensor, draw) for name, tensor in state.items() if name != "lm_head.weight"}
    return made


def _peaked(like: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return torch.ones_like(like) if like.dim() < 2 else torch.randn(like.shape, generator=draw) * 0.25


async def play_all(engine: Any, tokenizer: Any, tokens: int) -> list[Trajectory]:
    """64 episodes of 3 turns at once."""
    chat, environment = Chat(tokenizer), EnvironmentSpec.of(Count)
    limits, sampling = Limits(turns=TURNS), Sampling(max_tokens=tokens)
    starts = [EpisodeStart(f"episode-{number}") for number in range(EPISODES)]
    return await asyncio.gather(
        *(
            run_episode(start, environment=environment, engine=engine, chat=chat, limits=limits, sampling=sampling)
            for start in starts
        )
    )


def check_versions(trajectories: list[Trajectory], model: Any, versions: dict[int, Named], within: float) -> None:
    """The recorded log-prob is that of the recorded version, and of no other."""
    alike = others = 0
    for trajectory in trajectories:
        recorded = torch.tensor(trajectory.tokens.log_probs[trajectory.tokens.prompt_length :])
        marked = torch.tensor(trajectory.token_versions())
        for version, weights in versions.items():
            own = marked == version
            expected = log_probs_under(model, weights, trajectory)
            assert torch.allclose(recorded[own], expected[own], rtol=0, atol=within)
            foreign = (marked >= 0) & ~own
            alike += int(((recorded - expected).abs() < 10 * within)[foreign].sum())
            others += int(foreign.sum())
        sampled = torch.tensor(trajectory.tokens.mask[trajectory.tokens.prompt_length :], dtype=torch.bool)
        assert torch.equal(marked >= 0, sampled), "a token that the model sampled has no version, or another one has"
    assert alike < others / 20, "the versions give nearly the same log-probs: that proves nothing"


@torch.inference_mode()
def log_probs_under(model: Any, weights: Named, trajectory: Trajectory) -> torch.Tensor:
    """Of every token after the prompt, from one plain forward pass."""
    model.load_state_dict(weights, strict=False)
    ids = torch.tensor([trajectory.tokens.ids.tolist()])
    likely = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, :-1], dim=-1)
    return likely.gather(1, ids[0, 1:, None])[trajectory.tokens.prompt_length - 1 :, 0]
