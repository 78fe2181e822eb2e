"""Whether a model of the Hugging Face hub can be had, asked once, without the minute of retries of its own client."""

from __future__ import annotations

from pathlib import Path

from turnsmith.errors import ConfigError

_SECONDS = 5.0


def check_hub(model: str) -> None:
    """Raise a `ConfigError` if this is the id of a model that is neither on this machine nor to be had from the hub.

    Answers that may be others a moment later, such as a hub that is too busy, are left to whoever loads the model.
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
