"""Episodes with several segments get the advantages that they would get in one: statistics are over episodes."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import NonTensorStack
from tests.unit.trainer.batch_store import BatchStore, nested

from turnsmith.config import ConfigStore, TrainingConfig
from turnsmith.records.advantages import StepAdvantages, read_advantages
from turnsmith.records.run_folder import RunFolder
from turnsmith.trainer.advantages import ESTIMATORS, advantages_of
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.verl.agent_loop import to_verl_outputs
from turnsmith.trainer.verl.replay_buffer import episode_names
from turnsmith.trainer.verl.schedules import SyncTrainer
from turnsmith.trajectory import TokenBuffer, Trajectory, TurnRecord

KINDS = [(name, credit) for name, estimator in ESTIMATORS.items() for credit in estimator.by_credit]


def episode(name: str, turns: list[tuple[int, int, float]], *, linear: bool = False) -> Trajectory:
    """Turns by the segment they are in, their length and their reward; all in one segment if it is to be linear."""
    segments = 1 if linear else 1 + max(segment for segment, _, _ in turns)
    made = Trajectory(branches=[TokenBuffer() for _ in range(segments - 1)], episode_id=name, group_id=name[0])
    for buffer in made.segments:
        buffer.open([1, 2])
    for number, (segment, length, reward) in enumerate(turns):
        branch = 0 if linear else segment
        buffer = made.segments[branch]
        span = buffer.append_model([7] * length, [-0.5] * length)
        buffer.append_context([3] * (1 + number % 2))
        made.turns.append(TurnRecord(*span, "stop", 0, branch=branch))
        made.rewards.append(reward)
        made.actions.append("")
        made.states.append("start" if number == 0 else f"seen {number % 2}")
    return made


def drawn(rng: random.Random) -> list[tuple[int, int, float]]:
    segments = rng.randint(1, 3)
    turns = [(number % segments, rng.randint(1, 4), rng.choice([0.0, 0.5, 1.0])) for number in range(3)]
    return turns + [(rng.randrange(segments), rng.randint(1, 4), rng.random()) for _ in range(rng.randint(0, 3))]


def values_of(one: Trajectory) -> list[float]:
    """A critic's values, the same for a turn wherever it is."""
    values = [0.0] * len(one.response_mask())
    for number, (start, stop) in enumerate(one.turn_spans()):
        values[start:stop] = [0.1 * number + 0.01 * place for place in range(stop - start)]
    return values


def by_turn(one: Trajectory, numbers: Any) -> list[list[float]]:
    """The numbers of each turn's tokens; there are none elsewhere."""
    turns = [list(numbers[start:stop]) for start, stop in one.turn_spans()]
    assert sum(map(len, turns)) == sum(one.response_mask())
    assert not any(number for number, sampled in zip(numbers, one.response_mask(), strict=True) if not sampled)
    return turns


@pytest.mark.parametrize(("estimator", "credit"), KINDS)
def test_advantages_do_not_depend_on_how_turns_are_spread_over_segments(estimator: str, credit: str) -> None:
    rng = random.Random(f"{estimator}/{credit}")
    drawn_turns = {f"{group}{number}": drawn(rng) for group in "abc" for number in range(4)}
    assert max(segment for turns in drawn_turns.values() for segment, _, _ in turns) == 2
    training = TrainingConfig(adv_estimator=estimator, credit=credit, gamma=0.9, lam=0.8)
    computed: list[dict[str, list[list[float]]]] = []
    for linear in (False, True):
        episodes = [episode(name, turns, linear=linear) for name, turns in drawn_turns.items()]
        recorded = StepAdvantages(values={one.episode_id: values_of(one) for one in episodes})
        found = advantages_of(episodes, training, recorded if estimator == "gae" else None)
        computed.append({one.episode_id: by_turn(one, found[one.episode_id]) for one in episodes})
    for name, turns in computed[0].items():
        for one, other in zip(turns, computed[1][name], strict=True):
            assert one == pytest.approx(other, abs=1e-6)
    assert any(any(any(turn) for turn in turns) for turns in computed[0].values())


def test_a_summary_earns_what_comes_after_it() -> None:
    """A conversation, its summary, and a new conversation that begins with the summary and is rewarded."""
    compacting = episode("a0", [(0, 2, 0.0), (0, 3, 0.0), (1, 2, 8.0)])
    failed = episode("a1", [(0, 2, 0.0)])
    training = TrainingConfig(adv_estimator="rloo", credit="turn", gamma=0.5)
    found = by_turn(compacting, advantages_of([compacting, failed], training)["a0"])
    assert found == [[2.0, 2.0], [4.0] * 3, [8.0, 8.0]]


def stored(monkeypatch: pytest.MonkeyPatch, episodes: list[Trajectory]) -> BatchStore:
    outputs = [
        (f"{one.group_id}_{one.episode_id[-1]}_{place}", one.group_id, output.as_dict())
        for one in episodes
        for place, output in enumerate(to_verl_outputs(one, with_anchors=True, with_places=True))
    ]
    names = ("response_mask", "rm_scores", "turn_anchors", "episode_places", "rollout_log_probs")
    fields: dict[str, Any] = {name: nested([row[name] for _, _, row in outputs]) for name in names}
    fields["old_log_probs"] = fields["rollout_log_probs"]
    fields["values"] = nested([torch.zeros(len(row["response_mask"])) for _, _, row in outputs])
    fields["uid"] = NonTensorStack(*[group for _, group, _ in outputs])
    return BatchStore(monkeypatch, [key for key, _, _ in outputs], fields)


@pytest.mark.parametrize(("estimator", "credit"), KINDS)
def test_verl_trains_on_the_advantages_of_episodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, estimator: str, credit: str
) -> None:
    rng = random.Random(5)
    episodes = [episode(f"{group}{number}", drawn(rng)) for group in "ab" for number in range(3)]
    config = ConfigStore()
    config.training.adv_estimator, config.training.credit, config.training.gamma = estimator, credit, 0.5
    store, run = stored(monkeypatch, episodes), RunFolder.create(tmp_path, "run")
    assert len(store.keys) > len(episodes)
    batch = store.compute_advantages(config, run)
    trained = read_advantages(run.path, 1)
    for one in episodes:
        one.episode_id = f"{one.group_id}-{one.episode_id[-1]}"
    offline = advantages_of(episodes, config.training, trained)
    assert {name: list(row) for name, row in trained.advantages.items()} == offline
    assert any(any(row) for row in offline.values())
    assert sorted(episode_names(batch)) == sorted(offline), "each episode is in the ledger's batch once"


@pytest.mark.parametrize(
    ("rows", "mini_batch", "widening"), [(16, 16, 1), (3, 16, 1), (17, 16, 2), (48, 16, 3), (16, 4, 1), (48, 4, 3)]
)
def test_branches_make_no_more_updates(rows: int, mini_batch: int, widening: int) -> None:
    config = ConfigStore()
    config.training.batch_size, config.training.group_size, config.training.mini_batch_size = 16, 4, mini_batch
    trainer: Any = object.__new__(SyncTrainer)
    trainer.config = verl_config(config, model_path="tiny", run_dir="unused", steps=1)
    keys = [f"{row % 4:08d}_{row % 16 // 4}_{row // 16}" for row in range(rows)]
    trainer._widening = trainer._mini_batch_widening(SimpleNamespace(keys=keys))
    trainer.use_critic, trainer.global_steps = False, 1
    assert trainer._widening == widening
    multiple = trainer._get_required_batch_multiple(1)
    assert multiple == mini_batch * widening
    assert -(-rows // multiple) <= 16 // mini_batch
