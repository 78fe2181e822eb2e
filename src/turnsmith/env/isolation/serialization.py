"""How the user's classes and functions get to a worker: by a name to import; only what has none is pickled.

Pickles go one way, from the process that trains to the workers it has started itself. Nothing that comes back from a
worker is ever unpickled.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

from turnsmith.config import EnvironmentConfig
from turnsmith.env.isolation.messages import BadMessage, Define, encode, read_dict
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure, MissingDependency, describe_failure
from turnsmith.importing import import_folder, import_name, import_object


def define_spec(spec: EnvironmentSpec, number: int, *, plain: bool) -> Define:
    """A spec as a message; `plain`: to where nothing may be pickled.

    Raises:
        ConfigError: It cannot be sent.
    """
    if plain or isinstance(spec.target, str):  # a server has a class of its own, and only looks whether it is this one
        name, folders, pickled = spec.name if plain else str(spec.target), list[str](), b""
    else:
        name, folders, pickled = _pack(spec.target)
    config, is_pickled = _pack_config(spec, plain=plain)
    return Define(0, number, name, folders, pickled, config, is_pickled, spec.call_seconds)


def define_function(function: Any, number: int) -> Define:
    """A reward function as a message.

    Raises:
        ConfigError: It cannot be sent.
    """
    return Define(0, number, *_pack(function))


def unpack_spec(sent: Define, only: str) -> EnvironmentSpec:
    """The spec that `define_spec` sent. `only`: what this place hosts, whatever was sent."""
    if only and (sent.pickled or sent.config_is_pickled):
        raise EnvironmentFailure("This server reads nothing that is pickled: settings must be plain data.")
    if only and sent.name != EnvironmentSpec(only).name:
        raise EnvironmentFailure(f"This server hosts {EnvironmentSpec(only).name}, not {sent.name[:200]}.")
    try:
        target: Any = only or sent.name
        if not only:
            _look_in(sent.folders)
            target = target or _unpickle(sent.pickled)
        config: Any = None
        if sent.config:
            config = _unpickle(sent.config) if sent.config_is_pickled else EnvironmentConfig(**read_dict(sent.config))
    except Exception as error:
        told = str(error) if isinstance(error, ConfigError) else describe_failure(f"Loading {sent.name}", error)
        raise EnvironmentFailure(f"{told} (in the worker process)") from error
    return EnvironmentSpec(target, config, isolation="thread")


def unpack_function(sent: Define) -> Any:
    """The function that `define_function` sent."""
    try:
        _look_in(sent.folders)
        return import_object(sent.name) if sent.name else _unpickle(sent.pickled)
    except Exception as error:
        told = describe_failure(f"Loading the reward function {sent.name}", error)
        raise EnvironmentFailure(f"{told} (in the worker process)") from error


def _pack_config(spec: EnvironmentSpec, *, plain: bool) -> tuple[bytes, bool]:
    config = spec.config
    if config is None:
        return b"", False
    if type(config) is EnvironmentConfig:
        try:
            settings = dict(vars(config))
            packed = encode(settings)
            if read_dict(packed) == settings:  # tuples, for one, would come out as lists
                return packed, False
        except (TypeError, ValueError, OverflowError, RecursionError, BadMessage):
            pass
    if plain:
        raise ConfigError(
            f"The settings of {spec.name} cannot be sent to a server: only texts, numbers, lists and dicts can."
        )
    return _pickle(config), True


def _pack(found: Any) -> tuple[str, list[str], bytes]:
    """The name to import something by and the folder that its module is in; or a pickle."""
    module = sys.modules.get(str(getattr(found, "__module__", None)))
    folder = import_folder(module)
    # A script is not run again in a worker, guarded or not: what it defines is sent as it is now.
    name = import_name(found) if module is not None and module.__name__ != "__main__" else None
    if name and (folder or name.rpartition(":")[0].endswith(".py")):
        return name, [folder] if folder else [], b""
    return "", [folder] if folder else [], _pickle(found)


def _look_in(folders: list[str]) -> None:
    sys.path += [folder for folder in folders if folder not in sys.path]


def _pickle(value: Any) -> bytes:
    try:
        import cloudpickle
    except ImportError as error:
        raise MissingDependency(
            f"{value!r} has no name to import it by, and sending it to a worker process without one needs cloudpickle: "
            "pip install cloudpickle, or define it at the top of a module."
        ) from error
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    # A module that cannot be imported elsewhere is sent along; cloudpickle would send its name.
    sent_along = module is not None and not _is_importable(module)
    try:
        if sent_along:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigError(
            f"{getattr(value, '__qualname__', type(value).__name__)} cannot be sent to a worker process "
            f"({type(error).__name__}: {error}): define it at the top of a module, or set environment.isolation=thread."
        ) from error
    finally:
        if sent_along:
            cloudpickle.unregister_pickle_by_value(module)


def _is_importable(module: Any) -> bool:
    if getattr(module, "__file__", None) is None:
        return getattr(module, "__spec__", None) is not None  # built in, and not made by hand
    return import_folder(module) is not None


def _unpickle(pickled: bytes) -> Any:
    return pickle.loads(pickled)  # noqa: S301  (from the process that started this one)
