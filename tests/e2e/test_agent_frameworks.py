"""Agents of real frameworks, unmodified, each in an environment of its own: every turn after the first is bridged.

The packages come from the package index. The model is SmolLM2, after some steps on the same conversation with scripted
replies: then it calls the tools of the framework by itself, three turns and more.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.packages import make_environment
from turnsmith import Chat, ScriptedEngine, Trajectory
from turnsmith.config import EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Engine, Sampling
from turnsmith.inference.engines.transformers_engine import TransformersEngine
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits
from turnsmith.trajectory import TokenBuffer

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

TEMPERATURE = 0.3
PROGRAMS = Path(__file__).parent / "frameworks"
CALL = '<tool_call>{"name": "look", "arguments": {"at": "door"}}</tool_call>'
LOOKS = [CALL, f"Again. {CALL}", CALL + CALL, "I saw a door."]
BASH = '<tool_call>{{"name": "bash", "arguments": {{"command": "{}"}}}}</tool_call>'
SHELL = [f"A file. {BASH.format('echo hello > hello.txt')}", f"So: {BASH.format('cat hello.txt')}"]
SHELL += [BASH.format("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")]


@dataclass
class Framework:
    program: str
    packages: tuple[str, ...]
    replies: tuple[str, ...] = tuple(LOOKS)


FRAMEWORKS = [
    Framework("openai_agents.py responses", ("openai-agents==0.24.0",)),
    Framework("openai_agents.py chat", ("openai-agents==0.24.0",)),
    Framework("pydantic_ai_agent.py", ("pydantic-ai-slim[openai]==2.66.0",)),
    Framework("langgraph_agent.py", ("langgraph==1.2.20", "langchain-openai==1.7.3")),
    Framework("older_clients.py openai", ("openai==2.54.0", "anthropic==1.17.0")),
    Framework("older_clients.py anthropic", ("openai==2.54.0", "anthropic==1.17.0")),
    Framework(
        "mini_swe.py", ("mini-swe-agent==2.4.6", "mcp"), tuple(SHELL)
    ),  # litellm imports mcp without asking for it
]


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], Path]:
    """The Python of an environment for each set of packages."""
    every = {framework.packages for framework in FRAMEWORKS}
    return {packages: make_environment(tmp_path_factory.mktemp("environment"), packages) for packages in every}


async def play(command: str, folder: Path, engine: Engine, chat: Chat) -> Trajectory:
    """One episode of an agent, started in a folder."""
    folder.mkdir()
    return await run_episode(
        EpisodeStart("episode-1"),
        environment=EnvironmentSpec.of(
            "turnsmith.env.agent:CommandAgent", EnvironmentConfig(command=command, folder=str(folder))
        ),
        engine=engine,
        chat=chat,
        limits=Limits(prompt_tokens=8192, tokens=8192),
        sampling=Sampling(max_tokens=400, temperature=TEMPERATURE),
        reward_fn=lambda trajectory: 1.0,
    )


def teach(model_folder: str, said: Trajectory, folder: Path) -> None:
    """Fine-tune a model until it is sure to say what was said, and save it in a folder."""
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ids, mask = torch.tensor([said.tokens.ids]), torch.tensor([said.tokens.mask])
    for _ in range(40):
        loss = model(ids, labels=ids.masked_fill(mask == 0, -100)).loss
        if loss.item() < 0.005:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder)


def sampled_log_probs(tokens: TokenBuffer) -> list[float]:
    """Those of the tokens that the model sampled, as they were recorded."""
    return [log_prob for log_prob, is_said in zip(tokens.log_probs, tokens.mask, strict=True) if is_said]


def log_probs_of(model: torch.nn.Module, tokens: TokenBuffer) -> list[float]:
    """What a model gives the sampled tokens, read in one pass."""
    ids = torch.tensor(tokens.ids)
    with torch.no_grad():
        logits = model(ids[None]).logits[0, :-1] / TEMPERATURE
    every = torch.log_softmax(logits, -1).gather(1, ids[1:, None])[:, 0]
    return every[torch.tensor(tokens.mask[1:]) == 1].tolist()


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.program)
async def test_a_framework_is_recorded_token_for_token(
    framework: Framework, environments: dict[tuple[str, ...], Path], smollm2_folder: str, tmp_path: Path
):
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    command = f"{environments[framework.packages]} {PROGRAMS / framework.program}"
    scripted = await play(command, tmp_path / "scripted", ScriptedEngine(framework.replies, chat), chat)
    teach(smollm2_folder, scripted, tmp_path / "taught")
    with closing(TransformersEngine(str(tmp_path / "taught"), dtype="float32")) as engine:
        trajectory = await play(command, tmp_path / "sampled", engine, chat)
    assert (trajectory.error, trajectory.outcome) == ("", "completed")
    assert trajectory.actions == list(framework.replies)
    bridged = ["opened"] + ["bridged"] * (len(framework.replies) - 1)
    assert [info["continuation"] for info in trajectory.infos] == bridged
    assert trajectory.branches == []
    assert sampled_log_probs(trajectory.tokens) == pytest.approx(
        log_probs_of(engine.model, trajectory.tokens), abs=1e-4
    )
