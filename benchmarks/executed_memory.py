"""The memory of a trainer rank by execution on fake tensors: real models and layouts, and real CPU runs beside it.

`layouts` executes the layouts below and compares parameters, gradients and optimizer with bytes computed by hand from
the published config.json of each model. `runs` trains models of other shapes on this machine's CPU with random weights,
one update each, in processes of their own, and compares their peak, by torch's CPU allocator (profiler) and by resident
memory, with what execution on fake tensors says for the same layout. It fails above 1 % for a layout's state, above 2 %
for the allocator and above 15 % for resident memory.

Run, in the project's folder: python -m benchmarks.executed_memory layouts|runs [NAME ...] [--folder F] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import results

from turnsmith.check.plan.calibrate import _memory, _reset_peak
from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.trainer.config.peak_memory import PeakMemory, executed_peak

LIMITS = {"state": 0.01, "allocator": 0.02, "resident": 0.15}


def _qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool, **more: Any) -> dict[str, Any]:
    """As in the config.json that Qwen published."""
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": tied}
    fixed = {"vocab_size": 151_936, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1_000_000}
    named = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40_960}
    return {**fixed, **named, "attention_bias": False, "use_sliding_window": False, **sizes, **more}


_MOE = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_key_value_heads": 4}
_MOE |= {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}
_MOE |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
MODELS = {
    "Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, True),
    "Qwen3-1.7B": _qwen3(2048, 6144, 28, 16, True),
    "Qwen3-4B": _qwen3(2560, 9728, 36, 32, True),
    "Qwen3-8B": _qwen3(4096, 12_288, 36, 32, False),
    "Qwen3-14B": _qwen3(5120, 17_408, 40, 40, False),
    "Qwen3-32B": _qwen3(5120, 25_600, 64, 64, False),
    "Qwen3-30B-A3B": _qwen3(2048, 6144, 48, 32, False, **_MOE),
}
LAYOUTS = {
    "0.6B on 1": ("Qwen3-0.6B", 1, 1, ""),
    "1.7B on 2": ("Qwen3-1.7B", 1, 2, ""),
    "4B on 8": ("Qwen3-4B", 1, 8, ""),
    "4B LoRA on 1": ("Qwen3-4B", 1, 1, "model.lora_rank=32"),
    "8B on 8": ("Qwen3-8B", 1, 8, ""),
    "8B on 4x8": ("Qwen3-8B", 4, 8, ""),
    "14B on 8": ("Qwen3-14B", 1, 8, ""),
    "32B on 4x8": ("Qwen3-32B", 4, 8, ""),
    "30B-A3B on 2x8": ("Qwen3-30B-A3B", 2, 8, ""),
}
"""Each with its model, nodes, GPUs of a node and settings."""


def parameters(sizes: Mapping[str, Any], rank: int = 0) -> tuple[int, int]:
    """All parameters of such a model, and those of an adapter on every linear layer but the head, by hand."""
    hidden, inner, head = (sizes[name] for name in ("hidden_size", "intermediate_size", "head_dim"))
    queries, values = (head * sizes[f"num_{kind}_heads"] for kind in ("attention", "key_value"))
    linear = [(hidden, queries), (hidden, values), (hidden, values), (queries, hidden)]
    mlp = [(hidden, inner)] * 2 + [(inner, hidden)]
    experts = sizes.get("num_experts", 0)
    if experts:
        mlp = [(hidden, sizes["moe_intermediate_size"])] * 3 * experts + [(hidden, experts)]
    layer = 2 * hidden + 2 * head + sum(one * other for one, other in linear + mlp)
    tables = sizes["vocab_size"] * hidden * (1 if sizes["tie_word_embeddings"] else 2)
    adapter = sum(rank * (one + other) for one, other in linear + mlp)
    return sizes["num_hidden_layers"] * layer + hidden + tables, sizes["num_hidden_layers"] * adapter


def _layout(name: str, folder: Path) -> dict[str, Any]:
    """A layout, executed and by hand, in bytes of a rank."""
    model, nodes, gpus, words = LAYOUTS[name]
    sizes, config = MODELS[model], ConfigStore()
    (folder / model).mkdir(exist_ok=True)
    (folder / model / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    own = f"model.device=cuda inference.backend=vllm model.local_path={folder / model} training.batch_size=256 "
    config = apply_overrides(config, f"{own} ray.num_nodes={nodes} ray.gpus_per_node={gpus} {words}".split())
    began = time.perf_counter()
    found = executed_peak(config)
    if not isinstance(found, PeakMemory):
        raise SystemExit(f"{name} was not executed: {found}")
    base, adapter = parameters(sizes, config.model.lora_rank)
    trained = 4 * (adapter or base) // (nodes * gpus)
    by_hand = {"parameters": 4 * (base + adapter) // (nodes * gpus), "gradients": trained, "optimizer": 2 * trained}
    executed = dataclasses.asdict(found)
    error = max(abs(executed[part] / size - 1) for part, size in by_hand.items())
    told = {"model": model, "ranks": nodes * gpus, "settings": words, "executed": executed, "by_hand": by_hand}
    return told | {"state_error": error, "wall_seconds": time.perf_counter() - began}


_COMMON = "model.device=cpu model.attn_implementation=sdpa training.group_size=2 inference.max_turns=1"
_FUSED = "verl.actor_rollout_ref.model.use_fused_kernels=true"
_CHECKPOINTED = {"llama, checkpointed", "qwen2, large vocabulary"}
"""Runs with gradient checkpointing, as on GPUs."""


def _sizes(kind: str, hidden: int, inner: int, layers: int, vocab: int, tied: bool, **more: Any) -> dict[str, Any]:
    heads = hidden // 64
    sizes = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocab}
    sizes |= {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "head_dim": 64}
    return {"model_type": kind, **sizes, "tie_word_embeddings": tied, "pad_token_id": 0, **more}


_EXPERTS = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 512, "mlp_only_layers": []}
RUNS: dict[str, tuple[dict[str, Any], int, int, int, str]] = {
    # While the method was made; not one of those by which it is judged.
    "development": (_sizes("qwen3", 512, 1536, 6, 32_000, True), 1, 4, 256, ""),
    "qwen3": (_sizes("qwen3", 768, 2048, 8, 50_000, True), 1, 4, 320, ""),
    "llama, two ranks": (_sizes("llama", 1024, 2816, 8, 32_000, False), 2, 2, 384, "model.dtype=bfloat16"),
    "llama, checkpointed": (_sizes("llama", 768, 2304, 12, 32_000, False), 1, 4, 512, ""),
    "mixture": (_sizes("qwen3_moe", 512, 1024, 6, 32_000, True, **_EXPERTS), 1, 2, 256, "model.dtype=bfloat16"),
    "qwen2, large vocabulary": (_sizes("qwen2", 640, 1792, 8, 151_936, True), 1, 2, 256, ""),
    "llama, adapter": (_sizes("llama", 1280, 3584, 10, 32_000, False), 1, 4, 384, "model.lora_rank=16"),
    "olmo2, micro-batches": (_sizes("olmo2", 768, 2304, 8, 50_000, False), 1, 2, 384, "training.batch_size=6"),
    "smollm3, bfloat16": (_sizes("smollm3", 768, 2304, 8, 50_000, True), 1, 4, 320, "model.dtype=bfloat16"),
}
"""Each with its model, ranks, episodes of a micro-batch, their tokens, and settings."""


def _run_config(name: str, folder: Path) -> tuple[ConfigStore, int]:
    sizes, ranks, rows, length, words = RUNS[name]
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    batch = f"ray.gpus_per_node={ranks} training.micro_batch_size={rows} model.local_path={folder}"
    if "batch_size" not in words.replace("micro_batch_size", ""):
        batch += f" training.batch_size={rows * ranks}"
    return apply_overrides(ConfigStore(), f"{_COMMON} {_FUSED} {batch} {words}".split()), length


def _composed(name: str, folder: Path) -> tuple[Any, int]:
    """verl's config of a run, and the tokens of its episodes."""
    from turnsmith.trainer.config.check import verl_config

    settings, length = _run_config(name, folder)
    config = verl_config(settings, model_path=str(folder))
    config.actor_rollout_ref.model.enable_gradient_checkpointing = name in _CHECKPOINTED
    return config, length


