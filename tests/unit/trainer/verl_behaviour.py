"""What turnsmith and verl do together: `python -m tests.unit.trainer.verl_behaviour` prints answers as JSON.

`import verl` takes seconds and changes the process it runs in, so the checks with the CPU chosen and those without run
in a process each. Nearly all of that time goes into other packages: those are imported once, before the process splits.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Generator
from typing import Any, get_args

import pytest
from tests.unit.trainer.gpu_layouts import LAYOUTS

LOADED_BY_VERL: set[str] = set()
OF_VALUES = "ValueModelEngine"
CPU: dict[str, Callable[[], None]] = {}
UNCHOSEN: dict[str, Callable[[], None]] = {}


def with_cpu(check: Callable[[], None]) -> Callable[[], None]:
    return CPU.setdefault(check.__name__, check)


def without_choice(check: Callable[[], None]) -> Callable[[], None]:
    return UNCHOSEN.setdefault(check.__name__, check)


def same(found: Any, wanted: Any) -> None:
    assert found == wanted, f"found {found}, wanted {wanted}"


# The plugin and what it registers


@with_cpu
def importing_verl_loads_every_part_of_the_plugin() -> None:
    assert "turnsmith.trainer.verl.plugin" in LOADED_BY_VERL
    from turnsmith.trainer.verl.plugin import LOADED

    same(LOADED, ["rollouts", "platform", "ports", "cpu"])


@without_choice
def the_plugin_chooses_nothing_unasked() -> None:
    import importlib.metadata

    from verl.plugin.platform import platform_manager
    from verl.workers.engine import EngineRegistry

    from turnsmith.trainer.verl.plugin import LOADED

    same(LOADED, ["rollouts", "platform"])
    assert "cpu" in platform_manager.PlatformRegistry.registered_names()
    assert platform_manager._detect_platform_name() != "cpu"
    assert not type(platform_manager._current_platform).__module__.startswith("turnsmith")
    same(set(EngineRegistry._engines["language_model"]["fsdp2"]), {"cuda", "npu"})
    same(importlib.metadata.version.__module__, "importlib.metadata")


@with_cpu
def what_is_registered_is_found_under_its_name() -> None:
    from verl.experimental.agent_loop import agent_loop
    from verl.plugin.platform import get_platform
    from verl.utils.device import get_device_name
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout.base import get_rollout_class
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    from turnsmith.trainer.verl.agent_loop import EpisodeAgentLoop

    same([type(get_platform()).__name__, get_device_name()], ["CpuPlatform", "cpu"])
    importlib.import_module("turnsmith.trainer.verl.ranks")  # as each rank does
    kinds = ("language_model", "value_model")
    same([EngineRegistry.get_engine_cls(kind, "fsdp2").__name__ for kind in kinds], ["SharedPromptEngine", OF_VALUES])
    for vendor in ("nvidia", "amd"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VERL_ENGINE_DEVICE", "cuda")
            patch.setenv("VERL_ENGINE_VENDOR", vendor)
            found = [EngineRegistry.get_engine_cls(kind, "fsdp2").__name__ for kind in kinds]
        same(found, ["LanguageModelEngine", OF_VALUES])
    rollouts = get_rollout_class("transformers", "async"), RolloutReplicaRegistry.get("transformers")
    same([rollout.__name__ for rollout in rollouts], ["TransformersAdapter", "TransformersReplica"])
    where = f"{EpisodeAgentLoop.__module__}.EpisodeAgentLoop"
    same(agent_loop._agent_loop_registry["turnsmith"], {"_target_": where})


@with_cpu
def the_ranks_are_ours() -> None:
    import ray
    from verl.experimental.separation import engine_workers as separate
    from verl.workers import engine_workers

    from turnsmith.trainer.verl.ranks import our_workers

    class Other:
        """Of somebody else."""

    theirs = [separate.DetachActorWorker, engine_workers.ActorRolloutRefWorker, engine_workers.TrainingWorker, Other]
    ours = our_workers({kind: ray.remote(kind) for kind in theirs})
    same([ours[kind].__ray_actor_class__.__name__ for kind in theirs], ["ActorRank", "ActorRank", "Rank", "Other"])
    found = {engine_workers.ActorRolloutRefWorker.actor_worker_cls, engine_workers.ActorRolloutRefWorker.ref_worker_cls}
    same(found, {engine_workers.TrainingWorker})  # those that `ActorRank` replaces


@with_cpu
def a_critic_has_the_chosen_attention_and_one_value_for_a_token() -> None:
    from verl.utils.config import omega_conf_to_dataclass

    from turnsmith.config import ConfigStore
    from turnsmith.inference.models import resolve
    from turnsmith.trainer.config.check import verl_config
    from turnsmith.trainer.verl.engines import ValueModelEngine

    config = ConfigStore()
    config.model.device, config.model.attn_implementation = "cpu", "eager"
    theirs = verl_config(config, model_path=resolve("tiny"), run_dir="unused", steps=1).actor_rollout_ref
    engine: Any = object.__new__(ValueModelEngine)
    engine.model_config, engine.engine_config = (omega_conf_to_dataclass(each) for each in (theirs.model, theirs.actor))
    engine.engine_config, engine.device_mesh = engine.engine_config.engine, None
    engine.use_remove_padding, engine.ulysses_sequence_parallel_size = False, 1
    engine.model_config.model_type = "value_model"
    named = list(engine.model_config.hf_config.architectures)
    module = engine._build_module()
    same((module.config._attn_implementation, module.num_labels, module.score.out_features), ("eager", 1, 1))
    same((engine.model_config.model_type, engine.model_config.hf_config.architectures), ("value_model", named))


# Our classes and verl's


def overridden() -> Generator[tuple[str, Any, Any]]:
    """What our classes define in place of verl's: its name, ours, and what it replaces."""
    for part in (
        "checkpoint_engine",
        "cpu.platform",
        "cpu.shared_prompts",
        "engines",
        "ranks",
        "replay_buffer",
        "schedules",
    ):
        module = importlib.import_module(f"turnsmith.trainer.verl.{part}")
        for ours in vars(module).values():
            if inspect.isclass(ours) and ours.__module__.startswith("turnsmith") and not ours.__subclasses__():
                same((ours.__name__, sorted(getattr(ours, "__abstractmethods__", ()))), (ours.__name__, []))
                seen = {"__init__"}
                for theirs in (base for base in ours.__mro__ if base.__module__.startswith("verl.")):
                    for name in vars(theirs).keys() - seen:
                        yield f"{ours.__name__}.{name}", getattr(ours, name), getattr(theirs, name)
                    seen |= vars(theirs).keys()


