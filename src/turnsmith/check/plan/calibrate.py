"""Measures how fast this machine computes with one model: some turns of the engine, one micro-batch, one update.

The measurement runs in a process of its own, with the threads and the shapes of the run, for some seconds. Of a large
micro-batch only a part is measured, and its time is scaled by the number of operations. Every time is taken by two
clocks, wall clock and CPU time: on a machine that others use too, only CPU time tells how much work it is.
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

import msgspec
import numpy as np

from turnsmith.errors import TurnsmithError
from turnsmith.inference.models.shape import ModelShape
from turnsmith.inference.weights import BUCKET_BYTES

_MOST_SEQUENCES, _MOST_TOKENS = 32, 128
_MOST_FLOPS = 1e11
_ENOUGH_SECONDS = 0.6
Times = Any
"""Seconds of wall clock and of CPU time, an array of two."""


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
    """Rows of a micro-batch."""
    length: int
    """Tokens of a row."""
    logits: int
    """Tokens of a micro-batch for which logits are needed."""
    trust_remote_code: bool = False
    """Whether the model may bring code of its own."""


@dataclass(frozen=True)
class Seconds:
    """How long things take, by one clock."""

    token: float
    """Sampling one token of a batch: the part that does not depend on the number of sequences."""
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
    """Peak bytes in two updates (weights, gradients, optimizer, activations), or while weights are sent."""
    serving: float
    """Peak bytes of the engine with as many turns at once as the run has, or while weights arrive."""


def calibrate(work: MeasuredWork) -> Calibration:
    """Measure in a process of its own."""
    variables = os.environ | {"OMP_NUM_THREADS": str(work.threads), "OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}
    variables |= {"MALLOC_ARENA_MAX": "4"}  # as in the processes of a run
    command = [sys.executable, "-m", "turnsmith.check.plan.calibrate"]
    given = json.dumps(dataclasses.asdict(work))
    done = subprocess.run(command, input=given, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TurnsmithError(f"This machine could not be measured with {work.model}: {done.stderr.strip()[-2000:]}")
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Calibration)


def measure_here(work: MeasuredWork) -> Calibration:
    """Measure in this process."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(work.threads)
    _ = torch.rand(8, 8) @ torch.rand(8, 8)  # the first product allocates memory that is not the model's
    before = _memory()
    load: Any = AutoModelForCausalLM.from_pretrained
    trust = {"trust_remote_code": work.trust_remote_code}
    model = load(work.model, dtype=torch.float32, attn_implementation="sdpa", **trust).eval()
    serving, weights = _serving(model, work, before), sum(one.nbytes for one in model.parameters())
    training = _training_memory(model, work, before)
    in_use = _memory() - before
    sent = _send(model)
    times = {**serving.times, "send": sent.times, **_training_times(model, work)}
    wall, cpu = (Seconds(**{name: float(pair[clock]) for name, pair in times.items()}) for clock in (0, 1))
    return Calibration(
        wall=wall,
        cpu=cpu,
        training=max(training, in_use + sent.sending),
        serving=max(serving.most, weights + sent.receiving),
    )


@dataclass(frozen=True)
class _Serving:
    """Turns of the engine."""

    times: dict[str, Times]
    most: float
    """Peak bytes, less what was in use before the model was loaded."""


def _serving(model: Any, work: MeasuredWork, before: int) -> _Serving:
    affordable = int(_MOST_FLOPS / ModelShape.of_config(model.config.to_dict()).flops(work.context, work.context))
    sequences = max(2, min(work.sequences, _MOST_SEQUENCES, affordable))
    fewer, tokens = max(1, sequences // 4), max(3, min(work.sampled, _MOST_TOKENS, 2 * affordable))
    _turns(model, work.context, 3, 2)  # the first call of everything takes longer
    _, few, _ = _turns(model, work.context, tokens, fewer)
    in_use = _reset_peak()
    prefill, many, resample = _turns(model, work.context, tokens, sequences)
    peak = _memory("VmHWM")
    more = work.sequences * (work.context + work.sampled) / (sequences * (work.context + tokens))
    sequence = np.clip((many - few) / (sequences - fewer), 0.0, many / sequences)
    times = {
        "token": many - sequence * sequences,
        "sequence": sequence,
        "prefill": prefill,
        "resample": resample * max(1.0, work.sampled / tokens),
    }
    return _Serving(times, peak - before + (peak - in_use) * (more - 1))


def _turns(model: Any, context: int, tokens: int, sequences: int) -> tuple[Times, Times, Times]:
    """Least times of a prefill, a decoding step and resampling a turn, because others may use the machine too."""
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
    """How many times as much work the whole micro-batch is."""


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
    """Peak bytes of two updates, less the bytes in use `before`."""
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

    Even on one rank FSDP2 copies weights and gradients of every layer; that is half of the time with a large
    model and few tokens.
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
    """Time of a whole micro-batch. If only parts are measured, a line through two of them: copying does not grow."""
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


@dataclass(frozen=True)
class _Sent:
    """What sending all weights takes."""

    times: Times
    sending: int
    """Peak bytes on the trainer's side."""
    receiving: int
    """Peak bytes on the server's side."""


def _send(model: Any) -> _Sent:
    """Send all weights in the way of a run.

    That is, as `trainer/verl/transformers_replica.py` does: in buckets, through Ray, which serializes and copies them.
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
    return _Sent(times, sending, receiving)


def _receive(shared: bytearray, weights: list[Any]) -> None:
    import torch

    with torch.no_grad():
        for old, new in zip(weights, pickle.loads(shared), strict=True):  # noqa: S301, our own
            old.copy_(new)


def _timed(work: Callable[[], object]) -> Times:
    """Wall clock and CPU time of some work. Wall clock beyond the CPU time is cut: it was spent waiting for others."""
    began = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return np.array([min(wall, cpu), cpu])


def _repeated(work: Callable[[], object]) -> Times:
    """The least time of several rounds. The first round allocates memory and does not count."""
    rounds = max(1, min(20, int(_ENOUGH_SECONDS / max(1e-6, _timed(work)[0]))))
    return np.min([_timed(work) for _ in range(rounds)], axis=0)


def _memory(name: str = "VmRSS") -> int:
    """Bytes of this process: now, or with `VmHWM` at most since `_reset_peak`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _reset_peak() -> int:
    """Reset the peak to what is in use now, and return that."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)  # otherwise memory that was freed before is used again, and the peak does not show it
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _memory()


if __name__ == "__main__":
    given = MeasuredWork(**json.load(sys.stdin))
    sys.stdout.write(json.dumps(dataclasses.asdict(measure_here(given))) + "\n")
