"""The SGLang engine against sglang's own source: its request types are run, and every name we send is one of its own.

The test server parses requests with sglang's own code (`GenerateReqInput`, `SamplingParams`) and responds in its
format; the tokens are sampled from the tiny model.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests.unit.inference import sglang_source
from tests.unit.inference.local_server import LocalServer, Reply, Request, serving

from turnsmith import EnvironmentSpec, EpisodeStart, Limits, Sampling, run_episode
from turnsmith.env.examples import GuessNumber
from turnsmith.errors import ConfigError, EngineFailure
from turnsmith.inference.engines.sglang_engine import SGLangEngine
from turnsmith.inference.engines.sglang_protocol import (
    generate_request,
    read_generation,
    read_scores,
    sampling_params,
    score_request,
)
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.inference.models import resolve
from turnsmith.inference.sync.create import create_inference_engine

PROMPT = [1, 20, 30, 40]
SAMPLING = Sampling(max_tokens=8, temperature=0.8, seed=5, stop_token_ids=(2,))


@pytest.fixture(scope="module")
def local() -> Iterator[TransformersEngine]:
    engine = TransformersEngine(resolve("tiny"))
    yield engine
    engine.close()


@dataclass
class Manager:
    """SGLang's tokenizer manager, with the tiny model in place of its scheduler."""

    model: TransformersEngine
    weight_version: str = "default"

    async def generate_request(self, request: Any, http_request: Any) -> AsyncIterator[dict[str, Any]]:
        request.normalize_batch_and_arguments()
        params = sglang_source.sampling_params()(**request.sampling_params)
        params.normalize(None)
        params.verify(100)
        # As in `Req._check_token_based_finish`: no stop token counts with `ignore_eos`, the model's own does without.
        stops = () if params.ignore_eos else (*(params.stop_token_ids or ()), 2)
        cut = 0 if params.top_k > 100 else params.top_k
        sampling = Sampling(params.max_new_tokens, params.temperature, params.top_p, cut, stops, params.sampling_seed)
        generation = await self.model.generate(request.input_ids, sampling, session="")
        reasons = sglang_source.finish_reasons()
        ended = reasons["FINISH_MATCHED_TOKEN"](2) if generation.stop_reason == "stop" else reasons["FINISH_LENGTH"](8)
        meta_info: dict[str, Any] = {
            "id": request.rid,
            "finish_reason": ended.to_json(),
            "weight_version": self.weight_version,
        }
        if request.return_logprob:
            pairs = zip(generation.log_probs, generation.token_ids, strict=True)
            meta_info["output_token_logprobs"] = [(log_prob, token, None) for log_prob, token in pairs]
            meta_info["input_token_logprobs"] = []
        if request.logprob_start_len >= 0:
            start = request.logprob_start_len
            after = await self.model.score(request.input_ids[: start + 1], request.input_ids[start + 1 :])
            pairs = zip([None, *after], request.input_ids[start:], strict=True)
            meta_info["input_token_logprobs"] = [(log_prob, token, None) for log_prob, token in pairs]
        yield {"output_ids": list(generation.token_ids), "meta_info": meta_info}

    async def update_weights_from_disk(self, request: Any, http_request: Any) -> tuple[bool, str, int]:
        if request.model_path == "nowhere":
            return False, "Failed to update weights.", 0
        self.weight_version = request.weight_version
        return True, "Succeeded.", 0


@pytest.fixture
def server(local: TransformersEngine) -> Iterator[LocalServer]:
    """SGLang's HTTP server: bodies become its own request types, as with FastAPI."""
    manager, io_struct = Manager(local), sglang_source.io_struct()

    async def generate(body: dict[str, Any]) -> Reply:
        try:
            return Reply(await anext(manager.generate_request(io_struct.GenerateReqInput(**body), None)))
        except ValueError as error:
            return Reply({"error": {"message": str(error)}}, 400)

    async def update(body: dict[str, Any]) -> Reply:
        request = io_struct.UpdateWeightFromDiskReqInput(**body)
        success, message, paused = await manager.update_weights_from_disk(request, None)
        return Reply({"success": success, "message": message, "num_paused_requests": paused}, 200 if success else 400)

    def answer(request: Request) -> Reply:
        if request.path == "/model_info":
            return Reply(
                {"model_path": resolve("tiny"), "tokenizer_path": resolve("tiny"), "weight_version": "default"}
            )
        return asyncio.run({"/generate": generate, "/update_weights_from_disk": update}[request.path](request.body))

    with serving(answer) as made:
        yield made


def test_every_name_is_one_of_sglangs() -> None:
    request = generate_request(PROMPT, SAMPLING) | score_request(PROMPT, [5])
    assert set(request) | {"routing_key"} <= sglang_source.fields_of("srt/managers/io_struct.py", "GenerateReqInput")
    known = set(inspect.signature(sglang_source.sampling_params()).parameters)
    assert set(sampling_params(SAMPLING)) <= known
    update = sglang_source.fields_of("srt/managers/io_struct.py", "UpdateWeightFromDiskReqInput")
    assert {"model_path", "weight_version", "flush_cache"} <= update


