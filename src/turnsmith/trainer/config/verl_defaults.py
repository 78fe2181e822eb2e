"""verl's default config, composed by hydra, with our keys set in it.

Does not import verl: its YAML files are read from where the package is installed, so a dry run is quick and needs no
accelerator.
"""

from __future__ import annotations

import importlib.util
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from turnsmith.errors import ConfigError, MissingDependency
from turnsmith.importing import install_line


@cache
def defaults() -> Any:
    """verl's default config, as hydra composes it. Do not modify it."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependency(
            f"verl is not installed: {install_line('cpu')} (on a GPU machine: {install_line('vllm')})."
        )
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    GlobalHydra.instance().clear()
    folder = Path(spec.submodule_search_locations[0]) / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return hydra_compose(config_name="ppo_trainer")


def compose(keys: dict[str, Any]) -> Any:
    """verl's default config with `keys` set; a key that verl does not have is a ConfigError."""
    config = deepcopy(defaults())  # first, because it says what to install if nothing is
    from omegaconf import OmegaConf, open_dict
    from omegaconf.errors import OmegaConfBaseException

    for name, value in keys.items():
        key = name.removeprefix("+")
        try:
            if name.startswith("+"):
                with open_dict(config):
                    OmegaConf.update(config, key, value, force_add=True)
            else:
                OmegaConf.update(config, key, value, merge=False)
        except OmegaConfBaseException as error:
            raise ConfigError(f"verl does not accept {value!r} for {key!r}: {str(error).splitlines()[0]}") from error
    return config


@cache
def known_names() -> tuple[str, ...]:
    """The dotted names of all of verl's settings, sections included."""
    from omegaconf import OmegaConf

    names: list[str] = []

    def collect(section: Any, prefix: str) -> None:
        if isinstance(section, dict):
            for name, value in section.items():
                names.append(f"{prefix}{name}")
                collect(value, f"{prefix}{name}.")

    collect(OmegaConf.to_container(defaults(), resolve=False), "")
    return tuple(names)
