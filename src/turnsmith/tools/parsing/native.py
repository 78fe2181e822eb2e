"""The parser of the format that a model family was trained on; the `renderers` package reads it from sampled tokens.

`renderers` (0.1.12) recognises a model only by the exact name of its hub page, never a checkpoint in a folder; and its
parsers use the standard library's JSON, which raises on integers of 5000 digits and on deep nesting, and accepts NaN
and lone surrogates. So the family is also recognised by its special tokens, and all results are checked again here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import orjson

from turnsmith.text import replace_surrogates
from turnsmith.tools.parsing import base
from turnsmith.tools.parsing.base import MAX_CALLS, ActionParser, FormatProblem, ParsedAction, ProblemKind
from turnsmith.tools.parsing.calls import MAX_NAME, ActionBuilder, show
from turnsmith.tools.parsing.function_calling import FunctionCallingParser

if TYPE_CHECKING:
    from turnsmith.tools.definition import ToolCall, ToolDefinition

__all__ = ["NativeParser", "parse_turn"]

FORMAT_HINT = "write the call exactly in your own tool call format, its arguments as one JSON object"
_FAMILY_TOKENS = {
    "<\uff5ctool\u2581calls\u2581begin\uff5c>": "deepseek-v3",
    "<|tool_calls_section_begin|>": "kimi-k2",
    "<arg_key>": "glm-4.5",
    "<minimax:tool_call>": "minimax-m2",
    "<|python_tag|>": "llama-3",
}
_PROBLEMS = {
    "unclosed_block": (ProblemKind.UNFINISHED, "has no end"),
    "missing_name": (ProblemKind.MISSING_NAME, "does not name a tool"),
    "invalid_json": (ProblemKind.INVALID_JSON, "is not valid JSON"),
}


class NativeParser(ActionParser):
    """Parses calls in the model family's own format. Use `parse_ids` where the sampled tokens are at hand.

    For a family without a parser in `renderers` it falls back to `FunctionCallingParser`.

    Args:
        tokenizer: The model's tokenizer.
        definitions: The tools; some families write arguments without types, which are then taken from the schemas.
        family: The name of the renderer in `renderers`, such as "qwen3"; detected by default.
        max_chars: Longer texts, or more tokens than this, are not parsed.

    Example:
        >>> from transformers import AutoTokenizer
        >>> from turnsmith.inference.models import resolve
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
        self._fallback = FunctionCallingParser(max_chars=max_chars)
        self._tools = [definition.as_openai() for definition in definitions]
        self.family, self._renderer = _load_renderer(tokenizer, _detect_family(tokenizer) if family is None else family)
        """The renderer's name; empty where the fallback is used."""

    def parse(self, text: str) -> ParsedAction:
        """Parse a completion that is given as text. Never raises."""
        if self._renderer is None or len(text) > self.max_chars:
            return self._fallback.parse(text)
        clean = replace_surrogates(text)
        try:
            ids = list(self._tokenizer.encode(clean, add_special_tokens=False))
        except Exception:  # noqa: BLE001 - the tokenizer failed, but the text itself can still be parsed
            return self._fallback.parse(clean)
        return self.parse_ids(ids)

    def parse_ids(self, ids: Sequence[int], *, prompt_ids: Sequence[int] | None = None) -> ParsedAction:
        """Parse a completion that is given as tokens. Never raises.

        Args:
            ids: The sampled tokens, with or without the stop token.
            prompt_ids: The prompt; shows whether the chat template has already opened the reasoning.
        """
        if len(ids) > self.max_chars:
            return base.too_large(len(ids), self.max_chars)
        if self._renderer is None:
            return self._fallback.parse(self._text(ids))
        try:
            prompt = None if prompt_ids is None else list(prompt_ids)
            response = self._renderer.parse_response(list(ids), tools=self._tools or None, prompt_ids=prompt)
            return self._check_response(response)
        except Exception:  # noqa: BLE001 - renderers raises on some completions; see the top of this file
            action = self._fallback.parse(self._text(ids))
            if action.problem is None and not action.calls:
                sentence = f"The answer could not be read: {FORMAT_HINT}."
                action.problem = FormatProblem(ProblemKind.INVALID_JSON, sentence)
            return action

    def instructions(self, definitions: Sequence[ToolDefinition]) -> str:
        """Empty where the chat template itself shows the format; else those of the fallback."""
        return "" if self._renderer is not None else self._fallback.instructions(definitions)

    def write(self, call: ToolCall) -> str:
        """The call in tags; `turnsmith check` asks the chat template first, which knows the model's own format."""
        return self._fallback.write(call)

    def _check_response(self, response: Any) -> ParsedAction:
        content = replace_surrogates(response.content or "")
        if response.reasoning_complete is False:
            return base.unfinished_reasoning()
        if self.family == "llama-3" and not response.tool_calls:
            # Llama 3 writes bare JSON, and its parser takes broken calls, or several of them, for plain text.
            return self._fallback.parse(content)
        builder = ActionBuilder("", 0, FORMAT_HINT)
        builder.final_answer = content
        for attempt in response.tool_calls[: MAX_CALLS + 1]:
            if len(builder.calls) == MAX_CALLS:
                builder.report_too_many(f"{MAX_CALLS} calls")
            else:
                _add_call(builder, attempt)
        return builder.build()

    def _text(self, ids: Sequence[int]) -> str:
        """Decode the tokens with their tags, but without special tokens at the end, such as the stop token."""
        tokenizer = self._tokenizer
        try:
            stop = {tokenizer.eos_token_id, tokenizer.pad_token_id, *tokenizer.all_special_ids}
            end = len(ids)
            while end and ids[end - 1] in stop:
                end -= 1
            return tokenizer.decode(list(ids[:end]), skip_special_tokens=False)
        except Exception:  # noqa: BLE001 - ids that the tokenizer does not have
            return ""


