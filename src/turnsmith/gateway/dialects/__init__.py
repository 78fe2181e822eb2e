"""The APIs that the gateway speaks, as pure functions: bytes to a `ModelRequest`, and a `ModelReply` to bytes."""

from turnsmith.gateway.dialects.anthropic_messages import AnthropicMessages
from turnsmith.gateway.dialects.base import APIDialect
from turnsmith.gateway.dialects.chat_completions import ChatCompletions
from turnsmith.gateway.dialects.responses import Responses

__all__ = ["AnthropicMessages", "ChatCompletions", "APIDialect", "Responses"]
