"""Weight updates while 64 episodes are in flight: every token has the version that sampled it, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.unit.inference.swapping import EPISODES, TURNS, Named, check_versions, make_versions, play_all
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnsmith import Sampling
from turnsmith.errors import EngineFailure
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.trajectory import Outcome

TOKENS = 12


@pytest.fixture(scope="module")
def model(tiny_folder: str) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def versions(model: Any) -> dict[int, Named]:
    return make_versions(model)


@pytest.fixture
async def engine(tiny_folder: str, versions: dict[int, Named]) -> Any:
    made = TransformersEngine(tiny_folder, max_concurrency=EPISODES)
    await made.update_weights(versions[5].items(), 5)
    yield made
    made.close()


async def decoded(engine: TransformersEngine, tokens: int) -> None:
    """Wait until a sequence has this many tokens of its turn."""
    while not any(len(sequence.token_ids) >= tokens for sequence in list(engine._batch.sequences)):
        await asyncio.sleep(0)


async def decoded_with(engine: TransformersEngine, version: int) -> None:
    """Wait until a sequence has a token that weights of this version sampled."""
    while not any(
        len(sequence.token_ids) > start
        for sequence in list(engine._batch.sequences)
        for start, swapped in [(0, sequence.weights_version), *sequence.swaps]
        if swapped == version
    ):
        await asyncio.sleep(0)


async def test_tokens_of_64_episodes_in_flight_carry_the_version_that_sampled_them(
    engine: TransformersEngine, model: Any, versions: dict[int, Named], tiny_folder: str, tmp_path: Path
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    (tmp_path / "new").mkdir()
    save_file(versions[7], tmp_path / "new" / "model.safetensors")
    playing = asyncio.create_task(play_all(engine, tokenizer, TOKENS))
    await decoded(engine, 4)
    await engine.update_weights(versions[6].items(), 6)
    await decoded_with(engine, 6)
    await engine.update_weights(tmp_path / "new", 7)
    trajectories = await playing
    assert [trajectory.outcome for trajectory in trajectories] == [Outcome.TURN_LIMIT] * EPISODES
    assert all(len(trajectory.turns) == TURNS for trajectory in trajectories)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert {version for turn in turns for version in turn.versions} == {5, 6, 7}
    assert any(turn.swaps for turn in turns), "no new weights came in the middle of a turn"
    check_versions(trajectories, model, versions, within=1e-4)
    write_episodes(tmp_path / "run", 1, trajectories)
    assert [read.turns for read in read_episodes(tmp_path / "run")] == [trajectory.turns for trajectory in trajectories]


async def test_with_drain_weights_never_change_in_the_middle_of_a_turn(
    engine: TransformersEngine, model: Any, versions: dict[int, Named], tiny_folder: str
) -> None:
    playing = asyncio.create_task(play_all(engine, AutoTokenizer.from_pretrained(tiny_folder), TOKENS))
    await decoded(engine, 4)
    await engine.update_weights(versions[6].items(), 6, drain=True)
    trajectories = await playing
    assert [trajectory.outcome for trajectory in trajectories] == [Outcome.TURN_LIMIT] * EPISODES
    assert not any(turn.swaps for trajectory in trajectories for turn in trajectory.turns)
    assert {turn.weights_version for trajectory in trajectories for turn in trajectory.turns} == {5, 6}
    check_versions(trajectories, model, {5: versions[5], 6: versions[6]}, within=1e-4)


async def test_weights_that_do_not_fit_leave_everything_as_it_was(
    engine: TransformersEngine, versions: dict[int, Named], tmp_path: Path
) -> None:
    before = {name: tensor.clone() for name, tensor in engine.model.state_dict().items()}
    first, *rest = versions[6].items()
    with pytest.raises(EngineFailure, match="no weight called"):
        await engine.update_weights([first, ("lm_heads.weight", first[1])], 6)
    with pytest.raises(EngineFailure, match="shape"):
        await engine.update_weights([first, (rest[0][0], torch.zeros(3))], 6)
    save_file(dict(rest), tmp_path / "model.safetensors")
    with pytest.raises(EngineFailure, match="incomplete"):
        await engine.update_weights(tmp_path, 6)
    with pytest.raises(EngineFailure, match="no weights in"):
        await engine.update_weights(tmp_path / "nowhere", 6)
    assert engine.weights_version == 5
    assert all(torch.equal(tensor, before[name]) for name, tensor in engine.model.state_dict().items())


async def test_each_score_is_of_one_version_during_weight_updates(
    engine: TransformersEngine, versions: dict[int, Named]
) -> None:
    ids = [4 + place * 7 % 90 for place in range(40)]
    known = {}
    for version in (5, 6):
        await engine.update_weights(versions[version].items(), version)
        known[version] = await engine.score(ids[:3], ids[3:])
    scores = [asyncio.create_task(engine.score(ids[:3], ids[3:])) for _ in range(30)]
    for version in (5, 6, 5):
        await engine.update_weights(versions[version].items(), version)
    for score in await asyncio.gather(*scores):
        assert score in known.values()


async def test_closing_fails_the_update_that_still_waits(tiny_folder: str) -> None:
    engine = TransformersEngine(tiny_folder)
    endless = asyncio.create_task(engine.generate([4], Sampling(max_tokens=1_000_000), session="a"))
    await decoded(engine, 1)
    update = asyncio.create_task(engine.update_weights([], 1, drain=True))
    while not engine._draining:
        await asyncio.sleep(0.001)
    late = asyncio.create_task(engine.generate([4], Sampling(max_tokens=2), session="b"))
    await asyncio.sleep(0.01)
    assert not late.done(), "a request overtook the weights it was to wait for"
    await asyncio.to_thread(engine.close)
    for result in await asyncio.gather(endless, update, late, return_exceptions=True):
        assert isinstance(result, EngineFailure)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads of torch gain nothing on a model this small, and wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
