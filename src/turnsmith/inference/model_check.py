"""Whether a model can be loaded, asked before a run starts: its config, tokenizer and chat template are read in a
process of its own, and the Hugging Face hub is asked once, because its own client would retry for a minute.

A wrong name, or a template that cannot be used, would otherwise be found minutes later in a process on another machine.
The process hides torch from transformers: importing it takes most of the time, and only weights need it.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError
from turnsmith.inference.chat.formats import USES_PLAIN
from turnsmith.inference.models import cache_folder, closest_model

_SECONDS = 5.0


def check_hub(model: str) -> None:
    """Raise a `ConfigError` if this is the id of a model that is neither on this machine nor available from the hub.

    Errors that may pass, such as a busy hub, are left to the code that loads the model.
    """
    if Path(model).expanduser().exists():
        return
    import httpx
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, OfflineModeIsEnabled, RepositoryNotFoundError

    if isinstance(try_to_load_from_cache(model, "config.json"), str):
        return
    try:
        get_hf_file_metadata(hf_hub_url(model, "config.json"), timeout=_SECONDS)
    except GatedRepoError:
        raise ConfigError(
            f"The model {model!r} is gated: accept its conditions on its page of the Hugging Face hub, and log in with "
            "`hf auth login` or HF_TOKEN."
        ) from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"There is no model {model!r} on the Hugging Face hub, or it is private: correct model.model_name, or log "
            "in with `hf auth login` or HF_TOKEN."
        ) from None
    except (httpx.ConnectError, OfflineModeIsEnabled) as error:
        raise ConfigError(
            f"The model {model!r} is not on this machine, and the Hugging Face hub cannot be reached ({error}): set "
            "model.local_path to a folder, or download it where there is a connection."
        ) from None
    except (OSError, httpx.HTTPError, EntryNotFoundError):
        return


_MARK = "turnsmith refuses this model: "
_THINKING = {None: "", False: "off", True: "on"}
"""`inference.thinking` as an argument of the process."""


class ModelCheck:
    """A check that runs while a `with` block does other work. Models that turnsmith builds need none.

    Args:
        path: The folder or Hugging Face id to load the model from.
        tool_format: `inference.tool_format`; a user's own parser is not checked.
        trust_remote_code: Whether code that comes with the model may run.
        thinking: `inference.thinking`, which the chat template must have a switch for.
        chat_template: `model.chat_template`.
        warn: Called with what the user should know about a usable model.

    Raises:
        ConfigError: At the end of the block: the model is not there, or cannot be used.
    """

    def __init__(
        self,
        path: str,
        tool_format: str,
        *,
        trust_remote_code: bool,
        thinking: bool | None = None,
        chat_template: str | None = None,
        warn: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        is_ours = Path(path).parent == cache_folder()
        self._is_needed = thinking is not None or chat_template is not None or not is_ours
        self._arguments = [path, tool_format, str(int(trust_remote_code)), _THINKING[thinking], chat_template or ""]
        self._warn = warn
        self._process: subprocess.Popen[str] | None = None

    @classmethod
    def of(cls, config: ConfigStore, path: str, warn: Callable[[str], None] = lambda sentence: None) -> ModelCheck:
        """The check of a run's model, which is loaded from `path`."""
        model, inference = config.model, config.inference
        return cls(
            path,
            inference.tool_format,
            trust_remote_code=model.trust_remote_code,
            thinking=inference.thinking,
            chat_template=model.chat_template,
            warn=warn,
        )

    def __enter__(self) -> Self:
        if self._is_needed:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None:
            return
        if error is not None:
            self._process.kill()
        said, _ = self._process.communicate()
        _, refused, reason = said.rpartition(_MARK)
        if refused and error is None:
            raise ConfigError(reason.strip())
        if USES_PLAIN in said:
            self._warn(USES_PLAIN)


def find_fault(
    path: str,
    tool_format: str,
    *,
    trust_remote_code: bool,
    thinking: bool | None = None,
    chat_template: str | None = None,
) -> str:
    """Why the model cannot be used, in a sentence; empty if nothing was found."""
    from transformers import AutoConfig, AutoTokenizer

    from turnsmith.inference.chat import Chat, set_template, thinking_settings
    from turnsmith.tools.parsing.formats import parser_for

    tokenizer = None
    for kind, load in (("config", AutoConfig.from_pretrained), ("tokenizer", AutoTokenizer.from_pretrained)):
        try:
            with suppress(OSError):  # what is in the cache needs no connection
                tokenizer = load(path, trust_remote_code=trust_remote_code, local_files_only=True)
                continue
            tokenizer = load(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())
            return f"The {kind} of the model {path!r} cannot be read: {reason}{closest_model(path)}"
    try:
        set_template(tokenizer, chat_template)
        Chat(tokenizer, template_settings=thinking_settings(tokenizer, thinking))
        if ":" not in tool_format:
            parser_for(tool_format, tokenizer)
    except ConfigError as error:
        return f"The model {path!r} cannot be trained: {error}"
    return ""


def report_fault(path: str, tool_format: str, trusted: str, thinking: str = "", chat_template: str = "") -> None:
    """Print our warnings, and why the model cannot be used. The run itself reports other errors."""
    logging.getLogger("turnsmith").addHandler(logging.StreamHandler(sys.stdout))
    if trusted == "0":
        sys.modules["torch"] = None  # type: ignore[assignment]
    with suppress(ImportError):
        setting = next(value for value, word in _THINKING.items() if word == thinking)
        template = chat_template or None
        fault = find_fault(
            path, tool_format, trust_remote_code=trusted == "1", thinking=setting, chat_template=template
        )
        sys.stdout.write(f"{_MARK}{fault}" if fault else "")


if __name__ == "__main__":
    report_fault(*sys.argv[1:])
