"""Arguments of `RayPPOTrainer` that can be given in several ways, or that only one value of is right."""

from __future__ import annotations

from typing import Any

from turnsmith.config import ConfigStore
from turnsmith.errors import ConfigError


def one_of(**given: Any) -> Any:
    """The argument that was given, of several names for it.

    Example:
        >>> one_of(dataset=None, train_dataset=[{"a": 1}])
        [{'a': 1}]
    """
    values = {name: value for name, value in given.items() if value is not None}
    if len(values) > 1:
        raise ConfigError(f"{' and '.join(values)} are two names for the same: pass one.")
    return next(iter(values.values()), None)


def environment_of(dataset: Any) -> Any:
    """The environment that a dataset was made for."""
    environment = getattr(dataset, "environment", None)
    if environment is None:
        raise ConfigError(
            "There is no environment to train in: pass environment=..., a class, an object or 'module:Name'."
        )
    return environment


def check_tokenizer(tokenizer: Any, config: ConfigStore) -> None:
    """Raise a ConfigError for a tokenizer with other tokens or another chat template than training will use."""
    if tokenizer is None:
        return
    from turnsmith.inference.chat import read_template
    from turnsmith.inference.sync.engines import load_tokenizer
    from turnsmith.models import resolve

    model = config.model
    own, _ = load_tokenizer(resolve(model.model_name, model.local_path), model.trust_remote_code)
    if tokenizer.get_vocab() != own.get_vocab():
        raise ConfigError(
            f"The tokenizer ({tokenizer.name_or_path!r}) has other tokens than that of the model "
            f"({model.local_path or model.model_name!r}), which is always used: leave tokenizer out."
        )
    template = read_template(model.chat_template) or own.chat_template or read_template("plain")
    if tokenizer.chat_template and tokenizer.chat_template != template:
        raise ConfigError(
            "The tokenizer's chat template is not the one that the run would use: set model.chat_template to its text."
        )
