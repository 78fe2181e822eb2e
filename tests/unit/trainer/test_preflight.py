"""What a layout asks of Ray fits what Ray is given, and what does not fit is a sentence before anything waits."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.trainer.gpu_layouts import LAYOUTS, Layout

from turnsmith.config import ConfigStore
from turnsmith.config_sources import apply_overrides
from turnsmith.env.examples.guess_number import GuessNumber
from turnsmith.errors import ConfigError, TrainingFailure
from turnsmith.trainer import RayPPOTrainer, ray_shims
from turnsmith.trainer.config.layout import episode_workers
from turnsmith.trainer.config.to_verl import keys_we_set
from turnsmith.trainer.driver import cluster, local_ray, preflight
from turnsmith.trainer.driver.preflight import NodeResources, cluster_shortage, demand_table


def settings(*overrides: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), list(overrides))


def cpu(ranks: int) -> ConfigStore:
    return settings("model.device=cpu", f"ray.gpus_per_node={ranks}")


def asked_cpus(config: ConfigStore) -> int:
    """CPUs that verl's processes ask of Ray; who asks for them is checked in `tests/unit/trainer/verl_behaviour.py`."""
    keys = keys_we_set(config)
    nodes = config.ray.num_nodes + config.ray.rollout_nodes
    bundles = 3 * keys["trainer.nnodes"] * keys["trainer.n_gpus_per_node"]
    if config.training.schedule == "separate_async":
        rollout = "actor_rollout_ref.rollout"
        bundles += 2 * keys[f"{rollout}.nnodes"] * keys[f"{rollout}.n_gpus_per_node"]
    units = keys["transfer_queue.backend.SimpleStorage.num_data_storage_units"]
    return bundles + units + 1 + nodes  # its controller; and a rollout server, while it is placed on a node


SPLIT = ("training.schedule=separate_async", "ray.gpus_per_node=4", "ray.rollout_gpus_per_node=4")
EIGHT_CORES_ONE_GPU = settings("model.device=cuda")  # g5.2xlarge, g6.2xlarge, g2-standard-8


@pytest.mark.parametrize("cores", [2, 8, 192])
@pytest.mark.parametrize(
    "config",
    [
        EIGHT_CORES_ONE_GPU,
        *map(cpu, (1, 2, 3, 4)),
        settings("model.device=cpu", *SPLIT),
        *(settings(*layout.settings(), "ray.address=null") for layout in LAYOUTS),
    ],
)
def test_a_ray_of_our_own_has_as_many_cpus_as_are_asked_of_it(
    config: ConfigStore, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "cores", lambda: cores)
    given = cluster._init_arguments(config, config.model.device)
    assert cores <= given["num_cpus"] >= asked_cpus(config)
    if config.model.device == "cpu":
        assert given["num_gpus"] == config.ray.gpus_per_node + (config.ray.rollout_gpus_per_node or 0)


def test_a_machine_with_eight_cores_and_a_gpu_is_enough_as_it_is() -> None:
    assert asked_cpus(EIGHT_CORES_ONE_GPU) <= 8


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_the_cluster_that_a_layout_is_for_has_what_it_asks_for(layout: Layout) -> None:
    config = settings(*layout.settings())
    nodes = config.ray.num_nodes + config.ray.rollout_nodes
    gpus = layout.gpus + layout.rollout_gpus
    machines = [NodeResources(f"10.0.0.{n}", gpus, 4 * gpus + 4) for n in range(nodes)]
    assert cluster_shortage(config, machines) == ""
    assert cluster_shortage(config, [NodeResources("head", 0, 0), *machines]) == ""  # no unit is put there
    assert f"asks for {layout.nodes} node" in cluster_shortage(config, machines[1:])
    fewer = [NodeResources(node.name, node.gpus, 3 * layout.gpus) for node in machines]
    assert re.search("CPUs free on each.*, but 0 of", cluster_shortage(config, fewer))


def test_a_machine_can_be_split_between_training_and_generation() -> None:
    config = settings("model.device=cuda", *SPLIT)
    assert cluster_shortage(config, [NodeResources("one", 8, 64)]) == ""
    assert "1 node with 8 GPUs and 23 CPUs" in cluster_shortage(config, [NodeResources("one", 7, 64)])


