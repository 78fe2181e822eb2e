"""The task runner of `model_free` without Ray, for `cost_growth --local`: TransferQueue is a dictionary in its process.

What happens in other processes of a run happens here outside the measured phases: episodes are played once, and copies
of them put into the queue. Import it only after VERL_PLATFORM=cpu is set.
"""

from __future__ import annotations

import asyncio
import copy
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import torch
import transfer_queue
import verl  # noqa: F401  (its plugins load first)
from benchmarks.model_free import RANKS, SAID, MeasuredTaskRunner, RankGroup, Replies
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from transfer_queue import KVBatchMeta
from transformers import AutoTokenizer

from turnsmith import Chat, Limits, RayPPOTrainer, Sampling, Trajectory
from turnsmith.inference.models import resolve
from turnsmith.rollout.episode import EpisodeStart, run_episode
from turnsmith.rollout.episode_groups import episode_name
from turnsmith.rollout.episode_report import report_of
from turnsmith.rollout.failure_policy import FailurePolicy
from turnsmith.rollout.ledger import Attempt, Ledger, LedgerEntry
from turnsmith.rollout.spec import RolloutSpec
from turnsmith.trainer.config.check import verl_config
from turnsmith.trainer.run_parts import EpisodePlan, claim_new_folder, write_settings, write_starts
from turnsmith.trainer.verl.agent_loop import to_verl_outputs
from turnsmith.trainer.verl.workers import EpisodeWorkerHandle, EpisodeWorkers, FinishedEpisodes
from turnsmith.trajectory import Decision


class LocalQueue:
    """The functions of TransferQueue that a step calls."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}
        self.workers: list[LocalWorker] = []

    def replace_transfer_queue(self) -> None:
        for name in ("kv_list", "kv_clear", "kv_batch_put", "kv_batch_get"):
            setattr(transfer_queue, name, getattr(self, name))

    def kv_list(self, partition_id: str | None = None) -> dict[str, Any]:
        for worker in self.workers:
            worker.play_what_waits()
        return {"train": {key: dict(tag) for key, tag in self.tags.items()}} if self.tags else {}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.tags.pop(key, None)
            self.rows.pop(key, None)

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> KVBatchMeta:
        for key, tag in zip(keys, tags or (), strict=False):
            self.tags.setdefault(key, {}).update(tag)
        for name in () if fields is None else fields.keys():
            for key, value in zip(keys, fields.get(name).unbind(), strict=True):
                self.rows[key][name] = value
        return KVBatchMeta(partition_id=partition_id, keys=list(keys), tags=[dict(self.tags[key]) for key in keys])

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        found: dict[str, Any] = {}
        for name in select_fields:
            values = [self.rows[key][name] for key in keys if name in self.rows[key]]
            if values and isinstance(values[0], torch.Tensor):
                found[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            elif values:
                found[name] = NonTensorStack(*values)
        return TensorDict(found, batch_size=[len(keys)])


class LocalWorker:
    """An episode worker that copies episodes which were played before."""

    def __init__(self, queue: LocalQueue, played: list[Trajectory], group_size: int) -> None:
        self._queue, self._played, self._group_size = queue, played, group_size
        self._rows = [output.as_dict() for one in played for output in to_verl_outputs(one)]
        self._waiting: list[Any] = []
        self._finished = FinishedEpisodes()

    def call(self, method: str, *args: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(getattr(self, method)(*args))
        return answer

    def pulse(self) -> tuple[int, str]:
        return 0, ""

    def generate_sequences(self, prompts: Any) -> None:
        self._waiting.append(prompts)

    def finish_step(self, *_: Any) -> FinishedEpisodes:
        finished, self._finished = self._finished, FinishedEpisodes()
        return finished

    def play_what_waits(self) -> None:
        waiting, self._waiting = self._waiting, []
        ended: list[Trajectory] = []
        for prompts in waiting:
            for uid, index in zip(list(prompts["uid"]), prompts["index"], strict=True):
                ended += [self._put(str(uid), int(index), session) for session in range(self._group_size)]
                self._queue.tags[str(uid)]["status"] = "finished"
        if ended:
            tokens = [Attempt("completed", len(one.tokens.ids)) for one in ended]
            entries = [
                LedgerEntry(one.episode_id, one.group_id, Decision.KEPT, [attempt])
                for one, attempt in zip(ended, tokens, strict=True)
            ]
            self._finished = FinishedEpisodes(report_of(ended), entries)

    def _put(self, uid: str, index: int, session: int) -> Trajectory:
        place = (index + session) % len(self._played)
        played, row = copy.copy(self._played[place]), copy.deepcopy(self._rows[place])
        played.episode_id, played.group_id = episode_name(uid, session), str(index)
        row |= {"uid": uid, "input_ids": torch.cat([row["prompts"], row["responses"]])}
        row |= {name: torch.full(row["input_ids"].shape, -0.25) for name in ("log_probs", "entropy")}
        lengths = {name: len(row[field]) for name, field in (("prompt_len", "prompts"), ("response_len", "responses"))}
        lengths["seq_len"] = sum(lengths.values())
        key = f"{uid}_{session}_0"
        self._queue.rows[key] = row
        self._queue.tags[key] = {"status": "success", **lengths, "min_global_steps": 0, "max_global_steps": 0}
        return played


class LocalRanks(RankGroup):
    """What the ranks would put into the queue is there already."""

    def __init__(self) -> None:
        self._dispatch_info = {"actor": list(range(RANKS))}

    def compute_log_prob(self, batch: Any) -> Any:
        return batch


class LocalTaskRunner(MeasuredTaskRunner):
    """The task runner in this process."""

    ranks = LocalRanks

    def __init__(self, trainer: RayPPOTrainer) -> None:
        config, model = trainer.config, resolve("tiny")
        parts = trainer.parts
        self._folder, _ = claim_new_folder(config, parts.environment.name)
        run_dir = str(self._folder.path)
        theirs = verl_config(config, model_path=model, run_dir=run_dir, steps=1)
        write_settings(config, self._folder)
        write_starts(config, parts, self._folder, is_new=True)
        OmegaConf.resolve(theirs)
        limits, sampling = Limits.of(config.inference), Sampling(max_tokens=SAID)
        rollout = RolloutSpec(
            environment=parts.environment,
            limits=limits,
            sampling=sampling,
            failures=FailurePolicy.of(config.failures),
        )
        chat, queue = Chat(AutoTokenizer.from_pretrained(model)), LocalQueue()
        played = [
            asyncio.run(
                run_episode(
                    EpisodeStart(f"episode-{seed}", seed=seed),
                    environment=parts.environment,
                    engine=Replies(),
                    chat=chat,
                    limits=limits,
                    sampling=sampling,
                )
            )
            for seed in (1, 30, 400, 5001)  # of different lengths
        ]
        queue.replace_transfer_queue()
        group_size = config.training.group_size
        queue.workers = [LocalWorker(queue, played, group_size) for _ in range(2)]
        handles = [EpisodeWorkerHandle(worker.call, Future()) for worker in queue.workers]
        self._made = (theirs, EpisodePlan(config, rollout, run_dir))
        self._trainer = SimpleNamespace(global_steps=0)
        self._workers = EpisodeWorkers(handles.__getitem__, len(handles), group_size, Ledger())

    def _emit(self, kind: str, content: Any) -> None:
        if kind == "step":
            self._folder.append_metrics(content)
        elif kind == "ledger":
            self._folder.append_ledger(content)
