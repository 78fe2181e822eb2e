"""A real run without a model: scripted episodes, and a process that stands in for the ranks. For `cost_growth`.

Everything else is as in training: the user's process, Ray, the task runner, TransferQueue, episode workers, records,
ledger, estimator and metrics. What each phase of a step costs the task runner's process is measured in it.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

from turnsmith import BaseEnvironment, Generation, Sampling
from turnsmith.trainer.verl.task_runner import TaskRunner

TURNS = 4
SAID = 960
"""Tokens of a turn. With the prompt and what the environment says, an episode has about 4,000."""
RANKS = 8
"""That the batch is balanced over."""
OWN = "turnsmith"
THEIRS = "verl"


class Talk(BaseEnvironment):
    """Four turns, and a reward by the seed."""

    def reset(self, seed: int = 0) -> str:
        self.left, self.paid = TURNS, float(seed % 3 == 0)
        return f"Number {seed}."

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.left -= 1
        return "Go on.", 0.0 if self.left else self.paid, not self.left, {}


class Replies:
    """An engine that has every turn ready."""

    def of_worker(self, place: int, workers: int) -> Replies:
        return self

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        first = len(prompt_ids) + sum(map(ord, session))
        ids = [20 + (first + place) % 60 for place in range(SAID)]
        return Generation(ids, [-0.25] * SAID, "stop", weights_version=0)


class Ranks:
    """Puts log-probs and entropy of a batch into TransferQueue, as the ranks would."""

    def __init__(self) -> None:
        import transfer_queue
        import verl  # noqa: F401  (our plugin, which it loads, has the key of TransferQueue's sockets)

        transfer_queue.init()

    def compute_log_prob(self, keys: list[str], partition: str) -> None:
        import torch
        import transfer_queue
        from tensordict import TensorDict

        for begin in range(0, len(keys), 256):
            mine = keys[begin : begin + 256]
            ids = transfer_queue.kv_batch_get(keys=mine, partition_id=partition, select_fields=["input_ids"])
            ids = ids["input_ids"]
            made = [torch.nested.nested_tensor_from_jagged(ids.values() * 0.0 - 0.25, ids.offsets()) for _ in range(2)]
            fields = TensorDict({"log_probs": made[0], "entropy": made[1]}, batch_size=len(mine))
            transfer_queue.kv_batch_put(keys=mine, partition_id=partition, fields=fields)


class RankGroup:
    """What the trainer calls in place of verl's worker group."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": list(range(RANKS))}
        self._ranks = ray.remote(Ranks).options(num_cpus=0).remote()
        self.workers = [self._ranks]

    def compute_log_prob(self, batch: Any) -> Any:
        ray.get(self._ranks.compute_log_prob.remote(batch.keys, batch.partition_id))
        return batch

    def update_actor(self, batch: Any) -> dict[str, Any]:
        return {"metrics": {"mfu": 0.0, "grad_norm": [1.0], "pg_loss": [0.0], "ppo_kl": [0.0], "lr": [1e-6]}}


