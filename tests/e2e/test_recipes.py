"""The recipes of docs/recipes.md with the real packages: what their tool scores is the reward of the episode."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from tests.e2e.packages import make_environment
from turnsmith import Chat, ScriptedEngine
from turnsmith.config import EnvironmentConfig
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.inference.engine import Sampling
from turnsmith.rollout import EpisodeStart, run_episode
from turnsmith.rollout.spec import Limits

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.timeout(900)]
PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        ("inspect_agent.py", ("inspect-ai==0.3.285", "openai==3.49.0")),
        ("verifiers_agent.py", ("verifiers==0.4.0", "openai==2.54.0")),
    ],
)
async def test_what_the_other_tool_scores_is_the_reward(
    program: str, packages: tuple[str, ...], tmp_path: Path, smollm2_folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL):
        (tmp_path / name).write_text(text)
    python = make_environment(tmp_path / "packages", packages)
    # verifiers runs `uv`, which is beside the Python of these tests.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    chat = Chat(AutoTokenizer.from_pretrained(smollm2_folder))
    config = EnvironmentConfig(command=f"{python} {program}", folder=str(tmp_path))
    for reply, reward in (("It is 4", 1.0), ("It is 5", 0.0)):
        trajectory = await run_episode(
            EpisodeStart("episode-1", task={"question": "What is 2 + 2?", "answer": "4"}),
            environment=EnvironmentSpec.of("turnsmith.env.agent:CommandAgent", config),
            engine=ScriptedEngine([reply], chat),
            chat=chat,
            limits=Limits(prompt_tokens=1024, tokens=2048),
            sampling=Sampling(max_tokens=50),
        )
        assert (trajectory.error, trajectory.outcome) == ("", "completed")
        assert (trajectory.actions, trajectory.rewards) == ([reply], [reward])
        assert "What is 2 + 2?" in chat.show(trajectory.tokens.ids)
