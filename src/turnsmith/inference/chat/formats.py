"""Chat templates for models that have none, such as base models: a plain format, and two that are known by name.

In `plain` every message ends with the end-of-text token, which no text can spell out (see `Chat`): what an environment
says can imitate the words `Assistant:`, but never the end of its own message before them. `llama2` is the format of
the Llama 2 models; its `[/INST]` is plain text, which an environment can write too.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError

logger = logging.getLogger(__name__)

FORMATS = {
    "plain": (
        "{{ bos_token }}{% for m in messages %}{{ m['role'] | capitalize }}{{ ':\n' }}{{ m['content'] }}"
        "{{ eos_token }}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:\n' }}{% endif %}"
    ),
    "chatml": (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    # As Meta's, but without the space between an answer and its end, which a model need not sample.
    "llama2": (
        "{% if messages[0]['role'] == 'system' %}"
        "{% set system = '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}{% set messages = messages[1:] %}"
        "{% else %}{% set system = '' %}{% endif %}"
        "{% for m in messages %}{% if m['role'] == 'user' %}"
        "{{ bos_token }}{{ '[INST] ' }}{% if loop.first %}{{ system }}{% endif %}{{ m['content'] + ' [/INST]' }}"
        "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'].lstrip() }}{{ eos_token }}"
        "{% else %}{{ raise_exception('Llama 2 has no role ' + m['role']) }}{% endif %}{% endfor %}"
    ),
}
"""Templates by their names."""
USES_PLAIN = (
    "The model has no chat template, so its conversations are written in a plain format (`User:`, the text, the "
    "end-of-text token): set model.chat_template to plain, chatml, llama2, a file or a template to choose."
)


def read_template(setting: str | None) -> str | None:
    """The template that `model.chat_template` stands for: a known one by its name, a file's content, or its own text.

    Raises:
        ConfigError: It is none of these.

    Example:
        >>> read_template("{{ messages[0]['content'] }}")
        "{{ messages[0]['content'] }}"
        >>> read_template("chatlm")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: model.chat_template='chatlm' is neither plain, chatml or llama2, nor a file that \
can be read, nor a Jinja template.
    """
    if setting is None or "{{" in setting or "{%" in setting:
        return setting
    if setting in FORMATS:
        return FORMATS[setting]
    try:
        return Path(setting).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError):
        raise ConfigError(
            f"model.chat_template={setting!r} is neither plain, chatml or llama2, nor a file that can be read, nor a "
            "Jinja template."
        ) from None


def set_template(tokenizer: Any, setting: str | None = None) -> None:
    """Give a tokenizer the template of `model.chat_template`, or the plain one, with a warning, if it has none."""
    if setting is not None:
        tokenizer.chat_template = read_template(setting)
    elif not getattr(tokenizer, "chat_template", None):
        tokenizer.chat_template = FORMATS["plain"]
        logger.warning(USES_PLAIN)