def _process(kind: str, name: str, folder: Path, rank: int = 0) -> subprocess.Popen[str]:
    """A process of `rank_of_run`."""
    variables = os.environ | {"RANK": str(rank), "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    command = [sys.executable, "-m", "benchmarks.executed_memory", kind, name, "--folder", str(folder)]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


def _result(process: subprocess.Popen[str]) -> dict[str, Any]:
    told, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args} ended with {process.returncode}")
    return json.loads(told.splitlines()[-1])


def _run(name: str, folder: Path) -> dict[str, Any]:
    """The peak of a run by execution, by torch's allocator and by resident memory."""
    executed = _result(_process("execute", name, folder))
    (folder / "store").unlink(missing_ok=True)
    processes = [_process("train", name, folder, rank) for rank in range(RUNS[name][1])]
    measured, *_ = [_result(one) for one in processes]
    peak = executed["update"]
    told = {"executed": executed, **measured, "allocator_error": peak / measured["allocator"] - 1}
    return told | {"resident_error": peak / measured["resident"] - 1}


def execute_here(name: str, folder: Path) -> dict[str, Any]:
    """The update of a run on fake tensors, with the operators of a CPU."""
    from turnsmith.trainer.verl.executed_memory import executed_bytes  # isort: skip  (verl's plugins load first)

    config, length = _composed(name, folder)
    return executed_bytes(config, str(folder), length, is_cuda=False)