def _add_call(builder: ActionBuilder, attempt: Any) -> None:
    status = str(attempt.status)
    name = attempt.name if type(attempt.name) is str else ""
    # An unknown tool is not a format problem: the registry reports it.
    if status not in ("ok", "unknown_tool") or not 0 < len(name) <= MAX_NAME:
        kind = ProblemKind.INVALID_JSON if name else ProblemKind.MISSING_NAME
        kind, problem = _PROBLEMS.get(status, (kind, "is broken"))
        builder.report(kind, f"The call to `{show(name)}` {problem}" if name else f"The call {problem}")
        return
    arguments = attempt.arguments
    if type(arguments) is not str:
        try:
            # Through orjson, which leaves only what JSON allows: no NaN, no lone surrogates, no huge integers.
            arguments = orjson.dumps({} if arguments is None else arguments).decode()
        except (TypeError, ValueError):
            sentence = (
                f"The arguments of the call to `{show(name)}` are nested too deep or contain a number that is too large"
            )
            builder.report(ProblemKind.BAD_ARGUMENTS, sentence)
            return
    builder.add_calls({"name": name, "arguments": arguments, "id": attempt.id}, arguments)


def _detect_family(tokenizer: Any) -> str:
    """The name of the renderer for this model: by the model's name if it is known, else by its tokens."""
    try:
        from renderers.base import MODEL_RENDERER_MAP

        known = MODEL_RENDERER_MAP.get(str(getattr(tokenizer, "name_or_path", "")))
        if known:
            return known
        for token, family in _FAMILY_TOKENS.items():
            if _has_token(tokenizer, token):
                return family
        if _has_token(tokenizer, "<tool_call>") and _has_token(tokenizer, "<think>"):
            return "qwen3.5" if "<function=" in str(tokenizer.chat_template) else "qwen3"
    except Exception:  # noqa: BLE001 - no renderers, or another kind of tokenizer: use the fallback
        pass
    return ""


def _has_token(tokenizer: Any, token: str) -> bool:
    token_id = tokenizer.convert_tokens_to_ids(token)
    return isinstance(token_id, int) and token_id != tokenizer.unk_token_id


def parse_turn(parser: ActionParser, text: str, ids: Sequence[int]) -> ParsedAction:
    """Parse a turn by its tokens where they may say more: a model family may mark calls with control tokens, which the
    decoded text does not show.
    """
    return parser.parse_ids(ids) if ids and isinstance(parser, NativeParser) else parser.parse(text)


def _load_renderer(tokenizer: Any, family: str) -> tuple[str, Any]:
    if family in ("", "default"):
        return "", None
    try:
        from renderers import create_renderer
        from renderers.configs import config_from_name

        config: Any = config_from_name(family)
        return family, create_renderer(tokenizer, config)
    except Exception:  # noqa: BLE001 - the tokenizer lacks the family's tokens
        return "", None
