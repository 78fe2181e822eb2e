"""What verl and turnsmith call in vLLM, read from their sources: `vllm_calls.txt` has one line for each.

Its columns: the class's method, or the function or class that is called; the number of positional arguments; the names
of the others ("*": more of them, by a mapping that is not written out); where the call is.
`python -m tests.unit.trainer.vllm_calls` writes it anew.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_suffix(".txt")
_ENGINE = "vllm.v1.engine.async_llm:AsyncLLM"
_ARGUMENTS = "vllm.engine.arg_utils:AsyncEngineArgs"
_WORKER = "vllm.v1.worker.gpu_worker:Worker"
_MODEL = "vllm.model_executor.models.qwen3:Qwen3ForCausalLM"
RECEIVERS: dict[str, dict[str, str]] = {
    "verl/workers/rollout/vllm_rollout/vllm_async_server.py": {
        "self.engine": _ENGINE,
        "engine_client": _ENGINE,
        "engine_args": _ARGUMENTS,
        "self.engine.output_processor": "vllm.v1.engine.output_processor:OutputProcessor",
        "self.engine.engine_core": "vllm.v1.engine.core_client:AsyncMPClient",
        "req_state": "vllm.v1.engine.output_processor:RequestState",
        "req_state.queue": "vllm.v1.engine.output_processor:RequestOutputCollector",
        "cmd_module": "vllm.entrypoints.cli.serve",
        "cmd": "vllm.entrypoints.cli.serve:ServeSubcommand",
        "cmds[server_args.subparser]": "vllm.entrypoints.cli.serve:ServeSubcommand",
    },
    "verl/workers/rollout/vllm_rollout/utils.py": {"model": _MODEL},
    "verl/utils/vllm/utils.py": {
        "peft_helper": "vllm.lora.peft_helper:PEFTHelper",
        "self._lora_model_cls": "vllm.lora.lora_model:LoRAModel",
        "hf_to_vllm_mapper": "vllm.model_executor.models.utils:WeightsMapper",
    },
    "verl/utils/vllm/patch.py": {},
    "turnsmith/inference/engines/vllm_engine.py": {
        "self._llm": _ENGINE,
        "import_module('vllm.v1.engine.async_llm').AsyncLLM": _ENGINE,
    },
    "turnsmith/inference/engines/vllm_process.py": {"worker": _WORKER, "model": _MODEL},
}
"""Whose methods an expression in a file has; what is imported from vLLM needs no line here."""
_AT_THE_TOP = {"SamplingParams": "vllm.sampling_params:SamplingParams", "AsyncEngineArgs": _ARGUMENTS}
"""vLLM's top level loads these when they are asked for."""
_OF_WORKERS = {"add_lora", "remove_lora"}
"""What verl's extension of vLLM's worker calls on itself."""
_OF_TORCH = {"named_parameters", "named_buffers", "modules", "parameters"}
_SETTINGS = {"args", "dp_args", "lora_args", "arguments"}
"""Mappings that become vLLM's `AsyncEngineArgs`."""
WITHOUT_A_CALL = [
    # The mapping is filled where an episode is asked for.
    ("vllm.sampling_params:SamplingParams", 0, "temperature,top_p,top_k,logprobs,repetition_penalty,ignore_eos,seed"),
    # verl has its own in its place.
    ("vllm.lora.worker_manager:LRUCacheWorkerLoRAManager._load_adapter", 1, "-"),
]


class VllmCall(NamedTuple):
    """A call into vLLM."""

    target: str
    positional: int
    keywords: frozenset[str]
    is_open: bool
    place: str

    def line(self) -> str:
        names = [*sorted(self.keywords), *(["*"] if self.is_open else [])]
        return f"{self.target} {self.positional} {','.join(names) or '-'} {self.place}"


def table() -> list[VllmCall]:
    """The calls that the table has."""
    rows = [line.split() for line in TABLE.read_text().splitlines()]
    named = [frozenset(row[2].split(",")) for row in rows]
    return [
        VllmCall(row[0], int(row[1]), names - {"-", "*"}, "*" in names, row[3])
        for row, names in zip(rows, named, strict=True)
    ]


