"""The scripted engine."""

from __future__ import annotations

import pytest

from turnsmith.errors import EngineFailure
from turnsmith.inference import Chat, Generation, Sampling, ScriptedEngine


@pytest.fixture(scope="module")
def chat(byte_tokenizer) -> Chat:
    return Chat(byte_tokenizer())


async def test_each_session_plays_the_list_from_its_start(chat):
    engine = ScriptedEngine(["a", "b"], chat)
    generations = [await engine.generate([1], Sampling(), session=name) for name in ("one", "two", "one")]
    assert [chat.text(generation.token_ids) for generation in generations] == ["a", "a", "b"]
    with pytest.raises(EngineFailure, match="2 replies, but turn 3"):
        await engine.generate([1], Sampling(), session="one")


async def test_a_reply_is_cut_to_max_tokens(chat):
    generation = await ScriptedEngine(["abcdef"], chat).generate([1], Sampling(max_tokens=3), session="")
    assert (chat.text(generation.token_ids), generation.stop_reason, len(generation.log_probs)) == ("abc", "length", 3)


async def test_ids_generations_and_errors_are_replies_too(chat):
    whole = Generation([5], [-1.0], "abort", 7)
    engine = ScriptedEngine([[5, 6], whole, RuntimeError("gpu lost")], chat, log_prob=-0.5)
    first = await engine.generate([1], Sampling(), session="")
    assert (list(first.token_ids), list(first.log_probs)) == ([5, 6], [-0.5, -0.5])
    assert await engine.generate([1], Sampling(), session="") is whole
    with pytest.raises(RuntimeError, match="gpu lost"):
        await engine.generate([1], Sampling(), session="")


async def test_a_function_sees_the_turn_and_the_prompt(chat):
    async def reply(turn: int, prompt: str) -> str:
        return f"{turn} {'Hi' in prompt}"

    prompt = chat.open([{"role": "user", "content": "Hi"}])
    generation = await ScriptedEngine(reply, chat).generate(prompt, Sampling(), session="")
    assert chat.text(generation.token_ids) == "0 True"