@with_cpu
def what_we_override_takes_the_parameters_of_verl() -> None:
    wrong: list[str] = []
    compared = 0
    for name, mine, theirs in overridden():
        if inspect.isfunction(mine) and inspect.isfunction(theirs) and mine is not theirs:
            compared += 1
            found, given = (dict(inspect.signature(each).parameters) for each in (mine, theirs))
            is_open = any("kwargs" in parameters for parameters in (found, given))
            wrong += [] if is_open or [*found] == [*given] else [f"{name} takes {[*found]}, verl gives {[*given]}"]
    same(wrong, [])
    assert compared > 20, compared


@with_cpu
def what_we_give_has_the_fields_of_verl() -> None:
    from dataclasses import fields

    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.utils.tracking import Tracking
    from verl.workers.rollout.replica import TokenOutput

    from turnsmith.config import Tracker
    from turnsmith.trainer.verl.transformers_server import ServerOutput

    same(sorted(TokenOutput.model_fields), sorted(item.name for item in fields(ServerOutput)))
    assert set(get_args(Tracker)) <= set(Tracking.supported_backend)
    output = AgentLoopOutput(
        prompt_ids=[1], response_ids=[2, 3, 4], response_mask=[1, 1, 0], reward_score=1.5, metrics=AgentLoopMetrics()
    )
    # If verl keeps a reward for each token by now, EpisodeOutput can go.
    same(output.as_dict()["rm_scores"].tolist(), [0.0, 0.0, 1.5])


@with_cpu
def groups_are_replaced_one_by_one() -> None:
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
        on_poll=lambda: None,
        collect_records=lambda groups: True,
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
    replace = buffer.refill_fn
    assert replace is not None
    replace(16)
    buffer.begin_step()
    replace(16)
    same(refilled, [16, 16])
    with pytest.raises(TrainingFailure, match="17 groups were replaced in one step"):
        replace(1)


# The config


def both_configs() -> list[dict[str, Any]]:
    """The keys we set, on a CPU and on a GPU."""
    from turnsmith.config import ConfigStore
    from turnsmith.trainer.config.to_verl import verl_keys

    keys: list[dict[str, Any]] = []
    for device in ("cpu", "cuda"):
        config = ConfigStore()
        config.model.device = device
        keys.append(verl_keys(config, model_path="m", run_dir="r", starts="s", steps=1))
    return keys