def test_small_nodes_generate_and_large_ones_train() -> None:
    apart = ("training.schedule=separate_async", "ray.gpus_per_node=8", "ray.rollout_nodes=2")
    config = settings("model.device=cuda", *apart, "ray.rollout_gpus_per_node=4")
    large, small = NodeResources("large", 8, 64), NodeResources("small", 4, 32)
    assert cluster_shortage(config, [small, large, small]) == ""
    told = cluster_shortage(config, [small, large])
    assert "1 node with 8 GPUs and 27 CPUs free on each and 2 that generate with 4 GPUs and 11 CPUs" in told
    assert [" ".join(line.split()) for line in demand_table(config, [large]).splitlines()[1:3]] == [
        "1 node with ranks, each 8 25",
        "2 nodes with rollout servers, each 4 9",
    ]


def test_a_node_that_is_large_enough_hosts_the_ranks_of_two() -> None:
    config = settings("model.device=cuda", "ray.num_nodes=2", "ray.gpus_per_node=4")
    assert cluster_shortage(config, [NodeResources("one", 8, 64)]) == ""


def test_a_head_without_cpus_for_its_share_of_the_queue_is_named() -> None:
    config = settings("model.device=cuda", "ray.num_nodes=1", "ray.gpus_per_node=8")
    large = NodeResources("large", 8, 64)
    assert cluster_shortage(config, [NodeResources("head", 0, 1), large]) == ""
    config = settings("model.device=cuda", "ray.num_nodes=4", "ray.gpus_per_node=8", "training.batch_size=128")
    told = cluster_shortage(config, [NodeResources("head", 0, 1), *[large] * 4])
    assert "starts 2 storage processes of one CPU on each node, but head has 1 CPU free" in told


def test_the_table_has_one_line_for_nodes_that_are_alike() -> None:
    config = settings("model.device=cuda", "ray.num_nodes=64", "ray.gpus_per_node=8", "training.batch_size=512")
    nodes = [NodeResources(f"10.0.0.{n}", 8, 64) for n in range(64)]
    assert demand_table(config, [*nodes, NodeResources("head", 0, 16)]).splitlines() == [
        "  asked of Ray                                   GPUs  CPUs",
        "  64 nodes with ranks and rollout servers, each     8    25",
        "  128 storage processes of TransferQueue, each      0     1",
        "  its controller                                    0     1",
        "  free                                           GPUs  CPUs",
        "  64 nodes: 10.0.0.0, 10.0.0.1, 10.0.0.2, ...       8    64",
        "  1 node: head                                      0    16",
    ]


@pytest.mark.parametrize(
    ("gpus", "overrides", "told"),
    [
        (0, ["model.device=cuda"], "model.device=cuda trains on GPUs, but Ray finds none on this machine"),
        (4, ["model.device=cuda", "ray.gpus_per_node=8"], "set ray.gpus_per_node=4."),
        (4, ["model.device=cuda", *SPLIT], "gpus_per_node=4 and 4 that generate, but Ray finds 4 GPUs on this machine"),
        (8, ["model.device=cuda", "ray.gpus_per_node=8", "ray.num_nodes=2"], "set ray.address to the cluster's"),
    ],
)
def test_gpus_that_are_not_there_are_told_before_anything_starts(
    gpus: int, overrides: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_count_gpus", lambda: gpus)
    config = settings("model.model_name=tiny", f"checkpoint.output_dir={tmp_path}/runs", *overrides)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=told):
        RayPPOTrainer(config, GuessNumber).fit()
    assert time.monotonic() - began < 20
    assert list(tmp_path.iterdir()) == []


def test_the_gpus_of_this_machine_are_those_that_ray_would_find(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.accelerators.nvidia_gpu import NvidiaGPUAcceleratorManager

    monkeypatch.setattr(NvidiaGPUAcceleratorManager, "get_current_node_num_accelerators", lambda: 4)
    assert preflight._count_gpus() == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert preflight._count_gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert preflight._count_gpus() == 0


def test_a_cluster_that_never_has_it_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "cluster_nodes", lambda: [NodeResources("10.0.0.1", 4, 64)])
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"asks for 1 node with 8 GPUs and 27 CPUs(.|\n)*1 node: 10.0.0.1  +4    64"):
        preflight.check_cluster(settings("model.device=cuda", "ray.gpus_per_node=8"))
    assert time.monotonic() - began < 20


