"""Agents of real frameworks, unmodified, each in an environment of its own: every turn after the first is bridged.

The packages come from the package index.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import make_environment
from turnsmith import Chat, ScriptedEngine
from turnsmith.config import EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Sampling
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.limits import Limits

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]

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


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.program)
async def test_a_framework_is_recorded_token_for_token(
    framework: Framework, environments: dict[tuple[str, ...], Path], smollm2_folder: str, tmp_path: Path
):
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    command = f"{environments[framework.packages]} {PROGRAMS / framework.program}"
    config = EnvironmentConfig(command=command, folder=str(tmp_path))
    trajectory = await run_episode(
        EpisodeStart("episode-1"),
        environment=EnvironmentSpec.of("turnsmith.env.agent:CommandAgent", config),
        engine=ScriptedEngine(framework.replies, chat),
        chat=chat,
        limits=Limits(prompt_tokens=8192, tokens=8192),
        sampling=Sampling(max_tokens=400),
        reward_fn=lambda trajectory: 1.0,
    )
    assert (trajectory.error, trajectory.outcome) == ("", "completed")
    assert trajectory.actions == list(framework.replies)
    bridged = ["opened"] + ["bridged"] * (len(framework.replies) - 1)
    assert [info["continuation"] for info in trajectory.infos] == bridged
    assert trajectory.branches == []