@with_cpu
def every_key_that_we_set_or_add_is_read_by_verl() -> None:
    from dataclasses import fields

    from hydra.utils import get_class
    from omegaconf import OmegaConf

    from turnsmith.trainer.config.verl_settings import compose

    base = compose({})
    known = OmegaConf.to_container(base, resolve=False)
    missing: set[str] = set()
    for name in {name for keys in both_configs() for name in keys if not name.startswith("+")}:
        place: Any = known
        for part in name.split("."):
            place = place[part] if isinstance(place, dict) and part in place else missing.add(name)
    added = {name[1:] for keys in both_configs() for name in keys if name.startswith("+")}
    # These are plain mappings, in which verl's HFModelConfig and TransferQueue look for the name.
    free = {f"{part}.model.override_config.attn_implementation" for part in ("actor_rollout_ref", "critic")}
    free.add("transfer_queue.backend.SimpleStorage.required_node_resource")
    missing |= free - added
    for name in added - free:
        parent, _, leaf = name.rpartition(".")
        owner = get_class(OmegaConf.select(base, f"{parent}._target_"))
        missing |= set() if leaf in {item.name for item in fields(owner)} else {name}
    same(sorted(missing), [])
    source = inspect.getsource(get_class(base.actor_rollout_ref.model._target_))
    assert 'self.override_config.get("attn_implementation"' in source


@with_cpu
def verl_accepts_the_config_of_every_layout() -> None:
    from turnsmith.config import ConfigStore
    from turnsmith.config_sources import apply_overrides
    from turnsmith.inference.models import resolve
    from turnsmith.trainer.config.to_verl import keys_we_set
    from turnsmith.trainer.config.verl_settings import compose
    from turnsmith.trainer.verl.validate import accept

    everything = ["training.adv_estimator=gae", "training.use_kl_loss=true"]  # a critic and a reference as well
    for layout in LAYOUTS:
        config = apply_overrides(ConfigStore(), [*layout.settings(), *everything])
        parts = accept(compose(keys_we_set(config, model_path=resolve("tiny"))))
        engines = [parts[name].engine for name in ("actor", "ref", "critic")]
        found = {(layout.name, engine.strategy, engine.ulysses_sequence_parallel_size) for engine in engines}
        same(found, {(layout.name, "fsdp2", layout.sequence)})
        same(parts["rollout"].tensor_model_parallel_size, layout.tensor)
        if parts["actor"].use_dynamic_bsz:
            continue
        # What a worker asserts only when it trains: every rank has whole micro-batches of a mini-batch.
        shares = layout.nodes * layout.gpus // layout.sequence
        for name in ("actor", "critic"):
            episodes = parts[name].ppo_mini_batch_size * parts["rollout"].n
            same(episodes % (shares * parts[name].ppo_micro_batch_size_per_gpu), 0)


@with_cpu
def verls_processes_ask_ray_for_the_cpus_that_we_count() -> None:
    import transfer_queue
    from transfer_queue.controller import TransferQueueController
    from transfer_queue.storage.simple_storage import SimpleStorageUnit
    from verl.single_controller.ray.base import ResourcePoolManager
    from verl.workers.rollout.replica import RolloutReplica

    from turnsmith.trainer.config import layout

    same(ResourcePoolManager.max_colocate_count, layout._CPUS_OF_A_RANK)
    assert f"max_colocate_count={layout._CPUS_OF_A_SERVER_GPU}," in inspect.getsource(RolloutReplica.init_standalone)
    actors: list[Any] = [TransferQueueController, SimpleStorageUnit]
    same([actor._default_options["num_cpus"] for actor in actors], [1, 1])
    # The two places where TransferQueue names its namespace (`_InOwnNamespace`).
    source = inspect.getsource(transfer_queue.interface)
    same(source.count('namespace="transfer_queue"'), 2)
    assert 'ray.get_actor("TransferQueueController", namespace="transfer_queue")' in source


# What our agent loop does with an episode by the failure policy's decision


def play(policy: str, replies: list[str], *, broken: bool = False) -> tuple[Any, Any]:
    """Run verl's agent loop for one row; return its output, or the exception, and the trajectory it recorded."""
    from transformers import AutoTokenizer

    from turnsmith.config import ConfigStore, FailuresConfig
    from turnsmith.env.examples.guess_number import GuessNumber
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.chat import Chat
    from turnsmith.inference.engines.scripted_engine import ScriptedEngine
    from turnsmith.inference.models import resolve
    from turnsmith.rollout.failure_policy import FailurePolicy
    from turnsmith.rollout.spec import Limits, RolloutSpec
    from turnsmith.trainer.run_parts import EpisodePlan
    from turnsmith.trainer.verl.agent_loop import EpisodeAgentLoop, EpisodeContext, set_episode_context

    class Broken(GuessNumber):
        def step(self, action: str) -> Any:
            raise OSError("gone")

    chat = Chat(AutoTokenizer.from_pretrained(resolve("tiny")))
    spec = EnvironmentSpec.of(Broken if broken else GuessNumber)
    failures = FailurePolicy.of(FailuresConfig(environment=policy))
    rollout = RolloutSpec(environment=spec, limits=Limits(turns=2), failures=failures)
    context = EpisodeContext(EpisodePlan(ConfigStore(), rollout, run_dir=""), chat)
    set_episode_context(context)
    row = {"uid": "00000017", "session_id": 3, "index": 17, "start_seed": 5, "start_task": ""}
    try:
        output = asyncio.run(EpisodeAgentLoop(ScriptedEngine(replies, chat)).run({}, **row))
    except Exception as error:
        output = error
    (result,) = context.finished
    return output, result.trajectory


