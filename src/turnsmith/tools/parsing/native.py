"""The format a model family was trained on, read from the sampled tokens by the `renderers` package.

`renderers` (0.1.12) knows a model by the exact name of its hub page, so a checkpoint in a folder would never be
recognised; its parsers read JSON with the standard library, which raises on integers of 5000 digits and on deep
nesting, and lets NaN and halves of characters through. So the family is also told by its control tokens, and all that
comes out is checked again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from turnsmith.text import replace_surrogates
from turnsmith.tools.parsing import base
from turnsmith.tools.parsing.base import MAX_CALLS, ActionParser, FormatProblem, ParsedAction, ProblemKind
from turnsmith.tools.parsing.calls import MAX_NAME, ActionBuilder, show
from turnsmith.tools.parsing.function_calling import CLOSE, FunctionCallingParser

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolDefinition

__all__ = ["NativeParser"]

FORMAT_HINT = "write the call exactly in your own tool call format, its arguments as one JSON object"
# A token that only this family has.
_MARKS = {
    "<\uff5ctool\u2581calls\u2581begin\uff5c>": "deepseek-v3",
    "<|tool_calls_section_begin|>": "kimi-k2",
    "<arg_key>": "glm-4.5",
    "<minimax:tool_call>": "minimax-m2",
    "<|python_tag|>": "llama-3",
}
_KINDS = {
    "unclosed_block": (ProblemKind.UNFINISHED, "has no end"),
    "missing_name": (ProblemKind.MISSING_NAME, "does not name a tool"),
    "invalid_json": (ProblemKind.INVALID_JSON, "is not valid JSON"),
}


class NativeParser(ActionParser):
    """Reads calls as the model's own family writes them. Give it the sampled tokens (`parse_ids`) where you have them.

    For a family without a parser in `renderers` it does what `FunctionCallingParser` does.

    Args:
        tokenizer: The model's tokenizer.
        definitions: The tools; some families write arguments without types, which are then taken from the schemas.
        family: The name of the renderer in `renderers`, such as "qwen3"; found out by default.
        max_chars: Longer texts, or more tokens than this, are not read.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.models import resolve
        >>> parser = NativeParser(AutoTokenizer.from_pretrained(resolve("tiny")))
        >>> parser.family
        ''
        >>> parser.parse('<tool_call>{"name": "look", "arguments": {}}</tool_call>').calls[0].name
        'look'
    """

    is_native = True

    def __init__(
        self,
        tokenizer: Any,
        definitions: Sequence[ToolDefinition] = (),
        *,
        family: str | None = None,
        max_chars: int = base.MAX_CHARS,
    ) -> None:
        super().__init__(max_chars=max_chars)
        self._tokenizer = tokenizer
        self._plain = FunctionCallingParser(max_chars=max_chars)
        self._tools = [definition.as_openai() for definition in definitions]
        self.family, self._renderer = _renderer(tokenizer, _family(tokenizer) if family is None else family)
        """The renderer's name; empty where `FunctionCallingParser` stands in."""

    def parse(self, text: str) -> ParsedAction:
        """Read the calls from text. Never raises."""
        if self._renderer is None or len(text) > self.max_chars:
            return self._plain.parse(text)
        clean = replace_surrogates(text)
        try:
            ids = list(self._tokenizer.encode(clean, add_special_tokens=False))
        except Exception:  # noqa: BLE001 - whatever a tokenizer makes of it, the text itself can still be read
            return self._plain.parse(clean)
        return self.parse_ids(ids)

    def parse_ids(self, ids: Sequence[int], *, prompt_ids: Sequence[int] | None = None) -> ParsedAction:
        """Read the calls from the sampled tokens. Never raises.

        Args:
            ids: What the model sampled, with or without its stop token.
            prompt_ids: What it was given; tells whether the template had opened the model's thinking already.
        """
        if len(ids) > self.max_chars:
            return base.too_large(len(ids), self.max_chars)
        if self._renderer is None:
            return self._plain.parse(self._text(ids))
        try:
            prompt = None if prompt_ids is None else list(prompt_ids)
            response = self._renderer.parse_response(list(ids), tools=self._tools or None, prompt_ids=prompt)
            return self._checked(response)
        except Exception:  # noqa: BLE001 - renderers raises on what models write; see the top of this file
            action = self._plain.parse(self._text(ids))
            if action.problem is None and not action.calls:
                sentence = f"The answer could not be read: {FORMAT_HINT}."
                action.problem = FormatProblem(ProblemKind.INVALID_JSON, sentence)
            return action

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Nothing where the model's own chat template teaches its format; else what `FunctionCallingParser` says."""
        return "" if self._renderer is not None else self._plain.instructions(definitions)

    def _checked(self, response: Any) -> ParsedAction:
        content = replace_surrogates(response.content or "")
        if response.reasoning_complete is False:
            return base.unfinished_thinking()
        if self.family == "llama-3" and not response.tool_calls:
            # The family writes bare JSON, and its parser takes broken or several calls for plain words.
            return self._plain.parse(content)
        builder = ActionBuilder("", 0, FORMAT_HINT)
        builder.final_answer = content
        for attempt in response.tool_calls[: MAX_CALLS + 1]:
            if len(builder.calls) == MAX_CALLS:
                builder.report_too_many(f"{MAX_CALLS} calls")
            else:
                _add_call(builder, attempt)
        return builder.build()

    def _text(self, ids: Sequence[int]) -> str:
        """The tokens as text with their tags, but without the stop token."""
        tokenizer = self._tokenizer
        try:
            stop = {tokenizer.eos_token_id, tokenizer.pad_token_id, *tokenizer.all_special_ids}
            stop.discard(tokenizer.convert_tokens_to_ids(CLOSE))
            end = len(ids)
            while end and ids[end - 1] in stop:
                end -= 1
            return tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
        except Exception:  # noqa: BLE001 - ids that no text belongs to
            return ""


