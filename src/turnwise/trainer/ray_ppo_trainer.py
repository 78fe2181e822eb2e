"""`RayPPOTrainer`: what the user's script holds. It builds verl's config, starts Ray and watches verl train."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from turnwise.config import ConfigStore
from turnwise.config_sources import to_dict
from turnwise.env.spec import EnvironmentSpec
from turnwise.errors import ConfigError, RecordError, TrainingFailure, TurnwiseError
from turnwise.inference.engine import Sampling
from turnwise.records.run_folder import RunFolder
from turnwise.rollout.limits import Limits
from turnwise.tools.registry import ToolRegistry
from turnwise.trainer.cluster import Cluster
from turnwise.trainer.interrupt import Interrupt
from turnwise.trainer.progress import ProgressView

_WATCH_SECONDS = 0.25
_CHECKPOINT = re.compile(r"global_step_(\d+)")


class RayPPOTrainer:
    """Trains a language model in the user's environment, with verl on Ray.

    Args:
        config: All settings; nothing needs to be set.
        environment: The environment's class, `"module:Name"`, or an instance (then its class and config are taken).
        reward_fn: `reward_fn(trajectory)` or `reward_fn(trajectory, environment)`, sync or async, pays for a whole
            episode; None: the rewards of the environment's own `step` count, each on the turn that earned it.
        dataset: Tasks, one mapping each, given to `reset(task=...)` in turn; None: only seeds differ.
        tools: Tools to offer besides the environment's own `@tool` methods.

    Example:
        >>> from turnwise import ConfigStore, RayPPOTrainer
        >>> config = ConfigStore()
        >>> config.training.batch_size = 30
        >>> RayPPOTrainer(config, "turnwise.env.examples:GuessNumber")
        Traceback (most recent call last):
        turnwise.errors.ConfigError: training.batch_size=30 is not a multiple of training.group_size=8: a batch is \
