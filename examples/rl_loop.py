"""A whole GRPO step in one file: play, compare, update. Seconds on one CPU core: python examples/rl_loop.py

This is what `RayPPOTrainer` does on any number of machines, without all that makes it fast and safe: no Ray, no verl,
no checkpoints, no retries. Read it downwards.
"""

import asyncio

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from turnsmith import BaseEnvironment, Chat, EnvironmentSpec, Limits, Sampling, Trajectory, algo, resolve
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.rollout.episode import EpisodeStart, run_episode

STEPS, GROUPS, GROUP_SIZE, LEARNING_RATE = 12, 4, 8, 1e-2


class Letters(BaseEnvironment):
    """Two turns; each pays the share of the letter a in what the model says."""

    def reset(self) -> str:
        return "Say a"

    def step(self, action: str) -> tuple[str, float, bool, dict]:
        self.step_count += 1
        return "Once more", action.count("a") / max(len(action), 1) / 2, self.step_count == 2, {}


async def play(step: int, engine: TransformersEngine, chat: Chat) -> list[Trajectory]:
    """The episodes of one step, all at once: groups that begin alike, for GRPO to compare."""
    starts = [
        EpisodeStart(f"{step}-{group}-{member}", group_id=f"{step}-{group}", seed=step * GROUPS + group)
        for group in range(GROUPS)
        for member in range(GROUP_SIZE)
    ]
    spec, limits, sampling = EnvironmentSpec.of(Letters), Limits(turns=2), Sampling(max_tokens=8, seed=0)
    return await asyncio.gather(
        *[
            run_episode(start, environment=spec, engine=engine, chat=chat, limits=limits, sampling=sampling)
            for start in starts
        ]
    )


def padded(episodes: list[Trajectory]) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, mask (1 on what the model sampled) and rewards, each `(episodes, tokens)`, filled up with 0.

    The reward of a turn stands on its last sampled token.
    """
    ids = [torch.tensor(episode.tokens.ids) for episode in episodes]
    mask = [torch.tensor(episode.tokens.mask) for episode in episodes]
    rewards = [torch.zeros(len(row)) for row in ids]
    for row, episode in zip(rewards, episodes, strict=True):
        for turn, reward in zip(episode.turns, episode.rewards, strict=True):
            row[turn.stop - 1] = reward
    return pad_sequence(ids, True), pad_sequence(mask, True), pad_sequence(rewards, True)


def log_probs(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """The log-prob of each token given those before it, `(episodes, tokens - 1)`: the first has none.

    Padding comes last, where no real token can see it.
    """
    logits = model(input_ids=ids[:, :-1]).logits.float()
    return logits.log_softmax(dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def train() -> list[float]:
    """Train `tiny`, a small random model; returns the mean reward of each step."""
    torch.manual_seed(0)
    folder = resolve("tiny")
    chat = Chat(AutoTokenizer.from_pretrained(folder))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    engine = TransformersEngine(folder, dtype="float32")
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    means = list[float]()
    for step in range(STEPS):
        episodes = asyncio.run(play(step, engine, chat))
        ids, mask, rewards = padded(episodes)
        advantages, _ = algo.compute_grpo_advantage(rewards, mask, [episode.group_id for episode in episodes])
        # The episodes are of the weights that are trained, so the importance ratio is 1 and there is nothing to clip.
        loss = -(advantages * mask)[:, 1:].mul(log_probs(model, ids)).sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        engine.load_weights(model.named_parameters(), version=step + 1)
        means.append(sum(episode.total_reward for episode in episodes) / len(episodes))
        print(f"step {step + 1}: reward {means[-1]:.3f}, loss {loss.item():+.4f}")
    engine.close()
    return means


if __name__ == "__main__":
    train()
