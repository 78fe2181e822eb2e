"""NVIDIA-NeMo/Gym: servers that verify a response, called as the trainer calls them."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from unittest.mock import MagicMock

from published_subjects import Subject
from published_subjects._questions import choices


async def choice(response: str, expected_answer: str, options: list[dict[str, str]]) -> float:
    """The reward of the server of multiple choice, with its default grading."""
    from resources_servers.mcqa.app import MCQAResourcesServer, MCQAResourcesServerConfig, MCQAVerifyRequest

    server = MCQAResourcesServer(
        config=MCQAResourcesServerConfig(host="", port=0, entrypoint="", name=""), server_client=_client()
    )
    request = MCQAVerifyRequest(
        responses_create_params={"input": []},
        response=_response(response),
        options=options,
        expected_answer=expected_answer,
    )
    return (await server.verify(request)).reward


async def fact(response: str, question: str, expected_answer: str) -> float:
    """The reward of the server of facts, with a judge that looks for the expected answer."""
    from resources_servers.omniscience.app import OmniscienceConfig, OmniscienceServer, OmniscienceVerifyRequest

    server = OmniscienceServer(
        config=OmniscienceConfig(
            host="",
            port=0,
            entrypoint="",
            name="",
            judge_model_server={"type": "responses_api_models", "name": "judge"},
            judge_responses_create_params={"input": []},
        ),
        server_client=_client(),
    )
    request = OmniscienceVerifyRequest(
        responses_create_params={"input": []},
        response=_response(response),
        question=question,
        expected_answer=expected_answer,
    )
    return (await server.verify(request)).reward


def _judge(prompt: str) -> str:
    """A for an answer that names what is expected, D for none, B for any other."""
    expected, _, said = prompt.rpartition("Gold target: ")[2].partition("Predicted answer: ")
    said = said.partition("\n\n\n")[0].lower()
    if not said.strip():
        return "D"
    return "A" if re.search(rf"\b{re.escape(expected.strip().lower())}\b", said) else "B"


def _client() -> Any:
    """Stands in for the connection to the server of the judge."""
    from nemo_gym.server_utils import ServerClient

    async def post(*, json: Any, **_: Any) -> Any:
        async def body() -> dict[str, Any]:
            return _response(_judge(json.input[0].content)).model_dump()

        return MagicMock(json=body)

    client = MagicMock(spec=ServerClient)
    client.post = post
    return client


def _response(text: str) -> Any:
    from nemo_gym.openai_utils import NeMoGymResponse

    said = {"annotations": [], "text": text, "type": "output_text"}
    message = {"id": "message", "content": [said], "role": "assistant", "status": "completed", "type": "message"}
    return NeMoGymResponse(
        id="response",
        created_at=0.0,
        model="model",
        object="response",
        output=[message],
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
    )


def _choices() -> list[dict[str, Any]]:
    asked = "Think step by step, and give the letter of the right option inside \\boxed{}."
    return [
        {
            "responses_create_params": {
                "input": [
                    {
                        "role": "user",
                        "content": "\n".join(
                            [
                                f"{asked} {one['question']}",
                                *(f"{name}: {text}" for name, text in one["options"].items()),
                            ]
                        ),
                    }
                ]
            },
            "options": [{letter: text} for letter, text in one["options"].items()],
            "expected_answer": one["answer"],
            "grading_mode": "strict_single_letter_boxed",
            "uuid": str(index),
        }
        for index, one in enumerate(choices())
    ]


def _facts() -> list[dict[str, Any]]:
    asked = "Answer with the answer alone. If you do not know it, say so; that is better than a wrong answer."
    return [
        {
            "id": str(index),
            "question": one["question"],
            "expected_answer": one["options"][one["answer"]],
            "responses_create_params": {
                "input": [{"role": "system", "content": asked}, {"role": "user", "content": one["question"]}]
            },
        }
        for index, one in enumerate(choices())
    ]


def _a_letter_with_its_text_is_not_paid() -> bool:
    return asyncio.run(choice("It is \\boxed{B: Polymerase}.", "B", [{"A": "Staining"}, {"B": "Polymerase"}])) < 1


def _an_answer_without_a_thought_is_not_paid() -> bool:
    return asyncio.run(fact("Jupiter", "Which planet is the largest?", "Jupiter")) < 1


_DATA = ("--data", "rows.jsonl", "--prompt", "responses_create_params.input", "--answer", "expected_answer", "--reward")
SUBJECTS = {
    "nemo-gym-mcqa-boxed": Subject(
        (*_DATA, "published_subjects.nemo_gym:choice"), _a_letter_with_its_text_is_not_paid, _choices
    ),
    "nemo-gym-omniscience-no-think": Subject(
        (*_DATA, "published_subjects.nemo_gym:fact"), _an_answer_without_a_thought_is_not_paid, _facts
    ),
}
