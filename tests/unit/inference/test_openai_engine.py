"""The openai engine against real HTTP servers on loopback: exact ones, text-only ones, busy, broken and dying ones."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.inference.local_server import LocalServer, Reply, Request, always, completion, like_vllm, serving
from transformers import AutoTokenizer

from turnsmith import Chat, EnvironmentSpec, EpisodeStart, Generation, Limits, Outcome, Sampling, run_episode
from turnsmith.env.examples import GuessNumber
from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.engines.openai_engine import OpenAIEngine
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.inference.models import resolve
from turnsmith.inference.sync.create import create_inference_engine
from turnsmith.records.episodes import read_episodes, write_episodes

PROMPT = [1, 20, 30, 40]
KEY = "sk-very-secret"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve("tiny"))


@pytest.fixture(scope="module")
def local() -> Iterator[TransformersEngine]:
    engine = TransformersEngine(resolve("tiny"))
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vllm(local: TransformersEngine, tokenizer: Any) -> Iterator[LocalServer]:
    with serving(like_vllm(local, tokenizer)) as server:
        yield server


def generate(server: LocalServer | str, sampling: Sampling | None = None, **settings: Any) -> Generation:
    url = server if isinstance(server, str) else server.url
    engine = OpenAIEngine(url, **{"retries": 0, "timeout": 5.0} | settings)
    try:
        return asyncio.run(engine.generate(PROMPT, sampling or Sampling(max_tokens=6), session="episode 1/ä"))
    finally:
        engine.close()


def test_ids_and_log_probs_are_the_servers_own(vllm: LocalServer, local: TransformersEngine) -> None:
    sampling = Sampling(max_tokens=8, temperature=0.8, top_p=0.9, seed=5, stop_token_ids=(2,))
    generation = generate(vllm, sampling)
    expected = asyncio.run(local.generate(PROMPT, sampling, session=""))
    assert (generation.token_ids, generation.log_probs, generation.stop_reason) == (
        expected.token_ids,
        expected.log_probs,
        expected.stop_reason,
    )
    assert generation.exact
    last = vllm.requests[-1]
    assert last.headers["x-session-id"] == "episode%201/%C3%A4"
    # What a server would fill in from its model's own settings is generation; the prompt is not sent back each time.
    for name, value in {"min_p": 0.0, "repetition_penalty": 1.0, "top_k": -1, "ignore_eos": True}.items():
        assert last.body[name] == value
    assert "return_token_ids" not in last.body


def test_log_probs_before_temperature_are_not_exact(local: TransformersEngine, tokenizer: Any) -> None:
    with serving(like_vllm(local, tokenizer, processed=False)) as server:
        engine = OpenAIEngine(server.url, tokenizer=tokenizer)
        plain, warm = Sampling(max_tokens=4), Sampling(max_tokens=4, temperature=0.7)
        assert asyncio.run(engine.generate(PROMPT, plain, session="")).exact
        assert not asyncio.run(engine.generate(PROMPT, warm, session="")).exact
        assert "--logprobs-mode processed_logprobs" in engine.why_inexact
        engine.close()


def test_a_long_prompt_gets_the_tokens_that_remain(vllm: LocalServer) -> None:
    engine = OpenAIEngine(vllm.url)
    generation = asyncio.run(engine.generate([20] * 509, Sampling(max_tokens=64), session=""))
    assert (len(generation.token_ids), generation.stop_reason) == (3, "length")
    with pytest.raises(EngineFailure, match="The prompt has 512 tokens, but the server allows 512"):
        asyncio.run(engine.generate([20] * 512, Sampling(max_tokens=64), session=""))
    engine.close()


def test_text_without_ids_is_not_exact(tokenizer: Any) -> None:
    with serving(always(Reply(completion("Hi<|im_end|>")))) as server:
        engine = OpenAIEngine(server.url, tokenizer=tokenizer)
        generation = asyncio.run(engine.generate(PROMPT, Sampling(max_tokens=32), session=""))
        assert not generation.exact
        assert generation.log_probs == [0.0] * len(generation.token_ids)
        # The text spells a control token, which it must not become; the end of the turn is the real one.
        assert tokenizer.decode(generation.token_ids) == "Hi<|im_end|><|im_end|>"
        assert list(generation.token_ids).count(2) == 1
        assert "ignore_eos" not in server.requests[-1].body  # SGLang's would then not stop at all
        cut = asyncio.run(engine.generate(PROMPT, Sampling(max_tokens=3), session=""))
        assert (len(cut.token_ids), cut.stop_reason) == (3, "length")
        assert "without token ids or log-probs" in engine.why_inexact
        engine.close()
        with pytest.raises(ConfigError, match="returns only text, so a tokenizer is needed"):
            generate(server)


def test_an_episode_runs_on_a_server_that_has_only_chat(tokenizer: Any, tmp_path: Path) -> None:
    guesses = iter(["hello", "8", "12", "9"])

    def answer(request: Request) -> Reply:
        if request.path != "/v1/chat/completions":
            return Reply({"detail": "Not Found"}, 404)
        if "max_tokens" in request.body:
            return Reply({"error": {"message": "Use 'max_completion_tokens' instead."}}, 400)
        message = {"role": "assistant", "content": next(guesses)}
        return Reply({"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 99}})

    with serving(answer) as server:
        engine = OpenAIEngine(server.url, "hosted", tokenizer=tokenizer)
        trajectory = asyncio.run(
            run_episode(
                EpisodeStart("e", seed=5),
                environment=EnvironmentSpec.of(GuessNumber),
                engine=engine,
                chat=Chat(tokenizer),
                limits=Limits(),
                sampling=Sampling(max_tokens=8),
            )
        )
        engine.close()
    assert (trajectory.outcome, trajectory.actions) == (Outcome.COMPLETED, ["8", "12", "9"])
    assert server.requests[-1].body["messages"] == trajectory.messages[:-2]
    assert not trajectory.exact
    assert "takes messages and returns text" in engine.why_inexact
    write_episodes(tmp_path, 1, [trajectory])
    assert not read_episodes(tmp_path)[0].exact


def test_a_system_prompt_of_the_template_is_not_sent(byte_tokenizer: Callable[..., Any]) -> None:
    template = (
        "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are Tiny.<|im_end|>\n' }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = byte_tokenizer(template)
    message = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
    with serving(always(Reply(message))) as server:
        engine = OpenAIEngine(server.url, tokenizer=tokenizer, api="chat")
        for messages in ([{"role": "user", "content": "é"}], [{"role": "system", "content": "Be brief."}, *MESSAGES]):
            prompt = Chat(tokenizer).open(messages)
            asyncio.run(engine.generate(prompt, Sampling(max_tokens=8), session=""))
            assert server.requests[-1].body["messages"] == messages
        engine.close()


MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "<b>"}, {"role": "user", "content": ""}]


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply({"error": {"message": "bad token"}}, 400), "refused with 400: bad token."),
        (Reply({"error": {"message": "no such model"}}, 404), "refused with 404: no such model."),
        (Reply({"error": {"message": f"wrong key {KEY}"}}, 401), r"401: wrong key \*\*\*. Pass its API key as api_key"),
        (Reply({"detail": [{"loc": "body"}]}, 500), "refused with 500: "),
        (Reply(b"", 502), "refused with 502: Bad Gateway."),
        (Reply(b"", 307, {"Location": "/elsewhere"}), "refused with 307"),
        (Reply({}, 429, {"Retry-After": "3600"}), "refused with 429"),
        (Reply(b"<html>Welcome", 200), "not JSON: '<html>Welcome'. Check that the URL"),
        (Reply(b'{"choices": [', 200), "not JSON"),
        (Reply({"choices": []}), "exactly one choice"),
        (Reply(completion(finish_reason="content_filter")), "finish_reason='content_filter'"),
        (Reply(completion(token_ids=[5, "6"])), "invalid token ids"),
        (Reply(completion(token_ids=[5, 2**40])), "invalid token ids"),
        (Reply(completion(token_ids=[])), "returned 0 tokens; 1 to 4"),
        (Reply(completion(token_ids=[5] * 5)), "returned 5 tokens; 1 to 4"),
        (Reply(completion(token_ids=[5], logprobs={"token_logprobs": [-1.0, -2.0]})), "1 token ids but 2 log-probs"),
        (Reply(completion(token_ids=[5], logprobs={"token_logprobs": [None]})), "not a finite number"),
        (Reply(completion(token_ids=[5], logprobs={"token_logprobs": [float("nan")]})), "not JSON"),
        (Reply(completion(logprobs={"tokens": ["token_id:x"], "token_logprobs": [0.0]})), "invalid token ids"),
        (
            Reply(completion(token_ids=[5]) | {"usage": {"completion_tokens": 3}}),
            "reports 3 sampled tokens but returned 1",
        ),
        (
            Reply(completion(token_ids=[5], logprobs={"token_logprobs": [-1.0]}, prompt_token_ids=[9])),
            "changed the tokens of the prompt",
        ),
        (Reply(drop=True), "closed the connection"),
        (Reply({}, after=0.4), "did not respond within 0.2 s"),
    ],
)
def test_every_bad_response_is_an_error_in_words(reply: Reply, sentence: str) -> None:
    with serving(always(reply)) as server, pytest.raises(EngineFailure, match=sentence) as failed:
        generate(server, Sampling(max_tokens=4), api="completions", api_key=KEY, timeout=0.2 if reply.after else 5.0)
    assert KEY not in repr(failed.value)
    assert server.requests[-1].headers["authorization"] == f"Bearer {KEY}"


def test_an_unreachable_server_is_an_error_in_words() -> None:
    began = time.monotonic()
    with pytest.raises(EngineFailure, match=r"http://127.0.0.1:9/v1 cannot be reached: .* Is it running there\?"):
        generate("http://user:password@127.0.0.1:9", retries=1)
    assert time.monotonic() - began < 20


def test_a_busy_server_is_retried_after_its_retry_after(tokenizer: Any) -> None:
    busy = iter([Reply(drop=True), Reply({}, 503, {"Retry-After": "0.05"}), Reply({}, 429, {"Retry-After": "0"})])
    with serving(always(lambda request: next(busy, Reply(completion())))) as server:
        assert generate(server, retries=3, tokenizer=tokenizer).stop_reason == "stop"
        busy = iter([Reply({"error": "full"}, 429, {"Retry-After": "0"})] * 9)
        with pytest.raises(EngineFailure, match="refused 3 times with 429: full"):
            generate(server, retries=2)
        busy = iter([Reply({"error": "full"}, 429, {"Retry-After": "99"})])
        with pytest.raises(EngineFailure, match=r"429: full\. It asks to retry after 99 s, which is too long"):
            generate(server, retries=2)


def test_never_more_requests_in_flight_than_max_concurrency(tokenizer: Any) -> None:
    with serving(always(Reply(completion(), after=0.25))) as server:
        engine = OpenAIEngine(server.url, tokenizer=tokenizer, max_concurrency=3)

        async def many() -> None:
            turns = (engine.generate(PROMPT, Sampling(), session=str(number)) for number in range(12))
            assert len(await asyncio.gather(*turns)) == 12

        asyncio.run(many())
        engine.close()
        assert server.most_at_once == 3
        assert len(server.asked("/completions")) == 12 + 1  # one more, to detect the dialect


def test_closing_and_cancelling_end_pending_requests(tokenizer: Any) -> None:
    with serving(always(Reply(completion(), after=30.0))) as server:
        engine = OpenAIEngine(server.url, tokenizer=tokenizer)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(engine.generate(PROMPT, Sampling(), session=""), 0.1))
        threading.Timer(0.1, engine.close).start()
        with pytest.raises(EngineFailure, match="closed"):
            asyncio.run(engine.generate(PROMPT, Sampling(), session=""))
        assert time.monotonic() - began < 20
        with pytest.raises(EngineFailure, match="closed"):
            asyncio.run(engine.generate(PROMPT, Sampling(), session=""))
        engine.close()


def test_the_tokenizer_of_another_model_is_detected(vllm: LocalServer, byte_tokenizer: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="The tokenizer does not belong to the server's model"):
        generate(vllm, tokenizer=byte_tokenizer())


def test_the_only_model_is_chosen_and_of_several_one_must_be_named() -> None:
    with (
        serving(lambda request: Reply({"data": [{"id": "a"}, {"id": "b"}]})) as server,
        pytest.raises(ConfigError, match=r"has these models: a, b\. Choose one with model="),
    ):
        generate(server)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"url": "http://host:port"}, "must look like"),
        ({"api_key": "a\nb"}, "characters that are not allowed in an HTTP header"),
        ({"api_key": "“key”"}, "characters that are not allowed in an HTTP header"),
        ({"api": "responses"}, "no api 'responses'"),
        ({"retries": -1}, "retries 0 or more"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as failed:
        OpenAIEngine(settings.pop("url", "http://host"), "model", **settings)
    assert "key”" not in str(failed.value)


def test_the_key_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch, vllm: LocalServer) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    generate(vllm)
    assert vllm.requests[-1].headers["authorization"] == f"Bearer {KEY}"
    generate(vllm, api_key="")
    assert "authorization" not in vllm.requests[-1].headers


def test_create_inference_engine_takes_a_url(vllm: LocalServer, local: TransformersEngine) -> None:
    with create_inference_engine(vllm.url, config={"tokenizer": "tiny"}) as engine:
        generation = engine.generate(["Hello"], max_tokens=6, temperature=0)
        assert generation.exact
        with pytest.raises(EngineFailure, match="no prompt_logprobs"):
            engine.compute_log_probs(["a"], ["b"])
    assert vllm.requests[-1].body["temperature"] == 1.0, "log-probs are those of the model itself"
    expected = asyncio.run(local.generate(engine.encode("Hello"), Sampling(6, 0.0, stop_token_ids=(2,)), session=""))
    assert generation.token_ids == [list(expected.token_ids)]
    with create_inference_engine("tiny", "openai", {"url": vllm.url}) as engine:
        assert engine.generate(["Hello"], max_tokens=6, temperature=0).token_ids == generation.token_ids
    with pytest.raises(ConfigError, match=r"no tokenizer at 'somewhere' \(the model name that the server reports\)"):
        create_inference_engine(vllm.url)
    with pytest.raises(ConfigError, match="needs a server's URL: 'tiny' is not one"):
        create_inference_engine("tiny", "openai")
    with pytest.raises(ConfigError, match="The vllm engine loads a model and takes no URL"):
        create_inference_engine(vllm.url, "vllm")
    with pytest.raises(ConfigError, match=r"no setting modell\. Did you mean model"):
        create_inference_engine(vllm.url, config={"modell": "a"})
