"""The former major versions of OpenAI's and Anthropic's clients, streamed."""

import json
import sys

import anthropic
import openai

PARAMETERS = {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}


def with_openai() -> None:
    client, messages = openai.OpenAI(), [{"role": "user", "content": "What do you see?"}]
    tool = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": PARAMETERS}}
    while True:
        with client.chat.completions.stream(model="m", messages=messages, tools=[tool]) as stream:
            message = stream.get_final_completion().choices[0].message
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            seen = "a " + json.loads(call.function.arguments)["at"]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": seen})


def with_anthropic() -> None:
    client, messages = anthropic.Anthropic(), [{"role": "user", "content": "What do you see?"}]
    tool = {"name": "look", "description": "Look.", "input_schema": PARAMETERS}
    while True:
        with client.messages.stream(model="m", messages=messages, tools=[tool], max_tokens=200) as stream:
            message = stream.get_final_message()
        messages.append({"role": "assistant", "content": message.content})
        uses = [block for block in message.content if block.type == "tool_use"]
        if not uses:
            return
        results = [{"type": "tool_result", "tool_use_id": use.id, "content": f"a {use.input['at']}"} for use in uses]
        messages.append({"role": "user", "content": results})


{"openai": with_openai, "anthropic": with_anthropic}[sys.argv[1]]()
