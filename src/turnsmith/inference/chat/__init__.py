"""Conversations as tokens, without ever re-tokenising what the model sampled.

Knows nothing about engines, environments or training. Start reading in `rendering`.
"""

from turnsmith.inference.chat.formats import read_template, set_template
from turnsmith.inference.chat.rendering import Chat
from turnsmith.inference.chat.template import Message, ToolSchema, thinking_settings

__all__ = ["Chat", "Message", "ToolSchema", "read_template", "set_template", "thinking_settings"]