made of whole groups. Set batch_size to a multiple of group_size.
    """

    def __init__(
        self,
        config: ConfigStore,
        environment: Any,
        reward_fn: Callable[..., Any] | None = None,
        dataset: Iterable[Mapping[str, Any]] | None = None,
        tools: ToolRegistry | None = None,
    ) -> None:
        from turnwise.trainer.verl.config_mapping import check

        check(config)
        self.config = config
        self.environment = EnvironmentSpec.of(environment, config.environment)
        self.reward_fn = reward_fn
        self.tasks = [dict(task) for task in dataset] if dataset is not None else None
        self.tools = tools
        self.metrics_history: list[dict[str, Any]] = []
        """One record for each optimizer step made so far."""
        self.run: RunFolder | None = None
        """The run's folder, once training has started."""
        self._cluster: Cluster | None = None
        self._runner: Any = None
        self._servers: list[Any] = []  # kept, because an actor ends with its last handle
        self._view = ProgressView()

    def fit(self, num_epochs: int | None = None, num_iters_per_epoch: int | None = None) -> list[dict[str, Any]]:
        """Train for `num_epochs` times `num_iters_per_epoch` optimizer steps; return the records of all steps.

        Ctrl-C stops every process of the run and leaves its folder readable. A second call goes on from the first.
        """
        training = self.config.training
        steps_in_epoch = num_iters_per_epoch or training.steps_per_epoch
        steps = (num_epochs or training.num_epochs) * steps_in_epoch
        began = time.monotonic()
        try:
            self._view.start(steps, self._header())
            self._start(steps_in_epoch)
            self._watch(self._runner.train_until.remote(self._watch(self._runner.step.remote()) + steps))
        except BaseException as error:
            self._view.finish("stopped by Ctrl-C" if isinstance(error, KeyboardInterrupt) else f"failed: {error}")
            self.cleanup()
            raise
        self._view.finish(f"{steps} steps in {time.monotonic() - began:.0f} s, in {self._folder().path}")
        return self.metrics_history

    def save_checkpoint(self, path: str | Path) -> Path:
        """Save model, optimizer and data position under `path`; return the checkpoint's own folder."""
        if self._runner is None:
            raise TrainingFailure("There is nothing to save yet: call fit() or load_checkpoint() first.")
        return Path(self._watch(self._runner.save.remote(str(Path(path).absolute()))))

    def load_checkpoint(self, path: str | Path) -> int:
        """Load what `save_checkpoint(path)` saved (the newest, if several); return its step."""
        checkpoint = _newest_checkpoint(Path(path).absolute())
        self._start(self.config.training.steps_per_epoch)
        return int(self._watch(self._runner.load.remote(str(checkpoint))))

    def cleanup(self) -> None:
        """Stop Ray and every process of the run, and free their memory. Safe to call twice."""
        if self._cluster is not None:
            self._cluster.close()
        self._cluster = self._runner = None
        self._servers = []

    def _start(self, steps_in_epoch: int) -> None:
        if self._runner is not None:
            return
        from turnwise.models import resolve
        from turnwise.trainer.verl.config_mapping import device_of, verl_config
        from turnwise.trainer.verl.episode_plan import EpisodePlan
        from turnwise.trainer.verl.task_runner import TaskRunner

        config = self.config
        self._view.phase("resolving model")
        model_path = resolve(config.model.model_name, config.model.local_path)
        self.run = self._new_folder()
        run_dir = str(self.run.path)
        theirs = verl_config(config, model_path=model_path, run_dir=run_dir, steps=10**9)
        self._write_inputs(theirs)
        self._view.phase("starting Ray")
        self._cluster = Cluster(config, device_of(config))
        self._runner = self._cluster.actor(TaskRunner, threads=4)
        self._start_servers_early(model_path)
        plan = EpisodePlan(
            environment=self.environment,
            limits=Limits.of(config.inference),
            sampling=self._sampling(),
            run_dir=run_dir,
            reward_fn=self.reward_fn,
            tools=self.tools,
            tool_format=config.inference.tool_format,
        )
        save_every = config.checkpoint.save_interval * steps_in_epoch
        self._watch(
            self._runner.start.remote(
                theirs,
                plan,
                num_actors=config.ray.num_actors,
                save_every=save_every,
                steps_in_epoch=steps_in_epoch,
            )
        )

    def _start_servers_early(self, model_path: str) -> None:
        from turnwise.trainer.verl.config_mapping import backend_of, dtype_of
        from turnwise.trainer.verl.rollout_registry import TRANSFORMERS
        from turnwise.trainer.verl.transformers_server import start_server

        config = self.config
        if backend_of(config) != TRANSFORMERS or self._cluster is None or not self._cluster.is_local:
            return
        self._servers = [
            start_server(
                rank,
                self._cluster.node_id(),
                model_path=model_path,
                dtype=dtype_of(config),
                max_concurrency=config.inference.max_concurrency,
                trust_remote_code=config.model.trust_remote_code,
            )
            for rank in range(config.ray.gpus_per_node)
        ]

    def _new_folder(self) -> RunFolder:
        checkpoint = self.config.checkpoint
        name = checkpoint.run_name or f"{self.environment.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        return RunFolder.create(Path(checkpoint.output_dir).absolute(), name)

    def _write_inputs(self, theirs: Any) -> None:
        import json

        from omegaconf import OmegaConf

        folder = self._folder()
        folder.write_config(to_dict(self.config))
        folder.write_verl_config(OmegaConf.to_yaml(theirs))
        starts = {"seed": self.config.training.seed, "tasks": self.tasks or []}
        (folder.path / "starts.json").write_text(json.dumps(starts))

    def _sampling(self) -> Sampling:
        inference = self.config.inference
        return Sampling(
            max_tokens=inference.max_tokens,
            temperature=inference.temperature,
            top_p=inference.top_p,
            top_k=inference.top_k,
        )

    def _watch(self, reference: Any) -> Any:
        """Show what happens until a call to the task runner ends; return its result or raise its error in words."""
        import ray
        from ray.exceptions import RayError

        with Interrupt() as interrupt:
            while True:
                interrupt.check()
                done, _ = ray.wait([reference], timeout=0)
                try:
                    for kind, content in ray.get(self._runner.next_events.remote(0.0 if done else _WATCH_SECONDS)):
                        self._show(kind, content)
                    if done:
                        return ray.get(reference)
                except RayError as error:
                    raise self._in_words(error) from None

    def _show(self, kind: str, content: Any) -> None:
        if kind == "phase":
            self._view.phase(content)
        elif kind == "step":
            self.metrics_history.append(content)
            self._view.step(content)
        elif kind == "checkpoint":
            self._view.note(f"saved {content}")

    def _in_words(self, error: Exception) -> TurnwiseError:
        """The error of a remote call as one of ours; the full text goes to the run's folder."""
        folder = self._folder()
        log = folder.path / "error.log"
        log.write_text(str(error))
        folder.append_event("failed", content=str(error)[-2000:])
        cause = getattr(error, "cause", None)
        if isinstance(cause, TurnwiseError):
            return type(cause)(f"{cause} (full text in {log})")
        reason = repr(cause) if cause is not None else str(error).strip().splitlines()[-1]
        return TrainingFailure(f"The run stopped after step {self._steps_made()}: {reason} (full text in {log})")

    def _steps_made(self) -> int:
        return self.metrics_history[-1]["step"] if self.metrics_history else 0

    def _folder(self) -> RunFolder:
        if self.run is None:
            raise TrainingFailure("The run has no folder yet: call fit() first.")
        return self.run

    def _header(self) -> str:
        from turnwise.trainer.verl.config_mapping import backend_of, device_of

        training, model = self.config.training, self.config.model.local_path or self.config.model.model_name
        return (
            f"{self.environment.name} · {model} · {training.adv_estimator}, {training.batch_size} episodes a step in "
            f"groups of {training.group_size} · {backend_of(self.config)} on {device_of(self.config)}"
        )


def create_trainer(
    config: ConfigStore,
    environment: Any,
    reward_fn: Callable[..., Any] | None = None,
    dataset: Iterable[Mapping[str, Any]] | None = None,
    tokenizer: Any = None,
    tools: ToolRegistry | None = None,
) -> RayPPOTrainer:
    """Make a `RayPPOTrainer`. The model's own tokenizer is always used; `tokenizer` must be it, if given.

    Example:
        >>> from turnwise import ConfigStore
        >>> create_trainer(ConfigStore(), "turnwise.env.examples:GuessNumber").environment.name
        'GuessNumber'
    """
    named = getattr(tokenizer, "name_or_path", None)
    if named and named not in (config.model.model_name, config.model.local_path):
        raise ConfigError(
            f"The tokenizer comes from {named!r}, but the model is {config.model.model_name!r}: leave tokenizer out."
        )
    return RayPPOTrainer(config, environment, reward_fn, dataset, tools)


def _newest_checkpoint(path: Path) -> Path:
    if _CHECKPOINT.fullmatch(path.name) and path.is_dir():
        return path
    found = {int(match[1]): folder for folder in path.glob("*") if (match := _CHECKPOINT.fullmatch(folder.name))}
    if not found:
        raise RecordError(f"{path} holds no checkpoint: expected a folder called global_step_N in it.")
    return found[max(found)]
