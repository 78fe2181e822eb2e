"""NVIDIA-NeMo/Gym: the server that grades multiple choice, as the project's benchmark GPQA configures it."""

from __future__ import annotations

import asyncio
import random
from functools import lru_cache
from typing import Any
from unittest.mock import MagicMock

from published_subjects import Subject
from published_subjects.shared_blind import QUIZ

ASKED = (
    "Answer this multiple choice question. The last line of your response should have the form 'Answer: A/B/C/D' "
    "(as 'Answer: A').\n\n"
)


@lru_cache
def grader() -> Any:
    from nemo_gym.server_utils import ServerClient
    from resources_servers.mcqa.app import MCQAResourcesServer, MCQAResourcesServerConfig

    config = MCQAResourcesServerConfig(
        host="127.0.0.1", port=8080, entrypoint="app.py", name="mcqa", grading_mode="lenient_answer_colon_md"
    )
    return MCQAResourcesServer(config=config, server_client=MagicMock(spec=ServerClient))


async def graded(response: str, task: dict[str, Any]) -> float:
    """The reward that the server returns for a response and its row."""
    server = grader()
    from nemo_gym.openai_utils import NeMoGymResponse
    from resources_servers.mcqa.app import MCQAVerifyRequest

    content = [{"type": "output_text", "text": response, "annotations": []}]
    message = {"id": "message", "type": "message", "role": "assistant", "status": "completed", "content": content}
    said = NeMoGymResponse(
        id="response",
        created_at=0.0,
        model="policy",
        object="response",
        output=[message],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )
    verdict = await server.verify(MCQAVerifyRequest(response=said, **task))
    return verdict.reward


def rows() -> list[dict[str, Any]]:
    made = []
    for number, (question, choices) in enumerate(QUIZ):
        shuffled = random.Random(number).sample(choices, 4)
        options = [{letter: text} for letter, text in zip("ABCD", shuffled, strict=True)]
        shown = "\n".join(f"{letter}: {text}" for letter, text in zip("ABCD", shuffled, strict=True))
        made.append(
            {
                "responses_create_params": {"input": [{"role": "user", "content": f"{ASKED}{question}\n{shown}"}]},
                "options": options,
                "expected_answer": "ABCD"[shuffled.index(choices[0])],
                "uuid": f"quiz-{number}",
            }
        )
    return made


def _brackets_are_not_read() -> bool:
    row = rows()[0]
    return asyncio.run(graded(f"Answer: \\boxed{{{row['expected_answer']}}}", row)) == 0


SUBJECTS = {
    "nemo-gym-mcqa-answer-line": Subject(
        (
            *("--data", "rows.jsonl", "--reward", "published_subjects.nemo_gym_blind:graded"),
            *("--prompt", "responses_create_params.input", "--answer", "expected_answer"),
        ),
        _brackets_are_not_read,
        rows,
    ),
}
