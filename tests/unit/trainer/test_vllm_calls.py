"""`vllm_calls.txt` has what verl and turnsmith call in vLLM. `test_gpu_packages.py` holds it to the GPU build."""

from __future__ import annotations

import ast

from tests.unit.trainer import vllm_calls


def test_the_table_has_every_call() -> None:
    assert vllm_calls.found() == vllm_calls.table(), "python -m tests.unit.trainer.vllm_calls"


def test_every_receiver_is_called_upon() -> None:
    for file, receivers in vllm_calls.RECEIVERS.items():
        text = vllm_calls.source(file).read_text()
        assert [name for name in receivers if f"{name.replace(chr(39), chr(34))}." not in text] == [], file


def test_arguments_are_read_from_where_they_are_written() -> None:
    text = """
async def f(self):
    more = {"a": 1}
    args = {"dtype": 1, **more}
    args.update({"seed": 2})
    args["nnodes"] = 3
    await self.engine.sleep(1, level=2, **more)
    await self.engine.wake_up(*args, **unknown)
"""
    found = vllm_calls.calls(ast.parse(text), next(iter(vllm_calls.RECEIVERS)))
    lines = sorted(call.line().partition(":")[2] for call in found)
    assert lines == [
        "AsyncEngineArgs 0 dtype,nnodes,seed,* verl:f",
        "AsyncLLM.sleep 1 a,level verl:f",
        "AsyncLLM.wake_up 0 * verl:f",
    ]
