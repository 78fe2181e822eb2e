"""Seams of `separate_async`: servers apart from the trainer, how weights get there, and what a step takes."""

from __future__ import annotations

import inspect

from turnsmith.trainer.verl.seams.base import holds, parameters, same, seam


@seam("SeparateAsyncTrainer in trainer/verl/schedules.py")
def standalone_servers_and_their_weights() -> None:
    """PPOTrainerSeparateAsync should make its servers and their weights' manager in _setup, by names of its module"""
    from verl.trainer.ppo.v1 import trainer_separate_async
    from verl.workers.rollout.llm_server import LLMServerManager

    trainer = trainer_separate_async.PPOTrainerSeparateAsync
    holds(trainer_separate_async.LLMServerManager in (LLMServerManager, *LLMServerManager.__subclasses__()))
    setup = inspect.getsource(trainer._setup)
    holds("self.standalone_server_manager: LLMServerManager = LLMServerManager.create(" in setup)
    holds("self.standalone_checkpoint_manager = CheckpointEngineManager(" in setup)
    ended = inspect.getsource(trainer.on_step_end)
    holds("self.standalone_checkpoint_manager.update_weights(self.global_steps)" in ended)


@seam("SeparateAsyncTrainer.__init__ in trainer/verl/schedules.py (if it is mended, leave out the line)")
def a_log_line_that_fails() -> None:
    """PPOTrainerSeparateAsync._setup should pass the logger flush=True, and only where it logs at the level INFO"""
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync, logger

    setup = inspect.getsource(PPOTrainerSeparateAsync._setup)
    same(setup.count("flush=True"), 1)
    holds("logger.info(" in setup)
    same(logger.name, "verl.trainer.ppo.v1.trainer_separate_async")


@seam("SeparateAsyncTrainer.send_weights in trainer/verl/schedules.py")
def weights_of_the_steps_beginning_are_kept() -> None:
    """PPOTrainerSeparateAsync should keep the weights before a step's first update under the number 0"""
    from verl.experimental.separation.engine_workers import DetachActorWorker
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

    source = inspect.getsource(PPOTrainerSeparateAsync._compute_old_log_prob)
    holds("if self.local_trigger_step == 0:\n            self.actor_rollout_wg.save_model_to_cpu(0)" in source)
    for name in ("save_model_to_cpu", "restore_model_from_cpu", "clear_cpu_model"):
        same(parameters(getattr(DetachActorWorker, name)), ["n"])


@seam("trainer/verl/joined_servers.py, LivingReplicas in trainer/verl/lost_servers.py, trainer/driver/watchdog.py")
def servers_may_come_and_go() -> None:
    """RolloutReplica should start alone, and CheckpointEngineManager make a group of its replicas for each transfer"""
    from verl.checkpoint_engine.base import CheckpointEngineManager
    from verl.workers.rollout.replica import RolloutReplica

    same(parameters(RolloutReplica.__init__)[:4], ["replica_rank", "config", "model_config", "gpus_per_node"])
    same(parameters(RolloutReplica.init_standalone), [])
    for name in ("add_replicas", "remove_replicas"):
        same(parameters(getattr(CheckpointEngineManager, name)), ["replicas"])
    update = inspect.getsource(CheckpointEngineManager.update_weights)
    holds("for replica in self.replicas:\n            workers.extend(replica.workers)" in update)
    holds("self.build_process_group(rollout)" in update)
    holds('name_prefix = f"rollout_standalone_{' in inspect.getsource(RolloutReplica.init_standalone))


@seam("EpisodeTrainer.updates_left in trainer/verl/trainer.py")
def updates_of_a_step_are_counted() -> None:
    """PPOTrainer.step should set local_trigger_step to the number of each update, below parameter_sync_step"""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    source = inspect.getsource(PPOTrainer.step)
    holds(
        "for trigger_idx in range(self.parameter_sync_step):\n            self.local_trigger_step = trigger_idx"
        in source
    )


@seam("AsyncEpisodeReplayBuffer in trainer/verl/replay_buffer.py")
def the_buffer_asks_whether_there_are_enough() -> None:
    """ReplayBufferAsync should ask _has_enough_samples, take the oldest, and drop in _evict_terminal_groups"""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync

    same(
        parameters(ReplayBufferAsync._has_enough_samples),
        ["global_steps", "partition_id", "batch_size", "sampleable_keys"],
    )
    same(parameters(ReplayBufferAsync._evict_terminal_groups), ["global_steps", "partition_id", "eviction_reasons"])
    waits = inspect.getsource(ReplayBufferAsync.wait_for_sampleable)
    holds("self._has_enough_samples(global_steps, partition_id, target_count, sampleable_keys)" in waits)
    holds("self._select_prompt_uids(" in inspect.getsource(ReplayBufferAsync.sample))
    holds("prompt_global_steps_snapshot.get(key, 0)" in inspect.getsource(ReplayBufferAsync._select_prompt_uids))


@seam("GlooCheckpointEngine in trainer/verl/cpu/gloo_engine.py")
def checkpoint_engines_are_called_like_this() -> None:
    """CheckpointEngineManager should call prepare, build_topology, init_process_group, the transfer, and finalize"""
    from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineManager

    from turnsmith.trainer.verl.cpu.gloo_engine import GlooCheckpointEngine

    same(sorted(GlooCheckpointEngine.__abstractmethods__), [])
    for name in ("prepare", "finalize", "send_weights", "receive_weights"):
        same(parameters(getattr(GlooCheckpointEngine, name)), parameters(getattr(CheckpointEngine, name)))
    source = inspect.getsource(CheckpointEngineManager)
    holds("self.backend_cls.build_topology(" in source)
    holds('["init_process_group"]' in source and '["finalize"]' in source)


@seam("_copy_the_weights_that_are_kept in trainer/verl/cpu/patches.py")
def kept_weights_are_looked_up_late() -> None:
    """DetachActorWorker should import fsdp2_sharded_save_to_cpu when it first saves, and so find ours"""
    from verl.experimental.separation import engine_workers
    from verl.utils import fsdp_utils

    same(fsdp_utils.fsdp2_sharded_save_to_cpu.__module__, "turnsmith.trainer.verl.cpu.patches")
    holds(not hasattr(engine_workers, "fsdp2_sharded_save_to_cpu"))
    holds("fsdp2_sharded_save_to_cpu,\n" in inspect.getsource(engine_workers.DetachActorWorker._get_strategy_handlers))


@seam("_let_each_group_meet_in_its_own_file in trainer/verl/plugin.py")
def groups_of_ranks_have_names() -> None:
    """RayWorkerGroup should tell its workers the name of their group in WG_PREFIX"""
    from verl.single_controller.ray import base

    holds('"WG_PREFIX": self.name_prefix' in inspect.getsource(base))
