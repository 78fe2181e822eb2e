"""Sends the user's classes and functions to a worker by their import names; only those without one are pickled. A
trajectory is sent as data.

Pickles go only from the process that runs episodes to the workers that it has started. Nothing from a worker is ever
unpickled.
"""

from __future__ import annotations

import inspect
import pickle
import sys
from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from turnsmith.config import EnvironmentConfig
from turnsmith.env.isolation.messages import BadMessage, Define, encode, read_dict
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError, EnvironmentFailure, MissingDependency, describe_failure
from turnsmith.importing import import_folder, import_name, import_object
from turnsmith.trajectory import Decision, Outcome, TokenBuffer, Trajectory, TurnRecord


def define_spec(spec: EnvironmentSpec, number: int) -> Define:
    """A spec as a message.

    Raises:
        ConfigError: It cannot be sent.
    """
    target = spec.target
    name, folders, pickled = (target, list[str](), b"") if isinstance(target, str) else _pack(target)
    config, is_pickled = _pack_config(spec.config)
    return Define(0, number, name, folders, pickled, config, is_pickled, spec.call_seconds)


def define_function(function: Any, number: int) -> Define:
    """A reward function as a message.

    Raises:
        ConfigError: It cannot be sent.
    """
    return Define(0, number, *_pack(function))


def unpack_spec(definition: Define) -> EnvironmentSpec:
    """The spec in a message."""
    try:
        _add_to_path(definition.folders)
        target: Any = definition.name or _unpickle(definition.pickled)
        config: Any = None
        if definition.config_is_pickled:
            config = _unpickle(definition.config)
        elif definition.config:
            config = EnvironmentConfig(**read_dict(definition.config))
    except Exception as error:
        reason = str(error) if isinstance(error, ConfigError) else describe_failure(f"Loading {definition.name}", error)
        raise EnvironmentFailure(f"{reason} (in the worker process)") from error
    return EnvironmentSpec(target, config, isolation="thread")


def unpack_function(definition: Define) -> Any:
    """The function in a message."""
    try:
        _add_to_path(definition.folders)
        return import_object(definition.name) if definition.name else _unpickle(definition.pickled)
    except Exception as error:
        reason = describe_failure(f"Loading the reward function {definition.name}", error)
        raise EnvironmentFailure(f"{reason} (in the worker process)") from error


def _pack_config(config: EnvironmentConfig | None) -> tuple[bytes, bool]:
    if config is None:
        return b"", False
    if type(config) is EnvironmentConfig:
        try:
            settings = dict(vars(config))
            packed = encode(settings)
            if read_dict(packed) == settings:  # tuples, for example, would become lists
                return packed, False
        except (TypeError, ValueError, OverflowError, *BadMessage):
            pass
    return _pickle(config), True


def _pack(target: Any) -> tuple[str, list[str], bytes]:
    """An object's import name and the folder of its module, or a pickle."""
    module = sys.modules.get(str(getattr(target, "__module__", None)))
    folder = import_folder(module)
    # A worker does not run the script again, even a guarded one: its definitions are pickled.
    name = import_name(target) if module is not None and module.__name__ != "__main__" else None
    if name and (folder or name.rpartition(":")[0].endswith(".py")):
        return name, [folder] if folder else [], b""
    return "", [folder] if folder else [], _pickle(target)


def _add_to_path(folders: list[str]) -> None:
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
    # A module that cannot be imported in the worker is pickled by value; cloudpickle would send its name.
    by_value = module is not None and not _is_importable(module)
    try:
        if by_value:
            cloudpickle.register_pickle_by_value(module)
        return cloudpickle.dumps(value)
    except Exception as error:
        raise ConfigError(
            f"{getattr(value, '__qualname__', type(value).__name__)} cannot be sent to a worker process "
            f"({_culprit(value, cloudpickle.dumps)}{type(error).__name__}: {error}): define it at the top of a module, "
            "or set environment.isolation=thread."
        ) from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _culprit(value: Any, dumps: Callable[[Any], bytes]) -> str:
    """The first name outside of a class or function that its code uses and that cannot be sent, for a message."""
    for function in filter(inspect.isfunction, vars(value).values() if isinstance(value, type) else [value]):
        for name in function.__code__.co_names:
            try:
                dumps(function.__globals__.get(name))
            except Exception:  # pickling an object can raise anything
                return f"it uses {name}; "
    return ""


def _is_importable(module: Any) -> bool:
    if getattr(module, "__file__", None) is None:
        return getattr(module, "__spec__", None) is not None  # a builtin function
    return import_folder(module) is not None


def _unpickle(pickled: bytes) -> Any:
    return pickle.loads(pickled)  # noqa: S301  (from the process that started this one)


def pack_trajectory(trajectory: Trajectory) -> bytes:
    """A trajectory as bytes.

    Example:
        >>> copy = unpack_trajectory(pack_trajectory(Trajectory(actions=["left"], rewards=[1.0])))
        >>> copy.actions, copy.total_reward
        (['left'], 1.0)
    """
    try:
        return msgspec.msgpack.encode(trajectory, enc_hook=_encode_array)
    except (Exception, RecursionError) as error:
        raise EnvironmentFailure(f"The trajectory cannot be sent to its environment's worker: {error}") from error


def unpack_trajectory(packed: bytes) -> Trajectory:
    """The trajectory in the bytes of `pack_trajectory`."""
    fields = msgspec.msgpack.decode(packed)
    fields |= {
        "tokens": _tokens(fields["tokens"]),
        "branches": list(map(_tokens, fields["branches"])),
        "turns": [TurnRecord(**turn | {"swaps": tuple(map(tuple, turn["swaps"]))}) for turn in fields["turns"]],
        "outcome": Outcome(fields["outcome"]) if fields["outcome"] else None,
        "decision": Decision(fields["decision"]),
    }
    return Trajectory(**fields)


def _tokens(fields: dict[str, Any]) -> TokenBuffer:
    arrays = (array(*fields[name]) for name in ("ids", "log_probs", "mask"))
    return TokenBuffer(*arrays, prompt_length=fields["prompt_length"])


def _encode_array(value: Any) -> Any:
    if isinstance(value, array):
        return value.typecode, value.tobytes()
    raise TypeError(f"{type(value).__name__} is not plain data")
