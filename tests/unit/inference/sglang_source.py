"""The source of the sglang package: the parts that run without its kernel are executed, the rest is parsed.

The wheel is downloaded, never installed (its dependencies are several gigabytes of CUDA), and a few files of it are
kept in turnsmith's cache.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import hashlib
import logging
import subprocess
import sys
import tempfile
import types
import uuid
import zipfile
from abc import ABC
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from turnsmith.inference.models import cache_folder

PACKAGE = "sglang==0.5.12"
WHEEL_SHA256 = "4ed786a38655851fd055ef57380c34d29b87753b53f63457309f51e5bf48c2e6"
FILES = (
    "srt/entrypoints/http_server.py",
    "srt/managers/io_struct.py",
    "srt/managers/schedule_batch.py",
    "srt/managers/tokenizer_manager.py",
    "srt/sampling/sampling_params.py",
)


@cache
def folder() -> Path:
    """The kept files; downloaded on first use, beside their place, and renamed."""
    kept = cache_folder() / "sglang-0.5.12-source"
    if kept.is_dir():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".sglang-") as scratch:
        # For one platform, so that it is the same file everywhere.
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        pip += ["--platform", "manylinux_2_34_x86_64", "--python-version", "3.11", "--implementation", "cp"]
        subprocess.run([*pip, "--dest", scratch, PACKAGE], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        assert hashlib.sha256(wheel.read_bytes()).hexdigest() == WHEEL_SHA256
        beside = Path(scratch) / "kept"
        with zipfile.ZipFile(wheel) as archive:
            for name in FILES:
                (beside / name).parent.mkdir(parents=True, exist_ok=True)
                (beside / name).write_bytes(archive.read(f"sglang/{name}"))
        try:
            beside.rename(kept)
        except OSError:  # another process was first
            assert kept.is_dir()
    return kept


@cache
def tree(name: str) -> ast.Module:
    return ast.parse((folder() / name).read_text(encoding="utf-8"))


def named(inside: ast.AST, name: str) -> Any:
    """The class or function of this name, directly in a module or class."""
    wanted = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return next(node for node in inside.body if isinstance(node, wanted) and node.name == name)  # type: ignore[attr-defined]


def fields_of(file: str, name: str) -> set[str]:
    """The fields of a dataclass."""
    found = named(tree(file), name)
    targets = [node.target for node in found.body if isinstance(node, ast.AnnAssign)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def texts_of(file: str) -> set[str]:
    """Every string that a file has."""
    constants = (node.value for node in ast.walk(tree(file)) if isinstance(node, ast.Constant))
    return {value for value in constants if isinstance(value, str)}


def define(nodes: list[ast.stmt], into: dict[str, Any]) -> None:
    """Define pieces of sglang's source; annotations stay unread."""
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    code = ast.fix_missing_locations(ast.Module([future, *nodes], []))
    exec(compile(code, "<sglang>", "exec"), into)  # noqa: S102 - a package of known digest


@cache
def io_struct() -> types.ModuleType:
    """sglang's own request types, as a module."""
    module = types.ModuleType("sglang.srt.managers.io_struct")
    sys.modules[module.__name__] = module  # where dataclasses look their annotations up
    source = tree("srt/managers/io_struct.py")
    vars(module).update(
        dataclass=dataclasses.dataclass,
        field=dataclasses.field,
        has_valid_data=lambda data: data is not None,
        ABC=ABC,
        Counter=Counter,
        uuid=uuid,
        copy=copy,
    )
    names = ("BaseReq", "GenerateReqInput", "UpdateWeightFromDiskReqInput")
    try:
        define([named(source, name) for name in names], vars(module))
    finally:
        del sys.modules[module.__name__]
    return module


@cache
def sampling_params() -> Any:
    """sglang's own `SamplingParams`, whose module needs nothing else."""
    space: dict[str, Any] = {"__name__": "sampling_params", "logging": logging}
    source = tree("srt/sampling/sampling_params.py")
    define([node for node in source.body if getattr(node, "module", "") != "__future__"], space)
    return space["SamplingParams"]


@cache
def finish_reasons() -> dict[str, Any]:
    """How sglang says why a turn ended."""
    source, space = tree("srt/managers/schedule_batch.py"), dict[str, Any]()
    names = ("BaseFinishReason", "FINISH_MATCHED_TOKEN", "FINISH_LENGTH", "FINISH_ABORT")
    define([named(source, name) for name in names], space)
    return space