def test_every_endpoint_and_response_field_is_one_of_sglangs() -> None:
    assert {"/generate", "/model_info", "/update_weights_from_disk"} <= sglang_source.texts_of(
        "srt/entrypoints/http_server.py"
    )
    fields = sglang_source.texts_of("srt/managers/tokenizer_manager.py")
    assert {"output_ids", "meta_info", "finish_reason", "weight_version"} <= fields
    assert {"output_token_logprobs", "input_token_logprobs"} <= fields


def test_sglangs_ignore_eos_still_ignores_stop_tokens_too() -> None:
    """Why `ignore_eos` is only sent without stop tokens. If it fails, sglang has changed and it can always be sent."""
    request = sglang_source.named(sglang_source.tree("srt/managers/schedule_batch.py"), "Req")
    first = sglang_source.named(request, "_check_token_based_finish").body[0]
    assert ast.unparse(first) == "if self.sampling_params.ignore_eos:\n    return False"


def test_the_server_returns_the_models_tokens(server: LocalServer, local: TransformersEngine) -> None:
    engine = SGLangEngine(server.url, retries=0)
    generation = asyncio.run(engine.generate(PROMPT, SAMPLING, session="episode-1"))
    expected = asyncio.run(local.generate(PROMPT, SAMPLING, session=""))
    assert (generation.token_ids, generation.stop_reason, generation.exact) == (
        expected.token_ids,
        expected.stop_reason,
        True,
    )
    assert generation.log_probs == pytest.approx(expected.log_probs)
    assert server.requests[-1].body["routing_key"] == "episode-1"
    cut = Sampling(max_tokens=4, temperature=1.0, top_p=0.5)
    assert not asyncio.run(engine.generate(PROMPT, cut, session="")).exact
    on = asyncio.run(engine.generate(PROMPT, Sampling(max_tokens=40, temperature=0.0), session=""))
    assert (len(on.token_ids), on.stop_reason) == (40, "length")
    assert asyncio.run(engine.score(PROMPT, generation.token_ids)) == pytest.approx(
        asyncio.run(local.score(PROMPT, generation.token_ids))
    )
    engine.close()


def test_the_server_loads_weights_and_reports_their_version(server: LocalServer) -> None:
    engine = SGLangEngine(server.url, retries=0)
    asyncio.run(engine.update_weights("a/folder", 3))
    assert asyncio.run(engine.generate(PROMPT, SAMPLING, session="")).weights_version == 3
    with pytest.raises(EngineFailure, match="Failed to update weights"):
        asyncio.run(engine.update_weights("nowhere", 4))
    with pytest.raises(EngineFailure, match="save them to a folder"):
        asyncio.run(engine.update_weights([("a", torch.zeros(1))], 4))
    with pytest.raises(EngineFailure, match=r"400: top_p must be in \(0, 1\]"):
        asyncio.run(engine.generate(PROMPT, Sampling(top_p=2.0), session=""))
    assert asyncio.run(engine.generate(PROMPT, SAMPLING, session="")).weights_version == 3
    engine.close()


def test_an_episode_runs_on_the_server(server: LocalServer) -> None:
    with create_inference_engine(server.url, "sglang") as engine:
        trajectory = asyncio.run(
            run_episode(
                EpisodeStart("e"),
                environment=EnvironmentSpec.of(GuessNumber),
                engine=engine.engine,
                chat=engine.chat,
                limits=Limits(turns=3),
                sampling=Sampling(max_tokens=8),
            )
        )
        assert trajectory.num_turns == 3
        assert trajectory.exact
        assert engine.compute_log_probs(["a"], ["b"]).shape == (1,)
    with pytest.warns(UserWarning, match="The sglang engine does not use the setting dtype, which is for transformers"):
        create_inference_engine(server.url, "sglang", {"dtype": "float32"}).close()


def test_a_model_folder_in_place_of_a_url_says_how_to_start_a_server() -> None:
    with pytest.raises(ConfigError, match=r"sglang.launch_server --model-path some/model .* or use backend='vllm'"):
        create_inference_engine("some/model", "sglang", {"dtype": "float32"})


GOOD = {"finish_reason": {"type": "stop"}, "output_token_logprobs": [[-0.5, 5, None]]}


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ([], "no meta_info"),
        ({"text": "a"}, "no meta_info"),
        ({"meta_info": GOOD | {"finish_reason": None}}, "finish_reason=None"),
        ({"meta_info": GOOD | {"finish_reason": {"type": "abort", "message": "full"}}}, "aborted the turn: full"),
        ({"meta_info": GOOD | {"output_token_logprobs": None}}, "no readable log-probs"),
        ({"meta_info": GOOD | {"output_token_logprobs": [[None, 5, None]]}}, "no readable log-probs"),
        ({"meta_info": GOOD | {"output_token_logprobs": [[float("inf"), 5, None]]}}, "not a finite number"),
        ({"meta_info": GOOD | {"output_token_logprobs": []}}, "returned 0 tokens; 1 to 4"),
        ({"meta_info": GOOD, "output_ids": [6]}, "other tokens than it sampled"),
    ],
)
def test_an_invalid_response_is_an_error_in_words(answer: Any, sentence: str) -> None:
    with pytest.raises(EngineFailure, match=sentence):
        read_generation(answer, Sampling(max_tokens=4))


def test_scores_of_other_tokens_are_rejected() -> None:
    with pytest.raises(EngineFailure, match="other tokens than were sent"):
        read_scores({"meta_info": {"input_token_logprobs": [[None, 1, None], [-0.5, 6, None]]}}, [5])
