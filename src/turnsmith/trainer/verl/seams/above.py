"""Seams of the trainer: its hooks, the replay buffer, the agent loop and what an episode hands over."""

from __future__ import annotations

import inspect
from pathlib import Path

from turnsmith.trainer.verl.seams.base import holds, parameters, same, seam


@seam("EpisodeTrainer.__init__ in trainer/verl/trainer.py")
def llm_server_manager_is_a_module_global() -> None:
    """PPOTrainer._setup should take LLMServerManager from the globals of its own module trainer_base"""
    from verl.trainer.ppo.v1 import trainer_base
    from verl.workers.rollout.llm_server import LLMServerManager

    holds(trainer_base.LLMServerManager is LLMServerManager)
    holds("LLMServerManager" in inspect.getclosurevars(trainer_base.PPOTrainer._setup).globals)


HOOKS = {
    "init": [],
    "fit": ["agent_loop_manager"],
    "step": ["metrics", "timing_raw"],
    "get_llm_client": [],
    "on_step_begin": [],
    "on_sample_begin": [],
    "on_sample_end": [],
    "on_step_end": [],
    "_build_replay_buffer": [],
    "_compute_old_log_prob": ["batch", "metrics"],
    "_update_actor": ["batch", "metrics"],
    "_compute_metrics": ["batch", "metrics", "timing_raw", "global_steps", "epoch"],
    "_save_checkpoint": [],
    "_load_checkpoint": [],
}
"""What we override or call, with its parameters."""


def add_hook(name: str, wanted: list[str]) -> None:
    def check() -> None:
        from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, PPOTrainerSync

        from turnsmith.trainer.verl.trainer import EpisodeTrainer

        for theirs in (PPOTrainerSync, PPOTrainerColocateAsync, PPOTrainerSeparateAsync):
            same(parameters(getattr(theirs, name)), wanted)
        same(parameters(getattr(EpisodeTrainer, name)), wanted)

    check.__name__ = f"ppo_trainer.{name}"
    check.__doc__ = f"{name} of PPOTrainerSync, -ColocateAsync and -SeparateAsync should take ({', '.join(wanted)})"
    seam("EpisodeTrainer in trainer/verl/trainer.py")(check)


for hook, hook_parameters in HOOKS.items():
    add_hook(hook, hook_parameters)


@seam("AsyncTrainer in trainer/verl/schedules.py")
def what_is_under_way_is_found_in_the_queue() -> None:
    """Training that begins should reissue what is in the queue, and warm up by _restored_tq_prompt_count"""
    from verl.trainer.ppo.v1 import PPOTrainerColocateAsync, PPOTrainerSeparateAsync, trainer_base

    fit = inspect.getsource(trainer_base.PPOTrainer.fit)
    holds(fit.index("self._reissue_inflight_prompts()") < fit.index("self.on_train_begin()"))
    holds("_restored_tq_prompt_count" in inspect.getsource(trainer_base.PPOTrainer._add_async_warmup_batches))
    for theirs in (PPOTrainerColocateAsync, PPOTrainerSeparateAsync):
        holds("_add_async_warmup_batches" in inspect.getsource(theirs.on_train_begin))
    same(parameters(trainer_base._count_tq_prompt_groups), ["partition_id"])


@seam("check_fit in trainer/checkpoints/contents.py")
def a_checkpoint_lists_the_storage_units() -> None:
    """TransferQueue should save a list of its storage units, which must be as many when it is loaded"""
    from transfer_queue.storage.managers import simple_storage_manager as theirs

    same((theirs._SU_SUBDIR, theirs._SU_INFO_FILE), ("simple_storage", "storage_unit_info.json"))
    source = inspect.getsource(theirs.AsyncSimpleStorageManager.load_checkpoint)
    holds("len(su_ids) != len(su_info_list)" in source)


@seam("EpisodeReplayBuffer in trainer/verl/replay_buffer.py")
def replay_buffer_wait_for_next_poll() -> None:
    """ReplayBuffer should sleep nowhere but in self._wait_for_next_poll(partition_id, last_debug_time)"""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    same(parameters(ReplayBuffer._wait_for_next_poll), ["partition_id", "last_debug_time"])
    source = inspect.getsource(ReplayBuffer)
    holds("self._wait_for_next_poll(partition_id, last_debug_time)" in source)
    same(source.count("time.sleep("), 1)


@seam("EpisodeTrainer.step in trainer/verl/trainer.py")
def replay_buffer_error_of_an_empty_batch() -> None:
    """A batch in which every episode failed should raise a RuntimeError with `no materializable trajectories`"""
    from verl.trainer.ppo.v1 import replay_buffer

    holds("no materializable trajectories" in Path(replay_buffer.__file__).read_text())


