"""Measures how fast this machine computes with one model: some turns of the engine, one micro-batch, one update.

It runs in a process of its own, with as many threads as a process of the run has, on shapes like those of the run, but
never longer than some seconds: a larger micro-batch is measured in part, and its time grows with its operations. All
times are measured by two clocks, on the wall and of the CPU: on a machine that others use too, only the second tells
how much work it is.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from turnsmith.errors import TurnsmithError
from turnsmith.inference.weights import BUCKET_BYTES
from turnsmith.models.shape import ModelShape

_MOST_SEQUENCES, _MOST_TOKENS = 32, 128
_MOST_FLOPS = 1e11
_ENOUGH_SECONDS = 0.6
Times = Any
"""Seconds on the wall and of the CPU, an array of two."""


@dataclass(frozen=True)
class MeasuredWork:
    """What is measured."""

    model: str
    threads: int
    context: int
    """Tokens before a turn."""
    sampled: int
    """Tokens of a turn."""
    sequences: int
    """Turns at once."""
    rows: int
    """Of a micro-batch."""
    length: int
    """Of a row."""
    logits: int
    """Tokens of a micro-batch for which logits are needed."""
    trust_remote_code: bool = False
    """Whether the model may bring code of its own."""


@dataclass(frozen=True)
class Seconds:
    """How long things take, by one clock."""

    token: float
    """Sampling one token of a batch: what does not depend on the number of sequences."""
    sequence: float
    """Sampling one token, for each sequence."""
    prefill: float
    """The context of one turn."""
    resample: float
    """The pass that makes a seeded turn independent of its batch."""
    forward: float
    """A micro-batch without gradients."""
    backward: float
    """A micro-batch: forward and backward."""
    optimizer: float
    send: float
    """Sending the weights from the trainer to a server: serialized, and copied into its model."""


@dataclass(frozen=True)
class Calibration:
    """What was measured."""

    wall: Seconds
    cpu: Seconds
    training: float
    """The most bytes in two updates (weights, gradients, optimizer, activations), or while weights are sent."""
    serving: float
    """The most bytes of the engine, with so many turns at once as the run has, or while weights arrive."""


def calibrate(work: MeasuredWork) -> Calibration:
    """Measure in a process of its own."""
    variables = os.environ | {"OMP_NUM_THREADS": str(work.threads), "OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
    variables |= {"MALLOC_ARENA_MAX": "4"}  # as in the processes of a run
    command = [sys.executable, "-m", "turnsmith.plan.calibrate"]
    given = json.dumps(dataclasses.asdict(work))
    done = subprocess.run(command, input=given, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TurnsmithError(f"This machine could not be measured with {work.model}: {done.stderr.strip()[-2000:]}")
    return read_calibration(json.loads(done.stdout.splitlines()[-1]))


def read_calibration(found: dict[str, Any]) -> Calibration:
    """From `dataclasses.asdict`."""
    both: dict[str, Any] = {clock: Seconds(**found[clock]) for clock in ("wall", "cpu")}
    return Calibration(**found | both)


def measure_here(work: MeasuredWork) -> Calibration:
    """Measure in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(work.threads)
    _ = torch.rand(8, 8) @ torch.rand(8, 8)  # what the first product allocates is no part of a model
    before = _memory()
    load: Any = AutoModelForCausalLM.from_pretrained
    trust = {"trust_remote_code": work.trust_remote_code}
    model = load(work.model, dtype=torch.float32, attn_implementation="sdpa", **trust).eval()
    affordable = int(_MOST_FLOPS / ModelShape.of_config(model.config.to_dict()).flops(work.context, work.context))
    sequences = max(2, min(work.sequences, _MOST_SEQUENCES, affordable))
    fewer, tokens = max(1, sequences // 4), max(3, min(work.sampled, _MOST_TOKENS, 2 * affordable))
    _turns(model, work.context, 3, 2)  # the first call of everything takes longer
    _, few, _ = _turns(model, work.context, tokens, fewer)
    in_use = _reset_peak()
    prefill, many, resample = _turns(model, work.context, tokens, sequences)
    peak = _memory("VmHWM")
    more = work.sequences * (work.context + work.sampled) / (sequences * (work.context + tokens))
    bytes_of = {"serving": peak - before + (peak - in_use) * (more - 1)}
    sequence = np.clip((many - few) / (sequences - fewer), 0.0, many / sequences)
    times = {
        "token": many - sequence * sequences,
        "sequence": sequence,
        "prefill": prefill,
        "resample": resample * max(1.0, work.sampled / tokens),
    }
    weights = sum(one.nbytes for one in model.parameters())
    training = _training_memory(model, work, before)
    in_use = _memory() - before
    times["send"], (sending, receiving) = _send(model)
    trained = _training_times(model, work)
    bytes_of = {
        "training": max(training, in_use + sending),
        "serving": max(bytes_of["serving"], weights + receiving),
    }
    both = [Seconds(**{name: float(pair[clock]) for name, pair in (times | trained).items()}) for clock in (0, 1)]
    return Calibration(wall=both[0], cpu=both[1], **bytes_of)


def _turns(model: Any, context: int, tokens: int, sequences: int) -> tuple[Times, Times, Times]:
    """Times of a prefill, of a decoding step, and of resampling a turn: the least of some, as others compute too."""
    from turnsmith.inference.engine import Sampling
    from turnsmith.inference.engines.continuous_batch import ContinuousBatch, Sequence

    least, until = np.full((3, 2), np.inf), time.perf_counter() + _ENOUGH_SECONDS
    while np.isinf(least).any() or time.perf_counter() < until:
        batch = ContinuousBatch(model)
        new = [Sequence([3] * context, Sampling(max_tokens=tokens, seed=seed)) for seed in range(sequences)]
        joined = _timed(lambda batch=batch, new=new: batch.join(new))
        steps = [_timed(batch.step) for _ in range(tokens - 1)]
        middle = np.median(steps[:-1], axis=0)
        found = [joined / sequences, middle, np.maximum(0.0, steps[-1] - middle) / sequences]
        least = np.minimum(least, found)
    return least[0], least[1], least[2]


@dataclass(frozen=True)
class _MicroBatch:
    """A micro-batch as the trainer computes it on a CPU, or a part of it."""

    infer: Callable[[], None]
    train: Callable[[], None]
    part: float
    """By how much the whole is more work."""


def _micro_batch(model: Any, work: MeasuredWork, most_flops: float = _MOST_FLOPS) -> _MicroBatch:
    import torch

    shape = ModelShape.of_config(model.config.to_dict())
    rows, length = work.rows, work.length
    while shape.flops(rows * length, length) > most_flops and rows * length > 64:
        rows, length = (rows // 2, length) if rows > 1 else (1, length // 2)
    last = min(length, max(1, round(work.logits / work.rows * length / work.length)))
    part = shape.flops(work.rows * work.length, work.length, work.logits) / shape.flops(
        rows * length, length, rows * last
    )
    ids = torch.randint(3, shape.vocab, (rows, length))
    mask = torch.ones(length, length, dtype=torch.bool).tril_()[None, None].repeat(rows, 1, 1, 1)

    def forward() -> Any:
        output = model(input_ids=ids, attention_mask=mask, use_cache=False, logits_to_keep=last)
        logits = output.logits.flatten(0, 1).index_select(0, torch.arange(rows * last)).float()
        return logits, logits.gather(1, ids[:, -last:].flatten()[:, None])[:, 0] - logits.logsumexp(-1)

    @torch.no_grad()
    def infer() -> None:
        logits, _ = forward()
        _ = torch.logsumexp(logits, -1) - (logits.softmax(-1) * logits).sum(-1)  # the entropy, which verl logs

    def train() -> None:
        forward()[1].mean().backward()

    return _MicroBatch(infer, train, part)


def _training_memory(model: Any, work: MeasuredWork, before: int) -> float:
    """The most bytes since `before` in two updates."""
    import torch

    batch, parameters = _micro_batch(model, work), list(model.parameters())
    batch.infer()
    optimizer, in_use = torch.optim.AdamW(parameters), _reset_peak()
    batch.train()
    activations = _memory("VmHWM") - in_use - sum(one.nbytes for one in parameters)
    optimizer.step()
    optimizer.zero_grad()
    batch.train()
    optimizer.step()
    return _memory("VmHWM") - before + activations * (batch.part - 1)


def _training_times(model: Any, work: MeasuredWork) -> dict[str, Times]:
    """Times of a micro-batch and of an update, with the model sharded over one rank, as verl does.

    FSDP2 copies weights and gradients of every layer, also then; with a large model and few tokens that is half of it.
    """
    import torch

    _shard(model)
    times = {"forward": _micro_batch_times(model, work, "infer"), "backward": _micro_batch_times(model, work, "train")}
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    update()  # allocates
    return times | {"optimizer": _repeated(update)}


def _micro_batch_times(model: Any, work: MeasuredWork, kind: str) -> Times:
    """Of a whole micro-batch; if only a part is measured, as a line through two parts, as copying does not grow."""
    batch = _micro_batch(model, work)
    took = _repeated(getattr(batch, kind))
    less = _micro_batch(model, work, _MOST_FLOPS / 8)
    if batch.part == less.part or batch.part <= 1:
        return took * batch.part
    slope = np.maximum(0.0, took - _repeated(getattr(less, kind))) / (1 / batch.part - 1 / less.part)
    return took + slope * (1 - 1 / batch.part)


def _shard(model: Any) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    mesh, layers = init_device_mesh("cpu", (1,)), list[str](model._no_split_modules or ())
    is_tied = model.config.get_text_config().tie_word_embeddings
    for module in list(model.modules()):
        if type(module).__name__ in layers or (isinstance(module, torch.nn.Embedding) and not is_tied):
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _send(model: Any) -> tuple[Times, tuple[int, int]]:
    """Times of sending all weights, and the bytes that it takes at most on either side.

    As `trainer/verl/transformers/replica.py` does: in buckets, through Ray, which serializes and copies them.
    """
    own, times, sending, receiving = list(model.state_dict().values()), np.zeros(2), 0, 0
    while own:
        bucket: list[Any] = []
        while own and sum(one.nbytes for one in bucket) < BUCKET_BYTES:
            bucket.append(own.pop())
        in_use = _reset_peak()
        shared = bytearray()
        times += _timed(lambda shared=shared, bucket=bucket: shared.extend(pickle.dumps(bucket, protocol=5)))
        sending = max(sending, _memory("VmHWM") - in_use)
        in_use = _reset_peak()
        times += _timed(lambda shared=shared, bucket=bucket: _receive(shared, bucket))
        receiving = max(receiving, _memory("VmHWM") - in_use + len(shared))
        del shared
    return times, (sending, receiving)


def _receive(shared: bytearray, weights: list[Any]) -> None:
    import torch

    with torch.no_grad():
        for old, new in zip(weights, pickle.loads(shared), strict=True):  # noqa: S301, our own
            old.copy_(new)


def _timed(work: Callable[[], object]) -> Times:
    """What it took, on the wall at most its CPU time: what is more was spent waiting for others on this machine."""
    began = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return np.array([min(wall, cpu), cpu])


def _repeated(work: Callable[[], object]) -> Times:
    """The least of some, after one that is not counted: it allocates."""
    rounds = max(1, min(20, int(_ENOUGH_SECONDS / max(1e-6, _timed(work)[0]))))
    return np.min([_timed(work) for _ in range(rounds)], axis=0)


def _memory(name: str = "VmRSS") -> int:
    """Bytes of this process: now, or with `VmHWM` at most since `_reset_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _reset_peak() -> int:
    """Let the peak start again from what is in use now, which is returned."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # else what was freed before would be used again, and not be seen
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _memory()


if __name__ == "__main__":
    given = MeasuredWork(**json.load(sys.stdin))
    sys.stdout.write(json.dumps(dataclasses.asdict(measure_here(given))) + "\n")