class _Watch:
    """Takes the place of the count of storages: notes when the update begins, and its peak of resident memory."""

    def __init__(self, before: int) -> None:
        self.began_at = self.resident = 0
        self._before = before

    def reset(self) -> int:
        """Called when the optimizer has its state, and after the update."""
        import torch

        if not self.began_at:
            torch.distributed.barrier()
            _reset_peak()
            self.began_at = time.time_ns()
        self.resident = _memory("VmHWM") - self._before
        return 0


def train_here(name: str, folder: Path) -> dict[str, Any]:
    """The same update with real tensors, as one of its ranks."""
    from turnsmith.trainer.verl import executed_memory as method  # isort: skip  (verl's plugins load first)
    import torch
    from torch.profiler import ProfilerActivity, profile

    ranks, rank = RUNS[name][1], int(os.environ["RANK"])
    store = torch.distributed.FileStore(str(folder / "store"), ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    config, length = _composed(name, folder)
    lengths, actor = method._lengths(config, length), config.actor_rollout_ref.actor
    batch = method._micro_batch(lengths, config.actor_rollout_ref.model)
    again = actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n // ranks > len(lengths)
    real: Any = method.FakeEngine.__mro__[1]
    watch = _Watch(_reset_peak())
    with (
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler,
        patch.object(method.FakeEngine, "prepare_model_inputs", real.prepare_model_inputs),
    ):
        engine = method._engine(config, str(folder), None)  # type: ignore[arg-type]
        method._build(engine)
        with torch.no_grad():
            for one in engine.module.parameters():
                one.to_local().normal_(std=0.02)
        found = method._update(engine, watch, batch, bool(actor.entropy_coeff), again)  # type: ignore[arg-type]
    held, most = 0, 0
    events = [one for one in profiler.profiler.kineto_results.events() if one.name() == "[memory]"]
    for one in sorted(events, key=lambda event: event.start_ns()):
        held += one.nbytes()
        most = max(most, held) if one.start_ns() >= watch.began_at else held
    return {"state": found, "allocator": most, "resident": watch.resident}


def main() -> None:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["layouts", "runs", "execute", "train"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of LAYOUTS or RUNS; all by default")
    parser.add_argument("--folder", type=Path, help="keep what was measured here, and go on from it")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="cases at the same time (default: 1)")
    results.add_option(parser)
    args = parser.parse_args()
    if args.kind in ("execute", "train"):
        here = execute_here if args.kind == "execute" else train_here
        print("\n" + json.dumps(here(args.names[0], args.folder)))
        return
    measure, cases = (_layout, LAYOUTS) if args.kind == "layouts" else (_run, RUNS)

    def case(name: str) -> dict[str, Any]:
        file = None if args.folder is None else args.folder / f"{args.kind} {name}.json"
        if file is not None and file.exists():
            return json.loads(file.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory(prefix="turnsmith-memory-") as folder:
            told = measure(name, Path(folder))
        print(name, json.dumps(told), flush=True)
        if file is not None:
            file.write_text(json.dumps(told), encoding="utf-8")
        return told

    names = args.names or [one for one in cases if one != "development"]
    with ThreadPoolExecutor(args.at_once) as pool:
        found = dict(zip(names, pool.map(case, names), strict=True))
    kinds = ("state",) if args.kind == "layouts" else ("allocator", "resident")
    figures = {f"{name}, {kind}": found[name][f"{kind}_error"] for name in found for kind in kinds}
    results.record(f"executed_memory_{args.kind}", figures, is_wanted=args.json, found=found)
    if missed := misses(figures):
        sys.exit("\n".join(missed))


def misses(figures: Mapping[str, float]) -> list[str]:
    """What is further off than its limit."""
    limits = {name: LIMITS[name.rpartition(", ")[2]] for name in figures}
    return [f"{name}: {error:+.1%}" for name, error in figures.items() if abs(error) > limits[name]]


if __name__ == "__main__":
    main()