def test_what_an_earlier_run_frees_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([0, 0, 8])
    monkeypatch.setattr(preflight, "cluster_nodes", lambda: [NodeResources("10.0.0.1", next(looks), 64)])
    preflight.check_cluster(settings("model.device=cuda", "ray.gpus_per_node=8"))
    assert list(looks) == []


@pytest.mark.parametrize(
    ("overrides", "workers"),
    [
        (["model.device=cpu"], 0),
        (["model.device=cpu", "ray.gpus_per_node=4"], 0),
        (["model.device=cpu", "ray.num_nodes=2"], 2),
        (["model.device=cuda"], 2),
        (["model.device=cuda", "ray.gpus_per_node=8", "training.batch_size=128"], 4),
        (["model.device=cuda", "ray.num_nodes=4", "ray.gpus_per_node=8", "training.batch_size=512"], 16),
        (["model.device=cuda", "ray.num_nodes=4", "ray.gpus_per_node=8", "training.batch_size=32"], 4),
        (["model.device=cuda", "ray.num_nodes=4", "ray.gpus_per_node=8", "ray.num_actors=0"], 0),
        (["model.device=cpu", "ray.num_actors=3"], 3),
    ],
)
def test_the_number_of_episode_workers_follows_from_the_layout_unless_it_is_given(
    overrides: list[str], workers: int
) -> None:
    config = settings(*overrides)
    assert episode_workers(config) == workers
    assert keys_we_set(config)["actor_rollout_ref.rollout.agent.num_workers"] == max(1, workers)


def test_the_storage_units_follow_from_the_layout() -> None:
    name = "transfer_queue.backend.SimpleStorage.num_data_storage_units"
    assert keys_we_set(settings("model.device=cpu"))[name] == 1
    assert keys_we_set(settings("model.device=cuda", "ray.num_nodes=64"))[name] == 128


def attempts(failing: int, monkeypatch: pytest.MonkeyPatch, *, load: float = 0.0) -> list[str]:
    """What is told while Ray fails to start a number of times."""
    import ray

    errors = iter(["The current node timed out during startup.\nMore."] * failing)

    def init(**arguments: Any) -> None:
        for error in errors:
            raise RuntimeError(error)

    told: list[str] = []
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(cluster, "cores", lambda: 2)
    cluster._start_ray({"address": "local"}, {}, told.append, is_local=True)
    return told


def test_another_attempt_to_start_ray_is_told_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempts(0, monkeypatch) == []
    assert attempts(2, monkeypatch, load=7.3) == [
        "starting Ray, attempt 2 of 4: the machine is busy (load 7 on 2 cores)",
        "starting Ray, attempt 3 of 4: the machine is busy (load 7 on 2 cores)",
    ]
    assert attempts(1, monkeypatch) == ["starting Ray, attempt 2 of 4: The current node timed out during startup."]
    with pytest.raises(TrainingFailure, match=r"in 4 attempts: The current node timed out during startup\. If other"):
        attempts(4, monkeypatch)


def test_ray_has_every_limit_that_we_raise_and_a_users_own_value_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    import ray

    folder = Path(ray.__file__).parent
    known = (folder / "_raylet.so").read_bytes() + (folder / "_private" / "node.py").read_bytes()
    assert [name for name in local_ray.START_LIMITS if name.encode() not in known] == []
    first, *others = local_ray.START_LIMITS
    monkeypatch.setenv(first, "7")
    with local_ray.on_this_machine_alone({}):
        assert os.environ[first] == "7"
        assert all(os.environ[name] == local_ray.START_LIMITS[name] for name in others)


def test_ray_is_given_an_agent_that_imports_nothing_and_its_own_runtime_agent() -> None:
    from ray._private import services

    command_of = getattr(services, local_ray.COMMAND_OF)
    with local_ray.on_this_machine_alone({}):
        ours, theirs = (
            getattr(services, local_ray.COMMAND_OF)(part, "folder") for part in ("dashboard_agent", "runtime_env_agent")
        )
    assert ours[-1] == ray_shims.AGENT
    assert theirs == command_of("runtime_env_agent", "folder")
    assert getattr(services, local_ray.COMMAND_OF) is command_of
