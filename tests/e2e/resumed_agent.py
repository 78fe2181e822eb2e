"""An agent with two conversations, of three turns and of one, which follow each other."""

from __future__ import annotations

from typing import Any

import openai


def talk(task: dict[str, Any], model: Any) -> float:
    """Ask three times, then once more without the history; paid is the share of small letters in all of it."""
    with openai.OpenAI(base_url=model.url, api_key=model.key) as client:

        def say(messages: list[Any], text: str) -> str:
            messages.append({"role": "user", "content": text})
            reply = client.chat.completions.create(model="m", messages=messages).choices[0].message.content or ""
            messages.append({"role": "assistant", "content": reply})
            return reply

        main: list[Any] = []
        said = [say(main, text) for text in (f"Say a, {model.seed % 10}", "Once more", "And now?")]
        said.append(say([], f"Before: {said[-1]}. Say a"))
    text = "".join(said)
    return sum(letter.islower() for letter in text) / max(1, len(text))
