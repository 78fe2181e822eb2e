"""Train an agent that brings its own loop, with OpenAI's client unmodified: python examples/agent.py"""

from typing import Any

from openai import AsyncOpenAI

from turnsmith import ConfigStore, RayPPOTrainer


async def solve(task: dict[str, Any], model: Any) -> float:
    messages: list[Any] = [{"role": "user", "content": "Say a"}]
    answers: list[str] = []
    async with AsyncOpenAI(base_url=model.url, api_key=model.key) as client:
        for _ in range(3):
            reply = await client.chat.completions.create(model="any", messages=messages)
            answers.append(reply.choices[0].message.content or "")
            messages += [reply.choices[0].message, {"role": "user", "content": "Once more"}]
    said = "".join(answers)
    return said.count("a") / max(len(said), 1)


if __name__ == "__main__":
    config = ConfigStore()
    config.model.model_name = "tiny"  # a small random model that turnsmith makes itself
    config.inference.max_tokens = 8
    config.training.learning_rate = 1e-2
    RayPPOTrainer(config, solve).fit(num_epochs=4)
