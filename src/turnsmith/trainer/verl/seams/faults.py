"""Seams of what happens when something fails: masked episodes, dropped groups, lost workers and servers."""

from __future__ import annotations

import asyncio
import inspect

from turnsmith.trainer.verl.seams.base import holds, parameters, same, seam


@seam("EpisodeAgentLoop.run in trainer/verl/agent_loop.py (an episode that is masked gives verl nothing)")
def an_empty_output_is_left_out() -> None:
    """AgentLoopWorkerTQ should put nothing into the queue for an agent loop that returns an empty list"""
    from verl.trainer.ppo.v1 import agent_loop_tq

    worker = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
    bare = worker.__new__(worker)  # without a queue, a config or a model: nothing of it may be touched
    same(asyncio.run(bare._agent_loop_postprocess([], False, uid="g", session_id=0)), None)


@seam("GroupDropped in trainer/verl/agent_loop.py")
def an_error_marks_the_group() -> None:
    """AgentLoopWorkerTQ._run_prompt should give a group the status `failure` when an agent loop of it raises"""
    from verl.trainer.ppo.v1 import agent_loop_tq

    source = inspect.getsource(agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class._run_prompt)
    holds('status = "failure"' in source and "if session_errors:" in source)


@seam("EpisodeReplayBuffer in trainer/verl/replay_buffer.py")
def groups_are_replaced_one_by_one() -> None:
    """ReplayBuffer should evict what _terminal_eviction_reasons calls failed, and call refill_fn with their number"""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from turnsmith.errors import TrainingFailure
    from turnsmith.trainer.verl.replay_buffer import EpisodeReplayBuffer

    refilled: list[int] = []
    buffer = EpisodeReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="wait",
        sampler_kwargs={},
        gen_batch_size=1,
        sync_refill_failed_groups=True,
        look=lambda: None,
        finish=lambda groups: True,
        replace_lost=lambda: None,
        groups_per_step=2,
        replaces=True,
        filters=False,
        dispatch=refilled.append,
    )
    buffer.partitions["train"] = {"a_0_0": {}}  # verl would keep this group for the one episode that is left of it
    buffer.failure_keys["train"] = {"a"}
    buffer.finished_keys["train"] = {"b"}
    reasons = buffer._terminal_eviction_reasons(1, "train")
    same(reasons[2], {"a"})
    same(buffer._sampleable_terminal_keys("train", reasons), {"b"})
    holds("self.refill_fn(failed_count)" in inspect.getsource(ReplayBuffer.sample))
    replace = buffer.refill_fn
    assert replace is not None
    replace(16)
    buffer.begin_step()
    replace(16)
    same(refilled, [16, 16])
    try:
        replace(1)
    except TrainingFailure as error:
        holds(str(error).startswith("17 groups were replaced in one step"))
    else:
        raise AssertionError("it goes on for ever")


@seam("EpisodeReplayBuffer.sample in trainer/verl/replay_buffer.py")
def a_batch_is_taken_in_one_place() -> None:
    """ReplayBuffer.sample should take groups by self._materialize_batch(partition_id, uids, snapshot), by keyword"""
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    wanted = ["partition_id", "selected_prompt_uids", "partition_snapshot"]
    same(parameters(ReplayBuffer._materialize_batch), wanted)
    holds("self._materialize_batch(partition_id, selected_prompt_uids," in inspect.getsource(ReplayBuffer.sample))
    call = inspect.getsource(PPOTrainer._step_once)
    holds(all(f"{name}=" in call for name in ("global_steps", "partition_id", "batch_size")))


@seam("_schedule in trainer/config/to_verl.py")
def refilling_fetches_single_starts() -> None:
    """With sync_refill_failed_groups, verl should read starts one by one (data.gen_batch_size = 1)"""
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    source = inspect.getsource(PPOTrainer._init_dataloader)
    holds("sync_refill_failed_groups" in source and "self.config.data.gen_batch_size = 1" in source)


@seam("EpisodeWorkers in trainer/verl/workers.py (groups of a lost worker are played again)")
def the_queue_can_be_told_to_wait_again() -> None:
    """A group should be under its uid in transfer_queue, with the tags is_prompt and status; episodes uid_session_n"""
    import transfer_queue
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    same(parameters(transfer_queue.kv_list)[:1], ["partition_id"])
    holds({"keys", "partition_id"} <= set(parameters(transfer_queue.kv_clear)))
    holds({"keys", "partition_id", "tags"} <= set(parameters(transfer_queue.kv_batch_put)))
    holds('"is_prompt": True, "status": "pending"' in inspect.getsource(PPOTrainer._submit_batch_to_rollout))
    holds('key.split("_", 1)[0]' in inspect.getsource(PPOTrainer._reissue_inflight_prompts))


@seam("Watchdog in trainer/driver/watchdog.py")
def the_queue_has_named_actors() -> None:
    """TransferQueue's controller should be the actor TransferQueueController in the namespace transfer_queue"""
    from transfer_queue import interface

    from turnsmith.trainer.driver.preflight import QUEUE_NAMESPACE

    source = inspect.getsource(interface)
    holds(f'name="TransferQueueController", namespace="{QUEUE_NAMESPACE}"' in source)


@seam("RecoveringTrainer in trainer/verl/recovery.py (a server that was started again gets the weights)")
def weights_are_sent_by_the_checkpoint_manager() -> None:
    """CheckpointEngineManager.update_weights should take global_steps, and LLMServerManager have server_handles"""
    from verl.checkpoint_engine import CheckpointEngineManager
    from verl.workers.rollout.llm_server import LLMServerManager

    same(parameters(CheckpointEngineManager.update_weights), ["global_steps"])
    holds("self.server_handles = " in inspect.getsource(LLMServerManager))


@seam("trainer/verl/agent_loop.py itself, not verl,")
def what_cannot_be_trained_on_is_masked() -> None:
    """mask_untrainable should mask an episode without a turn, and one whose tokens are not those sampled"""
    from turnsmith.trainer.verl.agent_loop import mask_untrainable
    from turnsmith.trajectory import Outcome, Trajectory, TurnRecord

    turn = TurnRecord(0, 1, "stop", 0)
    silent = Trajectory(outcome=Outcome.TIME_LIMIT)
    text = Trajectory(outcome=Outcome.COMPLETED, turns=[turn], exact=False)
    sound = Trajectory(outcome=Outcome.COMPLETED, turns=[turn])
    for trajectory in (silent, text, sound):
        mask_untrainable(trajectory)
    same([one.decision.value for one in (silent, text, sound)], ["masked", "masked", "kept"])
    holds(silent.error == "The model took no turn." and "evaluation only" in text.error)