@with_cpu
def a_kept_episode_is_handed_over_with_tokens_and_rewards() -> None:
    (output,), trajectory = play("mask", ["8", "9"])
    same((trajectory.decision.value, trajectory.outcome.value), ("kept", "completed"))
    same((trajectory.episode_id, trajectory.group_id, trajectory.seed), ("00000017-3", "17", 5))
    same(output.response_ids, trajectory.tokens.ids[trajectory.tokens.prompt_length :].tolist())
    same(output.token_rewards, trajectory.token_rewards())


@with_cpu
def a_masked_episode_gives_nothing_and_a_dropped_one_raises() -> None:
    output, trajectory = play("mask", ["8"], broken=True)
    same((output, trajectory.decision.value), ([], "masked"))
    output, trajectory = play("drop", ["8"], broken=True)
    same((type(output).__name__, trajectory.decision.value), ("GroupDropped", "dropped"))
    assert "00000017-3" in str(output)


@with_cpu
def episodes_are_played_in_a_worker_only() -> None:
    from turnsmith.errors import TrainingFailure
    from turnsmith.trainer.verl.agent_loop import EpisodeAgentLoop, set_episode_context

    set_episode_context(None)  # type: ignore[arg-type]
    with pytest.raises(TrainingFailure, match="EpisodeWorker"):
        asyncio.run(EpisodeAgentLoop(None).run({}))


@with_cpu
def what_cannot_be_trained_on_is_masked() -> None:
    from turnsmith.trainer.verl.agent_loop import mask_untrainable
    from turnsmith.trajectory import Outcome, Trajectory, TurnRecord

    turn = TurnRecord(0, 1, "stop", 0)
    silent = Trajectory(outcome=Outcome.TIME_LIMIT)
    text = Trajectory(outcome=Outcome.COMPLETED, turns=[turn], exact=False)
    sound = Trajectory(outcome=Outcome.COMPLETED, turns=[turn])
    for trajectory in (silent, text, sound):
        mask_untrainable(trajectory)
    same([trajectory.decision.value for trajectory in (silent, text, sound)], ["masked", "masked", "kept"])
    assert silent.error == "The model took no turn."
    assert "evaluation only" in text.error


@with_cpu
def a_reward_is_on_the_last_token_that_was_sampled_in_its_turn() -> None:
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
    assert "token_rewards" not in stored
    trajectory.score = 2.0
    same(to_verl_outputs(trajectory)[0].as_dict()["rm_scores"].nonzero().tolist(), [[9]])


# The program


def answers(platform: str) -> dict[str, str]:
    """What is wrong by each check of one platform; empty: nothing."""
    if platform:
        # As `environment_variables` in trainer/driver/cluster.py has it for every process of a run.
        os.environ.update(VERL_PLATFORM=platform, TURNSMITH_RUN="1")

    import verl  # noqa: F401  (its plugins must load before anything of ours is imported)

    LOADED_BY_VERL.update(sys.modules)
    found: dict[str, str] = {}
    for name, check in (CPU if platform else UNCHOSEN).items():
        try:
            check()
            found[name] = ""
        except Exception as error:
            found[name] = repr(error)
    return found


if __name__ == "__main__":
    gc.disable()  # nothing here becomes garbage
    # Only a process with one thread splits safely.
    os.environ.update(OMP_NUM_THREADS="1", ARROW_DEFAULT_MEMORY_POOL="system")
    for package in ("tensordict", "transformers.modeling_utils", "ray.util.state", "datasets", "peft"):
        importlib.import_module(package)
    assert not {"verl", "turnsmith.trainer.verl.plugin"} & sys.modules.keys(), "loaded before a platform was chosen"
    with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
        both = pool.map(answers, ["cpu", ""], chunksize=1)
    print(json.dumps({name: answer for half in both for name, answer in half.items()}))
