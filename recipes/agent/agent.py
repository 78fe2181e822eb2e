"""An agent with a loop of its own and OpenAI's client, as it would be anywhere: only the URL is turnsmith's."""

from typing import Any

from openai import AsyncOpenAI


async def solve(task: dict[str, Any], model: Any) -> float:
    """Ask three times; the reward is the share of the letter a in all answers."""
    messages: list[Any] = [{"role": "user", "content": "Say a"}]
    answers: list[str] = []
    async with AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
        for _ in range(3):
            reply = await client.chat.completions.create(model="any", messages=messages)
            answers.append(reply.choices[0].message.content or "")
            messages += [reply.choices[0].message, {"role": "user", "content": "Once more"}]
    said = "".join(answers)
    return said.count("a") / max(len(said), 1)
