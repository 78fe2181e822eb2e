"""Environment variables of a run's processes: what the user has set stays."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from turnsmith.config import ConfigStore
from turnsmith.trainer.driver.local_ray import environment_variables


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NCCL_DEBUG", "cuda"),
        ("VLLM_LOGGING_LEVEL", "cuda"),
        ("VLLM_NO_USAGE_STATS", "cuda"),
        ("VLLM_USE_V2_MODEL_RUNNER", "cuda"),
        ("TOKENIZERS_PARALLELISM", "cuda"),
        ("TQ_PERF_LOG_FLUSH_INTERVAL", "cuda"),
        ("MALLOC_ARENA_MAX", "cuda"),
        ("OMP_NUM_THREADS", "cpu"),
        ("TORCHDYNAMO_DISABLE", "cpu"),
    ],
)
def test_what_the_user_has_set_stays(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(name, raising=False)
    assert environment_variables(ConfigStore(), device)[name]
    monkeypatch.setenv(name, "mine")
    assert environment_variables(ConfigStore(), device)[name] == "mine"


def test_what_nccl_and_the_hub_read_reaches_every_node_but_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "HF_HOME", "HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "mine")
    found = environment_variables(ConfigStore(), "cuda")
    assert {name for name, value in found.items() if value == "mine"} == {
        "NCCL_SOCKET_IFNAME",
        "NCCL_IB_HCA",
        "HF_HOME",
        "HF_HUB_OFFLINE",
    }


@pytest.mark.parametrize("name", ["TURNSMITH_RUN", "TRANSFER_QUEUE_ENABLE", "VERL_PLATFORM", "VLLM_TARGET_DEVICE"])
def test_what_a_run_cannot_do_without_is_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "mine")
    assert environment_variables(ConfigStore(), "cpu")[name] in ("1", "cpu")


def test_a_setting_is_not_silenced_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    config = ConfigStore()
    config.inference.cpu_cache_gib = 3
    assert environment_variables(config, "cpu")["VLLM_CPU_KVCACHE_SPACE"] == "3"


def test_transfer_queue_reads_how_long_it_may_keep_the_durations_of_requests() -> None:
    package = importlib.util.find_spec("transfer_queue")
    assert package is not None
    assert package.origin is not None
    source = Path(package.origin).parent / "utils" / "perf_utils.py"
    assert 'os.environ.get("TQ_PERF_LOG_FLUSH_INTERVAL", 300)' in source.read_text()
