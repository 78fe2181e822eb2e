"""Names to import things by: `package.module:Name` or `path/to/file.py:Name`, the same in every process.

Environments, reward functions, tools and everything that users register are named this way on the command line, in
config files and in run folders. Code itself is never written to a run folder.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import json
import os
import shlex
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from turnsmith.errors import ConfigError, MissingDependency

_FROM_FILE = "turnsmith_user_"
"""Prefix of the module name of a file whose own name is taken, by a module of the standard library for example."""

_file_lock = threading.RLock()
"""Another thread must not find a module in `sys.modules` that is still being loaded."""


def face(package: str, names: str) -> Callable[[str], Any]:
    """A package's `__getattr__` for public names that the specification has there, wherever they are defined.

    Example:
        >>> face("turnsmith.tools", "MultiTurnManager")("MultiTurnManager").__module__
        'turnsmith.rollout.harness'
    """

    def load(name: str) -> Any:
        if name in names.split():
            return getattr(importlib.import_module("turnsmith"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load


def import_object(name: str) -> Any:
    """Import what a name stands for.

    Raises:
        ConfigError: The module cannot be imported, or does not have it; suggests what it has.

    Example:
        >>> import_object("pathlib:Path")
        <class 'pathlib.Path'>
        >>> import_object("pathlib:Pth")
        Traceback (most recent call last):
        turnsmith.errors.ConfigError: pathlib has no 'Pth'. Did you mean 'Path'?
    """
    place, colon, attribute = name.rpartition(":")
    if not (colon and place and attribute):
        raise ConfigError(f"{name!r} is not a name to import: write module:Name or path/to/file.py:Name.")
    if place.endswith(".py"):
        with _file_lock:
            module = _import_file(Path(place))
    else:
        module = _import_module(place)
    try:
        return attrgetter(attribute)(module)
    except AttributeError:
        own = [one for one, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        hint = _did_you_mean(attribute, own) or (f" It defines {', '.join(own)}." if own else "")
        raise ConfigError(f"{place} has no {attribute!r}.{hint}") from None


def import_name(found: Any) -> str | None:
    """The name that `import_object` finds a class, function or tool by; None if it has none, like a lambda.

    A script that does its work under `if __name__ == "__main__":` counts as a file that can be imported.

    Example:
        >>> import_name(Path), import_name(lambda: None)
        ('pathlib:Path', None)
    """
    module = sys.modules.get(str(getattr(found, "__module__", None)))
    name = getattr(found, "__qualname__", None)
    if module is None or not name:
        return None
    try:
        known = attrgetter(name)(module)
    except AttributeError:
        return None
    if known is not found and known is not getattr(found, "function", found):  # a tool made from a function
        return None
    file = getattr(module, "__file__", None)
    if module.__name__ == "__main__":
        return f"{Path(file).absolute()}:{name}" if file and _is_guarded(Path(file)) else None
    return f"{file}:{name}" if module.__name__.startswith(_FROM_FILE) else f"{module.__name__}:{name}"


def absolute_name(name: str) -> str:
    """The same name for a process that starts in another folder."""
    place, _, attribute = name.rpartition(":")
    return f"{Path(place).expanduser().absolute()}:{attribute}" if place.endswith(".py") else name


def import_folder(module: ModuleType | None) -> str | None:
    """The folder that has to be on the import path for `module` to be found; None if no folder would do.

    Example:
        >>> import_folder(importlib.util) == str(Path(os.__file__).parent)
        True
    """
    file = Path(str(getattr(module, "__file__", None)))
    if module is None or not file.is_file():
        return None
    if file.stem == "__init__":
        file = file.parent
    for part in reversed(module.__name__.split(".")):
        if file.name.partition(".")[0] != part:
            return None
        file = file.parent
    return str(file.absolute())


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution; None if it is not installed.

    Example:
        >>> installed_version("no-such-distribution") is None
        True
    """
    import importlib.metadata  # not at the top: it takes a sixth of the time of `turnsmith --help`

    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def not_imported(error: ImportError, if_missing: str) -> MissingDependency:
    """The error for a package that did not import: `if_missing`, or what failed inside of it though it is there.

    Example:
        >>> not_imported(ModuleNotFoundError("no", name="no_such_package"), "It is not installed.")
        MissingDependency('It is not installed.')
        >>> not_imported(ImportError("cannot import name 'x' from 'y'"), "It is not installed.")
        MissingDependency("An import failed: cannot import name 'x' from 'y'.")
    """
    package = (error.name or "").partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and package not in sys.modules and not importlib.util.find_spec(package):
        return MissingDependency(if_missing)
    return MissingDependency(f"An import failed: {str(error).rstrip('.')}.{hidden_modules()}")


def hidden_modules() -> str:
    """Which files of the user are imported instead of Python's own modules, as a sentence; empty: none."""
    own = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    for name in sorted(sys.stdlib_module_names & sys.modules.keys()):
        file = Path(getattr(sys.modules[name], "__file__", None) or own[0] / name).resolve()
        if not any(file.is_relative_to(folder) for folder in own) and "site-packages" not in file.parts:
            return f" Your file {file} is imported instead of Python's own module {name}: rename it."
    return ""