def _add_call(builder: ActionBuilder, attempt: Any) -> None:
    status = str(attempt.status)
    name = attempt.name if type(attempt.name) is str else ""
    # A name the tool set lacks is no question of form: the registry says so.
    if status not in ("ok", "unknown_tool") or not 0 < len(name) <= MAX_NAME:
        kind = ProblemKind.INVALID_JSON if name else ProblemKind.MISSING_NAME
        kind, what = _KINDS.get(status, (kind, "is broken"))
        builder.report(kind, f"The call to `{show(name)}` {what}" if name else f"The call {what}")
        return
    arguments = attempt.arguments
    if type(arguments) is not str:
        try:
            # Through orjson: out comes only what JSON can hold, no NaN, no half characters, no endless integers.
            arguments = orjson.dumps({} if arguments is None else arguments).decode()
        except (TypeError, ValueError):
            sentence = f"The arguments of the call to `{show(name)}` are nested too deep or hold a number too large"
            builder.report(ProblemKind.BAD_ARGUMENTS, sentence)
            return
    builder.add_calls({"name": name, "arguments": arguments, "id": attempt.id}, arguments)


def _family(tokenizer: Any) -> str:
    """The renderer for this model: by its name if it is known, else by its tokens."""
    try:
        from renderers.base import MODEL_RENDERER_MAP

        known = MODEL_RENDERER_MAP.get(str(getattr(tokenizer, "name_or_path", "")))
        if known:
            return known
        for mark, family in _MARKS.items():
            if _has(tokenizer, mark):
                return family
        if _has(tokenizer, "<tool_call>") and _has(tokenizer, "<think>"):
            return "qwen3.5" if "<function=" in str(tokenizer.chat_template) else "qwen3"
    except Exception:  # noqa: BLE001 - no renderers, or a tokenizer of another kind: the fallback reads it
        pass
    return ""


def _has(tokenizer: Any, token: str) -> bool:
    found = tokenizer.convert_tokens_to_ids(token)
    return isinstance(found, int) and found != tokenizer.unk_token_id


def _renderer(tokenizer: Any, family: str) -> tuple[str, Any]:
    if family in ("", "default"):
        return "", None
    try:
        from renderers import create_renderer
        from renderers.configs import config_from_name

        config: Any = config_from_name(family)
        return family, create_renderer(tokenizer, config)
    except Exception:  # noqa: BLE001 - a tokenizer that lacks the family's tokens
        return "", None
