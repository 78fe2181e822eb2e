"""A step's gradients by verl's losses, over ranks and micro-batches as its engine makes them, and by a reference."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from tests.unit.trainer.batch_store import BatchStore, nested
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss, value_loss

from turnsmith import algo
from turnsmith.config import ConfigStore
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.advantages import AdvantageInputs, get_estimator, turn_anchors
from turnsmith.trainer.verl.agent_loop import to_verl_outputs
from turnsmith.trainer.verl.estimators import weighted_loss
from turnsmith.trajectory import TokenBuffer, Trajectory, TurnRecord

PROMPT = 2
NUMBERS = ("log_probs", "old", "ref", "entropy", "values", "old_values")
"""What there is of each sampled token; gradients are of `log_probs`, `entropy` and `values`."""


@dataclass
class Turn:
    """A turn of the model: the row it is in, its reward, and the numbers of its tokens."""

    row: int
    reward: float
    numbers: dict[str, list[float]]

    @property
    def length(self) -> int:
        return len(self.numbers["old"])


Episodes = dict[str, list[Turn]]


def drawn(rows: dict[str, int], seed: int = 0) -> Episodes:
    """Episodes by name with so many rows each; an episode of one row has up to three turns."""
    rng = random.Random(seed)

    def turn(row: int) -> Turn:
        old = [-3 + rng.gauss(0, 0.5) for _ in range(rng.randint(1, 5))]
        numbers = {
            "old": old,
            "log_probs": [one + rng.gauss(0, 0.3) for one in old],
            "ref": [one + rng.gauss(0, 0.3) for one in old],
            **{name: [rng.random() for _ in old] for name in ("entropy", "values", "old_values")},
        }
        return Turn(row, rng.choice([0.0, 0.5, 1.0, rng.random()]), numbers)

    return {name: [turn(row) for row in range(count) for _ in range(rng.randint(1, 3))] for name, count in rows.items()}


def trajectory(name: str, turns: list[Turn], *, linear: bool) -> Trajectory:
    """The episode, in its rows or in one."""
    rows = 1 if linear else 1 + max(turn.row for turn in turns)
    made = Trajectory(branches=[TokenBuffer() for _ in range(rows - 1)], episode_id=name, group_id=name[0])
    for buffer in made.segments:
        buffer.open([1] * PROMPT)
    for number, turn in enumerate(turns):
        branch = 0 if linear else turn.row
        span = made.segments[branch].append_model([7] * turn.length, turn.numbers["old"])
        made.segments[branch].append_context([3] * (1 + number % 2))
        made.turns.append(TurnRecord(*span, "stop", 0, branch=branch))
        made.rewards.append(turn.reward)
        made.states.append(f"seen {number % 3}")
    return made


def response_rows(made: Trajectory, turns: list[Turn], name: str) -> list[list[float]]:
    """One of the numbers on the tokens of each row after its prompt; elsewhere -1, which must not count."""
    rows = [[-1.0] * (len(buffer) - buffer.prompt_length) for buffer in made.segments]
    for record, turn in zip(made.turns, turns, strict=True):
        start = record.start - made.segments[record.branch].prompt_length
        rows[record.branch][start : start + turn.length] = turn.numbers[name]
    return rows


def of_turns(made: Trajectory, rows: list[torch.Tensor]) -> torch.Tensor:
    """Of numbers on the rows' tokens, those of the turns' tokens, in the order in which they were sampled."""
    starts = [(record, record.start - made.segments[record.branch].prompt_length) for record in made.turns]
    return torch.cat([rows[one.branch][start : start + one.stop - one.start] for one, start in starts])


class Step:
    """One step on these episodes, padded with rows without tokens to a multiple of 8."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, episodes: Episodes, config: ConfigStore) -> None:
        self.episodes = {name: (trajectory(name, turns, linear=False), turns) for name, turns in episodes.items()}
        outputs = [
            (f"{name[0]}_{name[1:]}_{place}", name[0], output.as_dict())
            for name, (made, _) in self.episodes.items()
            for place, output in enumerate(to_verl_outputs(made, with_anchors=True, with_places=True))
        ]
        self.padding = -len(outputs) % 8
        nothing = {"response_mask": [0], "rm_scores": [0.0], "turn_anchors": [0], "episode_places": [0]}
        outputs += [(f"pad_{place}_0", "pad", nothing) for place in range(self.padding)]
        fields: dict[str, Any] = {name: nested([row[name] for _, _, row in outputs]) for name in nothing}
        fields |= {
            field: nested(self._rows(name)) for name, field in (("old", "old_log_probs"), ("old_values", "values"))
        }
        fields |= {"rollout_log_probs": fields["old_log_probs"], "ref_log_prob": nested(self._rows("ref"))}
        stack: Any = NonTensorStack
        fields["uid"] = stack(*[group for _, group, _ in outputs])
        self.store = BatchStore(monkeypatch, [key for key, _, _ in outputs], fields)
        self.batch = self.store.compute_advantages(config, RunFolder.create(folder, "run"))

    def _rows(self, name: str) -> list[list[float]]:
        found = [row for made, turns in self.episodes.values() for row in response_rows(made, turns, name)]
        return found + [[0.0]] * self.padding

    def gradients(self, *, ranks: int, micro: int, updates: int = 1, critic: bool = False) -> torch.Tensor:
        """Those of verl's losses, of all updates together: ranks are averaged, and so are updates."""
        part = self.store.theirs.critic if critic else self.store.theirs.actor_rollout_ref.actor
        given = partial(value_loss, config=part) if critic else partial(ppo_loss, config=omega_conf_to_dataclass(part))
        names = ("values",) if critic else ("log_probs", "entropy")
        leaves = {
            name: [torch.tensor(row, dtype=torch.float32).requires_grad_() for row in self._rows(name)]
            for name in names
        }
        total = len(self.store.keys)
        for update in range(updates):
            places = list(range(update, total, updates))
            shares = [places[rank * len(places) // ranks : (rank + 1) * len(places) // ranks] for rank in range(ranks)]
            for share in shares:
                for micro_batch in (share[at : at + micro] for at in range(0, len(share), micro)):
                    data = self._data(micro_batch, places, ranks)
                    outputs = {name: _whole([rows[place] for place in micro_batch]) for name, rows in leaves.items()}
                    loss, _ = weighted_loss(given, outputs, data)
                    (loss / ranks / updates).backward()
        return torch.cat([self._in_order(rows) for rows in leaves.values()])

    def _data(self, rows: list[int], update: list[int], ranks: int) -> TensorDict:
        fields = self.store.fields
        mask = fields["response_mask"]
        taken = {
            name: nested([fields[name][place].clone() for place in rows])
            for name in self.batch.fields
            if isinstance(fields[name], torch.Tensor)
        }
        taken["prompts"] = nested([[1] * PROMPT for _ in rows])
        taken["responses"] = taken["response_mask"]
        tokens = int(sum(mask[place].sum() for place in update))
        numbers = {"dp_size": ranks, "batch_num_tokens": tokens, "global_batch_size": len(update)}
        return tu.get_tensordict(taken, numbers)

    def _in_order(self, leaves: list[torch.Tensor]) -> torch.Tensor:
        gradients = iter(torch.zeros_like(one) if one.grad is None else one.grad for one in leaves)
        found = [of_turns(made, [next(gradients) for _ in made.segments]) for made, _ in self.episodes.values()]
        assert not any(bool(padding.any()) for padding in gradients)
        return torch.cat(found)


def _whole(responses: list[torch.Tensor]) -> torch.Tensor:
    """What a model says of whole rows: of each token one place before it."""
    rows = [torch.cat([torch.zeros(PROMPT - 1), one, torch.zeros(1)]) for one in responses]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def reference(episodes: Episodes, config: ConfigStore, *, critic: bool = False) -> torch.Tensor:
    """The gradients in float64 where each episode is one row."""
    training, width = config.training, config.inference.max_episode_tokens
    made = {name: trajectory(name, turns, linear=True) for name, turns in episodes.items()}

    def padded(rows: Iterator[Any], dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.stack([torch.tensor([*row, *[0] * (width - len(row))], dtype=dtype) for row in rows])

    fields = {
        name: padded(response_rows(made[one], turns, name)[0] for one, turns in episodes.items()) for name in NUMBERS
    }
    mask = padded((one.response_mask() for one in made.values()), torch.int64)
    rewards = padded(one.token_rewards() for one in made.values())
    anchors = padded(map(turn_anchors, made.values()), torch.int64)
    groups = [name[0] for name in episodes]
    inputs = AdvantageInputs(rewards, mask, groups, training.gamma, training.lam, fields["old_values"], anchors)
    advantages, returns = get_estimator(training.adv_estimator).compute(training.credit, inputs)
    names = ("values",) if critic else ("log_probs", "entropy")
    leaves = {name: fields[name].clone().requires_grad_() for name in names}
    aggregation = training.loss_aggregation
    if critic:
        loss, _ = algo.compute_value_loss(
            leaves["values"], returns, fields["old_values"], mask, 0.5, aggregation=aggregation
        )
    else:
        loss, _ = algo.compute_policy_loss(
            fields["old"], leaves["log_probs"], advantages, mask, training.clip_ratio, aggregation=aggregation
        )
        loss = loss - training.entropy_coef * algo.aggregate_loss(leaves["entropy"], mask, aggregation)
        kl = algo.kl_estimate(leaves["log_probs"], fields["ref"], "k3")
        loss = loss + training.kl_coef * algo.aggregate_loss(kl, mask, aggregation)
    loss.backward()
    rows = [(one, place) for place, one in enumerate(made.values())]
    return torch.cat(
        [of_turns(one, [leaf.grad[place]]) for leaf in leaves.values() if leaf.grad is not None for one, place in rows]
    )