@seam("_FROM_VERL in trainer/diagnostics/metrics.py")
def metric_names() -> None:
    """verl should still call its metrics and timings by the names that we read"""
    import verl

    from turnsmith.trainer.diagnostics.metrics import _FROM_VERL

    root = Path(verl.__file__).parent
    files = (
        "trainer/ppo/v1/trainer_base.py trainer/ppo/v1/trainer_sync.py trainer/ppo/metric_utils.py "
        "trainer/ppo/core_algos.py trainer/ppo/ray_trainer.py trainer/ppo/rollout_corr_helper.py "
        "utils/debug/metrics.py workers/utils/losses.py workers/engine_workers.py"
    )
    text = "".join((root / name).read_text() for name in files.split())
    # Some get their prefix where they are collected.
    for name, whole in (
        ('metrics["rollout_is', 'metrics["rollout_corr/rollout_is'),
        ('["kl_loss', '["actor/kl_loss'),
        ('["perf/max_memory', '["actor/perf/max_memory'),
    ):
        text = text.replace(name, whole)
    names = {name.removeprefix("timing_s/") for name in _FROM_VERL.values()} - {"actor/lr"}  # put together from parts
    same(sorted(name for name in names if f'"{name}"' not in text), [])


@seam("to_verl_outputs in trainer/verl/agent_loop.py")
def agent_loop_output_fields() -> None:
    """AgentLoopOutput should have the fields that we fill"""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    ours = {"prompt_ids", "response_ids", "response_mask", "response_logprobs", "reward_score", "num_turns", "metrics"}
    same(sorted((ours | {"extra_fields"}) - set(AgentLoopOutput.model_fields)), [])
    holds("generate_sequences" in AgentLoopMetrics.model_fields)


@seam("EpisodeOutput in trainer/verl/agent_loop.py (if verl now keeps a reward for each token, drop that class)")
def agent_loop_output_keeps_one_reward() -> None:
    """AgentLoopOutput.as_dict should put its one reward on the very last token, even an observation's"""
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    output = AgentLoopOutput(
        prompt_ids=[1], response_ids=[2, 3, 4], response_mask=[1, 1, 0], reward_score=1.5, metrics=AgentLoopMetrics()
    )
    same(output.as_dict()["rm_scores"].tolist(), [0.0, 0.0, 1.5])


@seam("EpisodeAgentLoop in trainer/verl/agent_loop.py")
def agent_loop_base_run() -> None:
    """AgentLoopBase.run should take (sampling_params, **kwargs) and the worker hand over `server_manager`"""
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopWorker

    same(parameters(AgentLoopBase.run), ["sampling_params", "kwargs"])
    same(inspect.signature(AgentLoopBase.run).parameters["kwargs"].kind, inspect.Parameter.VAR_KEYWORD)
    holds(inspect.iscoroutinefunction(AgentLoopBase.run))
    holds("server_manager=self.llm_client" in inspect.getsource(AgentLoopWorker))


@seam("EpisodeAgentLoop in trainer/verl/agent_loop.py")
def agent_loop_registry() -> None:
    """@register should put our agent loop into verl's registry under its name"""
    from verl.experimental.agent_loop import agent_loop

    from turnsmith.trainer.verl.agent_loop import EpisodeAgentLoop

    where = f"{EpisodeAgentLoop.__module__}.EpisodeAgentLoop"
    same(agent_loop._agent_loop_registry["turnsmith"], {"_target_": where})


@seam("EpisodeWorker in trainer/verl/worker.py")
def agent_loop_worker_tq() -> None:
    """AgentLoopWorkerTQ should be a Ray actor class around a class that we can inherit from"""
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

    worker = AgentLoopWorkerTQ.__ray_metadata__.modified_class
    same(parameters(worker.generate_sequences)[:1], ["batch"])  # Ray adds one of its own
    same(parameters(worker._run_agent_loop)[:1], ["sampling_params"])
    base = next(cls for cls in worker.__mro__ if cls.__name__ == "AgentLoopWorker")
    same(parameters(base.__init__), ["config", "llm_client", "teacher_client", "reward_loop_worker_handles"])


@seam("trainer.total_training_steps in trainer/config/to_verl.py, which is the horizon of the learning rate,")
def optimizer_horizon() -> None:
    """PPOTrainer should take the horizon of both optimizers from trainer.total_training_steps"""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    made = inspect.getsource(PPOTrainer._init_dataloader)
    holds("total_training_steps = self.config.trainer.total_training_steps\n" in made)
    for part in ("actor_rollout_ref.actor", "critic"):
        holds(f"self.config.{part}.optim.total_training_steps = optim_total_training_steps" in made)


