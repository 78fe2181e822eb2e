"""Other players: what they say reaches the environment wherever it runs, is never trained on, and is counted."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.inference.local_server import Reply, Request, serving
from tests.unit.rollout.talking import AsyncShop, Blocking, Shop
from transformers import AutoTokenizer

from turnsmith import ConfigStore, EnvironmentConfig, EnvironmentSpec, EpisodeStart, Limits, Sampling, ScriptedEngine
from turnsmith.config import CheckpointConfig
from turnsmith.config_sources import apply_overrides, from_dict, to_dict
from turnsmith.errors import ConfigError
from turnsmith.inference import Chat
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.records.episodes import read_episodes, write_episodes
from turnsmith.records.run_folder import RunFolder
from turnsmith.rollout.episode import run_attempt, run_episode
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.model_copies import ModelFolder
from turnsmith.rollout.players import Players
from turnsmith.rollout.retry import play_episode
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trainer.checkpoints.contents import add_past_model, drop_later_models
from turnsmith.trainer.config.check import check
from turnsmith.trainer.resume import extensions_in
from turnsmith.trajectory import Outcome, Trajectory

WORDS = "scripted:tests.unit.rollout.talking:"


@pytest.fixture(scope="module")
def chat(tiny_folder: str) -> Chat:
    return Chat(AutoTokenizer.from_pretrained(tiny_folder))


def play(
    chat: Chat, environment: Any, replies: Any, players: dict[str, Any], *, engine: Any = None, **settings: Any
) -> Trajectory:
    return asyncio.run(
        run_episode(
            EpisodeStart("episode", seed=settings.pop("seed", 0)),
            environment=EnvironmentSpec.of(environment, EnvironmentConfig(**settings)),
            engine=engine or ScriptedEngine(replies, chat),
            chat=chat,
            limits=Limits(tokens=4096, prompt_tokens=4096),
            sampling=Sampling(max_tokens=200, seed=3),
            players=Players.of(players),
        )
    )


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_what_a_player_says_is_observed_counted_and_never_trained_on(chat: Chat, isolation: str) -> None:
    call = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    players = {"customer": WORDS + "customer", "mirror": WORDS + "random_customer"}
    episode = play(chat, Shop, [call, "Coffee?", "Here is tea."], players, isolation=isolation, isolation_workers=1)
    assert episode.outcome is Outcome.COMPLETED, episode.error
    assert episode.states[0] == "Tea, please (1)."
    assert episode.states[2] == "Tea, please (2)."
    assert episode.messages[-1]["content"] == "thanks, I asked 2 times"
    said = ["Tea, please (1).", "Tea, please (2).", "thanks, I asked 2 times"]
    assert episode.others["customer"] == {
        "who": WORDS + "customer", "replies": 3, "tokens": sum(len(chat.encode(text)) for text in said),
    }  # fmt: skip
    assert episode.others["mirror"]["replies"] == 1
    trained = [token for token, mask in zip(episode.tokens.ids, episode.tokens.mask, strict=True) if mask]
    assert len(trained) == episode.sampled_tokens == sum(turn.stop - turn.start for turn in episode.turns)
    text = chat.text(trained)
    assert "Coffee?" in text
    assert "Tea, please" not in text
    assert "cups" not in text
    assert "Tea, please (2)." in chat.show(episode.tokens.ids)


def test_async_environments_ask_with_await_and_may_not_block(chat: Chat) -> None:
    players = {"customer": WORDS + "customer"}
    for isolation in ("loop", "process"):
        episode = play(chat, AsyncShop, ["tea"], players, isolation=isolation, isolation_workers=1)
        assert episode.others["customer"]["replies"] == 2, episode.error
    refused = play(chat, Blocking, ["tea"], players)
    assert "write `await self.ask_async(...)`" in refused.error


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_the_time_of_a_player_counts_towards_no_limit(chat: Chat, isolation: str) -> None:
    players = {"customer": WORDS + "slow_customer"}
    episode = play(chat, Shop, ["tea"], players, isolation=isolation, isolation_workers=1, call_seconds=1.0)
    assert episode.outcome is Outcome.COMPLETED, episode.error
    assert [what for what in episode.waits if "worker processes" not in what] == []


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_a_player_that_nobody_plays_or_that_fails_is_a_fault_in_words(chat: Chat, isolation: str) -> None:
    nobody = play(chat, Shop, ["tea"], {"custmer": "frozen"}, isolation=isolation, isolation_workers=1)
    assert nobody.outcome is Outcome.ENVIRONMENT_FAILED
    assert "asks the player 'customer'" in nobody.error
    assert "There is players.custmer." in nobody.error
    broken = play(chat, Shop, ["tea"], {"customer": WORDS + "broken_customer"}, isolation=isolation)
    assert broken.outcome is Outcome.ENVIRONMENT_FAILED
    assert "The player 'customer'" in broken.error
    assert "purse" in broken.error
    mute = play(chat, Shop, ["tea"], {"customer": WORDS + "mute_customer"}, isolation=isolation)
    assert mute.outcome is Outcome.ENVIRONMENT_FAILED
    assert "mute_customer returned NoneType; it must return the text to say" in mute.error


def test_past_models_play_only_if_the_run_keeps_them() -> None:
    config = ConfigStore()
    config.players = {"rival": "self"}
    for saved in ({"save_interval": 0}, {"save_model": False}):
        config.checkpoint = CheckpointConfig(**{"save_interval": 2, "save_model": True, **saved})
        with pytest.raises(ConfigError, match="A player is self, for which past checkpoints play"):
            check(config)
    config.checkpoint = CheckpointConfig(save_interval=2, save_model=True)
    check(config)


def test_half_of_the_groups_meet_one_of_the_four_newest_past_models() -> None:
    rival = Players.of({"rival": "self"}).settings["rival"]
    assert (rival.past, rival.pool) == (0.5, 4)


@pytest.mark.parametrize(
    ("past", "pool", "is_fine"), [(0, 0, True), (1, 4, True), (1.1, 4, False), (-0.1, 4, False), (0, -1, False)]
)
def test_a_share_is_from_0_to_1_and_a_pool_may_be_empty(past: float, pool: int, is_fine: bool) -> None:
    with nullcontext() if is_fine else pytest.raises(ConfigError, match="past is a share from 0 to 1"):
        Players.of({"rival": {"who": "self", "past": past, "pool": pool}}).check()


def test_it_knows_whether_past_models_of_the_run_play() -> None:
    assert Players.of({"customer": "frozen", "rival": "self"}).has_self
    assert not Players.of({"customer": "frozen"}).has_self


def test_a_script_with_a_seed_says_the_same_to_every_episode_of_a_group(chat: Chat) -> None:
    players = {"customer": WORDS + "random_customer"}
    first, again, other = (play(chat, Shop, ["a", "b"] * 5, players, seed=seed) for seed in (1, 1, 2))
    assert first.states == again.states != other.states
    assert len(set(first.states)) > 1


def test_a_server_plays_and_its_own_count_is_taken(chat: Chat) -> None:
    def answer(request: Request) -> Reply:
        if request.path.endswith("/models"):
            return Reply({"data": [{"id": "m"}]})
        text = "<think>what?</think> thanks" if "tea" in request.body["messages"][-1]["content"] else "Tea."
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return Reply({"choices": [choice], "usage": {"completion_tokens": 41}})

    with serving(answer) as server:
        episode = play(chat, Shop, ["coffee", "tea"], {"customer": {"who": server.url, "temperature": 0.5}})
    assert episode.states == ["Tea.", "Tea."], episode.error
    assert episode.messages[-1]["content"] == "thanks"
    assert (episode.others["customer"]["replies"], episode.others["customer"]["tokens"]) == (3, 123)
    bodies = [request.body for request in server.asked("/chat/completions")]
    assert [message["role"] for message in bodies[-1]["messages"]] == ["system", "user", *["assistant", "user"] * 2]
    assert {body["temperature"] for body in bodies} == {0.5}
    assert len({body["seed"] for body in bodies}) == 3


def test_the_record_and_the_metrics_have_the_tokens_by_name(chat: Chat, tmp_path: Path) -> None:
    episode = play(chat, Shop, ["tea"], {"customer": WORDS + "customer"})
    run = RunFolder.create(tmp_path, "demo")
    write_episodes(run, 1, [episode])
    assert read_episodes(run)[0].others == episode.others
    metrics = (report_of([episode]) + report_of([episode])).metrics()
    assert metrics["others/tokens"] == metrics["others/customer/tokens"] == 2 * episode.others["customer"]["tokens"] > 0
    assert metrics["others/customer/replies"] == 4


def test_a_retried_episode_replays_the_model_and_asks_the_players_again(chat: Chat, tiny: TransformersEngine) -> None:
    crashes = [True]

    class Fragile(Shop):
        def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
            result = super().step(action)
            if self.step_count == 1 and crashes:
                crashes.pop()
                raise OSError("gone")
            return result[0], 0.0, self.step_count >= 2, {}

    spec = RolloutSpec(
        environment=EnvironmentSpec.of(Fragile),
        sampling=Sampling(max_tokens=8, seed=5),
        players=Players.of({"customer": "self"}),
    )
    result = asyncio.run(play_episode(EpisodeStart("e"), spec, tiny, chat))
    [given_up], last = result.given_up, result.trajectory
    assert last.actions[:2] == given_up.actions[:2]
    assert last.states[:2] == given_up.states[:2]
    assert last.others["customer"]["who"] == "now"


@pytest.fixture
def pool(tiny_folder: str, tmp_path: Path) -> Path:
    """Past models of steps 2, 4 and 6."""
    for step in (2, 4, 6):
        model = tmp_path / f"global_step_{step}" / "actor" / "huggingface"
        shutil.copytree(tiny_folder, model)
        add_past_model(tmp_path / "players", model.parents[1], step)
        shutil.rmtree(model.parents[1])  # pruned: the past model stays
    return tmp_path / "players"


def test_the_seed_decides_which_past_model_plays(chat: Chat, tiny: TransformersEngine, pool: Path) -> None:
    players = replace(Players.of({"customer": {"who": "self", "pool": 2}}), first=ModelFolder(tiny_folder_of(pool)))
    players = replace(players, pool=str(pool))

    def whoever_plays(seed: int, players: Players = players) -> Trajectory:
        start = EpisodeStart(f"e-{seed}", seed=seed)
        environment = EnvironmentSpec.of(AsyncShop)
        spec = RolloutSpec(environment=environment, sampling=Sampling(max_tokens=4, seed=0), players=players)
        return asyncio.run(run_attempt(start, spec, tiny, chat))

    drawn = [whoever_plays(seed) for seed in range(24)]
    assert [one.error for one in drawn if one.outcome is not Outcome.COMPLETED] == []
    names = [one.others["customer"]["who"] for one in drawn]
    assert set(names) == {"now", "first", "step-4", "step-6"}
    assert 6 <= names.count("now") <= 18
    again = [whoever_plays(seed) for seed in range(24)]
    assert [one.states for one in again] == [one.states for one in drawn]
    assert [one.others for one in again] == [one.others for one in drawn]
    evaluated = [whoever_plays(seed, players.for_evaluation()).others["customer"]["who"] for seed in range(4)]
    assert evaluated == ["first"] * 4
    drop_later_models(pool, 4)
    assert sorted(folder.name for folder in pool.iterdir()) == ["step-2", "step-4"]


def tiny_folder_of(pool: Path) -> str:
    return str(pool / "step-2")


def test_settings_on_the_command_line_and_in_files_say_who_plays(tmp_path: Path) -> None:
    config = apply_overrides(ConfigStore(), ["players.a=self", "players.a.past=0.8", "players.b={who: frozen}"])
    assert config.players == {"a": {"who": "self", "past": 0.8}, "b": {"who": "frozen"}}
    assert from_dict(to_dict(config)).players == config.players
    assert Players.of(config.players).settings["a"].past == 0.8
    script = apply_overrides(ConfigStore(), ["players.a=scripted:my.py:f"]).players["a"]
    assert script == f"scripted:{Path('my.py').absolute()}:f"
    for wrong, words in [
        ({"a": {"past": 1}}, "write who plays it"),
        ({"a": {"who": "self", "pst": 1}}, "write who plays it"),
        ({"a": {"who": "self", "past": 2}}, "a share from 0 to 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            Players.of(wrong)
    with pytest.raises(ConfigError, match="has no 'custmer'"):
        Players.of({"a": WORDS + "custmer"}).check()


def test_a_script_that_a_run_folder_names_is_not_imported_without_trust() -> None:
    config = ConfigStore()
    config.players["user"] = "scripted:no_such_module_anywhere:f"
    assert extensions_in(config) == {"players.user": ["scripted:no_such_module_anywhere:f"]}