class Costs:
    """CPU seconds, of all threads, and seconds by the clock of each phase; and the process's peak memory."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []

    def begin(self) -> None:
        self._cpu: defaultdict[str, float] = defaultdict(float)
        self._clock: defaultdict[str, float] = defaultdict(float)

    def begin_memory(self) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)  # what earlier steps have freed counts as free
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        self._before = _memory("VmRSS")

    @contextmanager
    def phase(self, name: str) -> Generator[None]:
        cpu, clock = time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            self._cpu[name] += time.process_time() - cpu
            self._clock[name] += time.perf_counter() - clock

    def poll(self, look: Callable[[], None]) -> None:
        """One look at what is in the queue, of which there are many while the episodes run."""
        cpu = time.process_time()
        look()
        self._poll = time.process_time() - cpu

    def end(self, tokens: int) -> None:
        self.steps.append(
            {
                "tokens": tokens,
                "cpu_seconds": dict(self._cpu),
                "seconds": dict(self._clock),
                "poll_cpu_seconds": self._poll,
                "memory_before": self._before,
                "memory_peak": _memory("VmHWM"),
            }
        )


def _memory(name: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


class ModelFree:
    """Replaces what needs a model in a trainer of ours or of verl."""

    costs: Costs
    ranks: Callable[[], Any]
    replay_buffer: Any

    def init(self) -> None:
        trainer: Any = self
        trainer._init_tokenizer()
        trainer._init_dataloader()
        trainer._init_dump_executor()
        trainer.actor_rollout_wg = self.ranks()
        trainer.checkpoint_manager = SimpleNamespace(
            update_weights=lambda global_steps: None, sleep_replicas=lambda: None
        )
        trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        trainer.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        trainer.llm_server_manager = SimpleNamespace(server_handles=[])
        trainer.global_steps = 0

    def get_llm_client(self) -> Replies:
        return Replies()

    def prepare_step(self) -> dict[str, Any]:
        self.costs.begin()
        return super().prepare_step()  # type: ignore[misc]

    def on_sample_begin(self) -> None:
        super().on_sample_begin()  # type: ignore[misc]
        # Not measured: how long the episodes take, and how often the queue is polled meanwhile.
        while not _all_ended():
            time.sleep(1)
        self.costs.poll(self.replay_buffer._sync_metadata_from_transfer_queue)
        self.costs.begin_memory()
        sample = self.replay_buffer.sample

        def sample_once(**arguments: Any) -> Any:
            self.replay_buffer.sample = sample
            with self.costs.phase("take the batch"):
                return sample(**arguments)

        self.replay_buffer.sample = sample_once

    def _compute_metrics(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, *args, **kwargs)  # type: ignore[misc]
        self.tokens = sum(tag["seq_len"] for tag in batch.tags)


def _all_ended() -> bool:
    import transfer_queue

    held = (transfer_queue.kv_list("train") or {}).get("train", {})
    return all(tag["status"] in ("finished", "failure") for tag in held.values() if tag.get("is_prompt"))


PHASES = {
    "prepare_step": "dispatch",
    "on_sample_end": "take the batch",
    "_balance_batch": "balance",
    "_compute_old_log_prob": "old log-probs",
    "_compute_advantage": "advantages",
    "_compute_metrics": "metrics",
}
"""Methods of a trainer, and the phase that each is counted as."""


def measured(base: type, costs: Costs, ranks: Callable[[], Any] = RankGroup) -> Any:
    """A trainer class of ours or of verl, without a model, that measures its phases."""

    def timed(method: str, phase: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with costs.phase(phase):
                found = getattr(super(cls, self), method)(*args, **kwargs)
            if phase == "metrics":
                costs.end(self.tokens)
            return found

        return call

    methods = {method: timed(method, phase) for method, phase in PHASES.items()}
    cls: Any = type(base.__name__, (ModelFree, base), {"costs": costs, "ranks": staticmethod(ranks), **methods})
    return cls


class Dispatcher:
    """Sends groups to our episode workers as verl's own manager does: no ledger, no replacement of lost workers."""

    def __init__(self, workers: Any) -> None:
        self._workers = [slot.handle for slot in workers._slots]

    def generate_sequences(self, prompts: Any) -> None:
        chunks = prompts.chunk(len(self._workers))
        for sent in [
            worker.call("generate_sequences", chunk) for worker, chunk in zip(self._workers, chunks, strict=False)
        ]:
            sent.result()


class MeasuredTaskRunner(TaskRunner):
    """The task runner, with trainers that have no model."""

    ranks: Callable[[], Any] = RankGroup

    def start(self, config: Any, plan: Any, *more: Any) -> None:
        import verl  # noqa: F401  (its plugins load first)

        from turnsmith.trainer.verl import schedules

        self._made = (config, plan)
        schedules.trainer_class = lambda schedule: measured(schedules.SyncTrainer, Costs())
        super().start(config, plan, *more)

    def measure(self, kind: str, episodes: int, steps: int) -> list[dict[str, Any]]:
        """Make steps of so many episodes in a trainer of ours or of verl; what each of them cost."""
        import copy

        from verl.trainer.ppo import core_algos
        from verl.trainer.ppo.v1 import PPOTrainerSync

        from turnsmith.trainer.verl.schedules import SyncTrainer

        theirs, plan = self._made
        config, costs, done = copy.deepcopy(theirs), Costs(), self._trainer.global_steps
        group_size = int(config.actor_rollout_ref.rollout.n)
        config.data.train_batch_size = config.actor_rollout_ref.actor.ppo_mini_batch_size = episodes // group_size
        config.trainer.total_training_steps = config.trainer.total_epochs = done + steps
        if kind == THEIRS:
            config.algorithm.adv_estimator = "grpo"
            trainer = measured(PPOTrainerSync, costs, self.ranks)(config)
        else:
            core_algos.ADV_ESTIMATOR_REGISTRY.pop(config.algorithm.adv_estimator, None)  # a run registers it once
            trainer = measured(SyncTrainer, costs, self.ranks)(config, self._emit, plan)
        trainer.init()
        trainer.global_steps, trainer.total_training_steps = done, done + steps
        trainer.agent_loop_manager = self._workers
        trainer.fit(Dispatcher(self._workers) if kind == THEIRS else self._workers)
        self._trainer.global_steps = done + steps
        if kind == THEIRS:  # verl keeps no records; ours of these episodes must not end up in a later step
            for slot in self._workers._slots:
                slot.handle.call("finish_step", done + steps, None).result()
        return costs.steps