@seam("EpisodeTrainer.load and EpisodeDataset in trainer/verl")
def loader_keeps_the_state_of_the_dataset() -> None:
    """PPOTrainer should read its train_dataset by a StatefulDataLoader, anew when train_dataloader_it is None"""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    made = inspect.getsource(PPOTrainer._init_dataloader)
    holds("self.train_dataloader = StatefulDataLoader(\n            dataset=self.train_dataset," in made)
    holds("if self.train_dataloader_it is None:" in inspect.getsource(PPOTrainer._fetch_one_gen_batch))


@seam("CheckpointingTrainer._write and .state in trainer/verl/checkpointing.py")
def checkpoints_are_where_we_say() -> None:
    """PPOTrainer should save below trainer.default_local_dir, and keep its KL coefficient in kl_ctrl_in_reward.value"""
    from verl.trainer.ppo.core_algos import AdaptiveKLController
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    saved = inspect.getsource(PPOTrainer._save_checkpoint)
    holds('self.config.trainer.default_local_dir, f"global_step_{self.global_steps}"' in saved)
    holds("self.kl_ctrl_in_reward = core_algos.get_kl_controller(" in inspect.getsource(PPOTrainer.__init__))
    same(vars(AdaptiveKLController(0.5, 0.1, 10)), {"value": 0.5, "target": 0.1, "horizon": 10})


@seam("trainer/checkpoints/fsdp_shards.py and trainer/checkpoints/hugging_face.py")
def files_of_a_checkpoint() -> None:
    """FSDPCheckpointManager should write a rank's files, fsdp_config.json, lora_train_meta.json and huggingface/"""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    source = inspect.getsource(FSDPCheckpointManager)
    for kind in ("model", "optim", "extra_state"):
        holds(f'f"{kind}_world_size_{{self.world_size}}_rank_{{self.rank}}.pt"' in source)
    for name in ("fsdp_config.json", "lora_train_meta.json", "huggingface"):
        holds(f'"{name}"' in source)


@seam("trainer/verl/resharding.py")
def a_rank_loads_its_own_files() -> None:
    """FSDPCheckpointManager.load_checkpoint should take what ours does, and save states as ours loads them"""
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    same(parameters(FSDPCheckpointManager.load_checkpoint), ["local_path", "hdfs_path", "del_local_after_load"])
    source = inspect.getsource(FSDPCheckpointManager)
    for part in ("self.model.state_dict()", "self.optimizer.state_dict()", '"lr_scheduler": ', '"rng": '):
        holds(part in source)
    for name in ("should_load_model", "should_load_optimizer", "should_load_extra", "load_rng_state"):
        holds(hasattr(FSDPCheckpointManager, name))


@seam("TaskRunner.start in trainer/verl/task_runner.py")
def task_runner_calls() -> None:
    """validate_config, need_critic, need_reference_policy and transfer_queue.init should take what we give them"""
    import transfer_queue
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    same(parameters(validate_config), ["config", "use_reference_policy", "use_critic"])
    same([parameters(need_critic), parameters(need_reference_policy)], [["config"], ["config"]])
    same(parameters(transfer_queue.init)[:1], ["conf"])


@seam("trainer/verl/agent_loop.py itself, not verl,")
def episode_output_places_rewards() -> None:
    """EpisodeOutput.as_dict should put each turn's reward on the last token the model sampled in that turn"""
    from turnsmith.trainer.verl.agent_loop import to_verl_outputs
    from turnsmith.trajectory import Outcome, Trajectory, TurnRecord

    trajectory = Trajectory(
        episode_id="e", outcome=Outcome.COMPLETED, actions=["a", "b", "c"], rewards=[0.5, 0.0, -1.0]
    )
    trajectory.tokens.open([1, 2])
    for version, ids in enumerate(([10, 11, 12], [20], [30, 31])):
        start, stop = trajectory.tokens.append_model(ids, [-0.25] * len(ids))
        trajectory.turns.append(TurnRecord(start, stop, "stop", 3 + version))
        trajectory.tokens.append_context([5, 6])  # the observation, also after the last turn
    stored = to_verl_outputs(trajectory)[0].as_dict()
    same(stored["prompts"].tolist(), [1, 2])
    same(stored["responses"].tolist(), [10, 11, 12, 5, 6, 20, 5, 6, 30, 31, 5, 6])
    same(stored["response_mask"].tolist(), [1, 1, 1, 0, 0, 1, 0, 0, 1, 1, 0, 0])
    same(stored["rm_scores"].tolist(), [0, 0, 0.5, 0, 0, 0, 0, 0, 0, -1.0, 0, 0])
    same(stored["rollout_log_probs"].tolist(), [-0.25 * sampled for sampled in stored["response_mask"].tolist()])
    same([stored["extra_fields"][name] for name in ("min_global_steps", "max_global_steps")], [3, 5])
    holds("token_rewards" not in stored)
    trajectory.score = 2.0
    same(to_verl_outputs(trajectory)[0].as_dict()["rm_scores"].nonzero().tolist(), [[9]])