def hiding_files() -> str:
    """Files that a new process would import instead of Python's own modules, as a clause; empty: there are none."""
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        for file in sorted(Path(folder).glob("*.py")):
            if file.stem in sys.stdlib_module_names:
                return f" (if it could not start: your file {file} has the name of Python's own module {file.stem})"
    return ""


def install_line(extra: str, options: str = "") -> str:
    """The command that adds an extra to this copy of turnsmith, in the way in which it was installed.

    Example:
        >>> install_line("mcp").endswith("[mcp]'")
        True
    """
    import importlib.metadata

    origin: dict[str, Any] = {"url": Path(__file__).parents[2].as_uri(), "dir_info": {"editable": True}}
    pip = "pip"
    with suppress(importlib.metadata.PackageNotFoundError):  # else its folder is on PYTHONPATH
        installed = importlib.metadata.distribution("turnsmith")
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
        pip = "uv pip" if (installed.read_text("INSTALLER") or "").strip() == "uv" else "pip"
    url, version_control, what = origin.get("url", ""), origin.get("vcs_info"), f"turnsmith[{extra}]"
    if url.startswith("file:"):
        what = f"{unquote(urlsplit(url).path)}[{extra}]"
    elif version_control:
        what += f" @ {version_control['vcs']}+{url}@{version_control['commit_id']}"
    elif url:
        what += f" @ {url}"
    if Path(sys.prefix).parent.name.startswith(("archive-v", "environments-v")):  # made by uvx, for one command
        return f"uvx --from {shlex.quote(what)} turnsmith"
    editable = "-e" if origin.get("dir_info", {}).get("editable") else ""
    return " ".join(filter(None, (pip, "install", options, editable, shlex.quote(what))))


def add_to_path(folder: str | Path) -> None:
    """Make a folder importable here and in the processes that this one starts, which inherit PYTHONPATH."""
    folder = str(folder)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    inherited = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if folder not in inherited:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *inherited])


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing and f"{name}.".startswith(f"{missing}."):
            raise ConfigError(f"There is no module {missing!r} to import.{_similar_module(missing)}") from error
        if (alone := _import_alone(name)) is not None:
            return alone
        raise ConfigError(f"Importing {name} failed: {error}.") from error
    except Exception as error:
        raise ConfigError(f"Importing {name} failed: {type(error).__name__}: {error}") from error


def _import_alone(name: str) -> ModuleType | None:
    """A module inside of a package that needs what is not installed, such as a scorer of verl's where Ray is not: its
    packages are made without running them.
    """
    made, place = list[str](), None
    for package in accumulate(name.split(".")[:-1], "{}.{}".format):
        found = importlib.machinery.PathFinder.find_spec(package, place)
        place = found.submodule_search_locations if found is not None else None
        if place is None:
            break
        if package not in sys.modules:
            made.append(package)
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = place
    try:
        return importlib.import_module(name)
    except Exception:  # noqa: BLE001  (told as what importing it as usual failed with)
        for package in (*made, name):
            sys.modules.pop(package, None)
        return None


def _import_file(path: Path) -> ModuleType:
    """The module in a file, under the file's own name where that leads to it, so that other processes find it, too."""
    path = path.expanduser().absolute()
    if not path.is_file():
        beside = [file.name for file in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise ConfigError(f"There is no file {str(path)!r}.{_did_you_mean(path.name, beside)}")
    for name in (path.stem, _FROM_FILE + path.stem):
        loaded = sys.modules.get(name)
        if loaded is not None and _is_same_file(getattr(loaded, "__file__", None), path):
            return loaded
    add_to_path(path.parent)
    found = importlib.util.find_spec(path.stem) if path.stem.isidentifier() else None
    if path.stem not in sys.modules and found is not None and _is_same_file(found.origin, path):
        return _import_module(path.stem)
    spec = importlib.util.spec_from_file_location(_FROM_FILE + path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{str(path)!r} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look for the module of a class here
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        raise ConfigError(f"Importing {path} failed: {type(error).__name__}: {error}") from error
    return module


def _is_same_file(file: str | None, path: Path) -> bool:
    return bool(file) and Path(str(file)).resolve() == path.resolve()


def _similar_module(missing: str) -> str:
    package, _, last = missing.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ()) if package else sys.path[:2]
    here = [file.stem for folder in folders for file in Path(folder or ".").glob("*.py")]
    return _did_you_mean(last, here)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    lowered = {other.lower(): other for other in known}
    close = get_close_matches(name.lower(), list(lowered), n=1)
    return f" Did you mean {lowered[close[0]]!r}?" if close else ""


def _is_guarded(script: Path) -> bool:
    """Whether a script can be imported without running: its work is under `if __name__ == "__main__":`."""
    try:
        body = ast.parse(script.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return False
    return any(isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in body)