def source(file: str) -> Path:
    package, _, path = file.partition("/")
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / path


def found() -> list[VllmCall]:
    """Each call of both packages, once."""
    every = {call for file in RECEIVERS for call in calls(ast.parse(source(file).read_text()), file)}
    every |= {
        VllmCall(target, positional, frozenset(names.split(",")) - {"-"}, False, "verl:-")
        for target, positional, names in WITHOUT_A_CALL
    }
    return sorted(every, key=VllmCall.line)


def calls(tree: ast.Module, file: str) -> Iterator[VllmCall]:
    """The calls of one file into vLLM."""
    names = dict(_imported(tree))
    for scope in ast.walk(tree):
        if not isinstance(scope, Scope):
            continue
        place = f"{file.partition('/')[0]}:{scope.name}"
        for node in _inside(scope):
            if isinstance(node, ast.Call) and (target := _target(node.func, names, RECEIVERS[file])):
                keywords, is_open = _keywords(node, scope)
                positional = sum(not isinstance(one, ast.Starred) for one in node.args)
                is_open = is_open or positional < len(node.args)
                yield VllmCall(target, positional, keywords, is_open, place)
        settings = frozenset[str]().union(*map(_engine_arguments, _inside(scope)))
        if settings:
            yield VllmCall(_ARGUMENTS, 0, settings, True, place)


Scope = ast.FunctionDef | ast.AsyncFunctionDef


def _inside(scope: Scope) -> Iterator[ast.AST]:
    """The nodes of a function, without those of functions in it."""
    waiting: list[ast.AST] = [*scope.body]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, Scope):
            yield node
            waiting += ast.iter_child_nodes(node)


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm":
            for one in node.names:
                yield one.asname or one.name, _AT_THE_TOP.get(one.name, f"{node.module}:{one.name}")


def _target(func: ast.expr, names: dict[str, str], receivers: dict[str, str]) -> str:
    """What of vLLM is called; empty if it is not vLLM's."""
    if isinstance(func, ast.Name):
        return names.get(func.id, "")
    if not isinstance(func, ast.Attribute) or func.attr in _OF_TORCH:
        return ""
    owner = ast.unparse(func.value)
    if owner == "self._vllm":
        return _AT_THE_TOP[func.attr]
    if owner == "self":
        return f"{_WORKER}.{func.attr}" if func.attr in _OF_WORKERS else ""
    known = receivers.get(owner) or names.get(owner, "")
    return f"{known}{'.' if ':' in known else ':'}{func.attr}" if known else ""


def _keywords(call: ast.Call, scope: Scope) -> tuple[frozenset[str], bool]:
    """The names of a call's arguments, with those of a mapping that is written out in the same function."""
    mappings = [_literal(scope, one.value) for one in call.keywords if one.arg is None]
    named = {one.arg for one in call.keywords if one.arg}
    return frozenset(named.union(*mappings)), not all(mappings)


def _literal(scope: Scope, value: ast.expr) -> set[str]:
    keys: set[str] = set()
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(value):
            keys |= _keys(node.value)
    return keys


def _keys(value: ast.expr) -> set[str]:
    keys = value.keys if isinstance(value, ast.Dict) else []
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def _engine_arguments(node: ast.AST) -> set[str]:
    """Settings of vLLM's engine that a statement puts into the mapping of them."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            return {str(target.slice.value)} if ast.unparse(target.value) in _SETTINGS else set()
        return _keys(node.value) if node.value and ast.unparse(target) in _SETTINGS else set()
    if isinstance(node, ast.AugAssign) and ast.unparse(node.target) in _SETTINGS:
        return set().union(*(_keys(one) for one in ast.walk(node.value) if isinstance(one, ast.Dict)))
    if isinstance(node, ast.Call) and ast.unparse(node.func) in {f"{name}.update" for name in _SETTINGS}:
        return _keys(node.args[0]) if node.args else set()
    return set()


if __name__ == "__main__":
    TABLE.write_text("".join(f"{call.line()}\n" for call in found()))
