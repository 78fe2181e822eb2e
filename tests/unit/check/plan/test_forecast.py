"""The forecast of a step from the seconds of its parts, memory, and the file that a run is compared with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import Tensor
from transformers import AutoModelForCausalLM

from turnsmith.check.environment.checks.settings import count_parameters
from turnsmith.check.plan.calibrate import Calibration, MeasuredWork, Seconds, _micro_batch, calibrate
from turnsmith.check.plan.cpu import cpu_memory, environment_workers
from turnsmith.check.plan.forecast import Overhead, forecast_step, model_phases, row_shape
from turnsmith.check.plan.reference import measured_work
from turnsmith.check.plan.workload import EpisodeSample, EpisodeTurn
from turnsmith.config import ConfigStore
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.errors import ConfigError
from turnsmith.inference.models import resolve
from turnsmith.inference.models.shape import ModelShape
from turnsmith.trainer.advantages import AdvantageInputs, advantage_estimator
from turnsmith.trajectory import Trajectory, TurnRecord

_SECONDS = Seconds(
    token=0.01, sequence=0.001, prefill=0.1, resample=0.0, forward=1.0, backward=3.0, optimizer=0.5, send=0.25
)
_SAMPLE = EpisodeSample("a test", 100, [[EpisodeTurn(10, 0, 0.0)]])


def _config(**training: object) -> ConfigStore:
    config = ConfigStore()
    config.model.device = "cpu"
    for name, value in ({"batch_size": 16, "group_size": 8} | training).items():
        setattr(config.training, name, value)
    return config


def test_the_shape_of_a_model_has_as_many_parameters_as_its_files() -> None:
    assert ModelShape.of_model(resolve("tiny")).parameters == count_parameters(resolve("tiny"))


def test_a_model_without_the_usual_sizes_is_an_error_in_words() -> None:
    with pytest.raises(ConfigError, match="has no 'hidden_size'"):
        ModelShape.of_config({"vocab_size": 3})


def test_a_step_of_one_turn_takes_what_can_be_worked_out_by_hand() -> None:
    overhead = Overhead(generate=(0.2, 0.05), old_log_prob=(0.0, 0.5), rest=(0.1, 0.0))
    found = forecast_step(_config(), _SAMPLE, _SECONDS, overhead)
    # 16 prefills and turns, then 10 tokens of 16 sequences at once; two micro-batches of 8; one update.
    assert found.phases == pytest.approx(
        {
            "generate": 0.2 + 16 * (0.1 + 0.05) + 10 * (0.01 + 16 * 0.001),
            "old_log_prob": 2 * (1.0 + 0.5),
            "update_actor": 2 * 3.0 + 0.5,
            "sync_weights": 0.25,
            "rest": 0.1,
        }
    )
    assert found.seconds == pytest.approx(sum(found.phases.values()))


def test_more_passes_more_updates_and_a_reference_model_take_longer() -> None:
    phases = model_phases(_config(updates_per_batch=2, mini_batch_size=8, use_kl_loss=True), _SECONDS, Overhead())
    assert phases["old_log_prob"] == 2 * 2 * 1.0
    assert phases["update_actor"] == 2 * 2 * 3.0 + 4 * 0.5


def test_asynchronous_schedules_wait_less_for_the_slowest_episode() -> None:
    slow = EpisodeSample("a test", 100, [*[[EpisodeTurn(10, 0, 0.0)]] * 15, [EpisodeTurn(10, 0, 30.0)]])
    seconds = {
        schedule: forecast_step(_config(schedule=schedule, max_staleness=4), slow, _SECONDS, Overhead()).seconds
        for schedule in ("sync", "colocate_async", "separate_async")
    }
    assert seconds["separate_async"] <= seconds["colocate_async"] < seconds["sync"]


def test_episodes_of_a_group_share_a_row_on_a_cpu_only() -> None:
    shape = ModelShape.of_model(resolve("tiny"))
    assert row_shape(_config(), _SAMPLE, shape, shared=True) == (1, 100 + 8 * 10)
    assert row_shape(_config(), _SAMPLE, shape, shared=False) == (8, 110)


def test_memory_grows_with_ranks_workers_and_a_critic() -> None:
    shape = ModelShape.of_model(resolve("tiny"))
    base = {"trainer rank": 4e8, "rollout server": 3e8, "task runner": 4e8, "data queue": 5e8, "other": 9e8}
    base |= {"environment workers": 1e8, "all": 2e9}  # less than the sum: not all have their most at the same time
    measured = Calibration(_SECONDS, _SECONDS, training=16.0 * shape.parameters + 1e8, serving=5e7)
    one = cpu_memory(_config(), shape, base, measured, workers=1)
    assert one["trainer rank"] == pytest.approx(4e8 + 16 * shape.parameters + 1e8)
    assert one["all"] == pytest.approx(2e9 + 16 * shape.parameters + 1e8 + 5e7)
    two = _config(adv_estimator="gae")
    two.ray.gpus_per_node, two.ray.num_actors = 2, 3
    more = cpu_memory(two, shape, base, measured, workers=8)
    # Each rank has half of two models, and its own processes and activations.
    assert more["trainer rank"] == pytest.approx(2 * (4e8 + 1e8) + 2 * 16 * shape.parameters)
    assert more["episode worker"] == 3 * base["task runner"]
    assert more["environment workers"] == 8 * 1e8
    none = cpu_memory(_config(), shape, base, measured, workers=0)
    assert one["all"] - none["all"] == pytest.approx(1e8)  # the reference run has one


def test_the_critic_of_ones_own_estimator_counts_and_an_adapter_needs_no_reference_model() -> None:
    shape = ModelShape.of_model(resolve("tiny"))
    base = dict.fromkeys(
        ("trainer rank", "rollout server", "task runner", "data queue", "other", "environment workers", "all"), 0.0
    )
    measured = Calibration(_SECONDS, _SECONDS, training=16.0 * shape.parameters, serving=0.0)

    def rank(**training: object) -> float:
        config = _config(**training)
        config.model.lora_rank = 4
        return cpu_memory(config, shape, base, measured, 0)["trainer rank"] / shape.parameters

    own = f"{__name__}:with_a_critic"
    assert [rank(), rank(use_kl_loss=True), rank(adv_estimator=own)] == pytest.approx([4, 4, 4 + 16])
    assert model_phases(_config(adv_estimator=own), _SECONDS, Overhead())["rest"] == 2 * 1.0 + 2 * 3.0 + 0.5


@advantage_estimator(needs_critic=True)
def with_a_critic(inputs: AdvantageInputs) -> Tensor:
    """Not called here."""
    raise NotImplementedError


def test_environments_of_ones_own_run_in_workers_of_each_process_that_plays() -> None:
    config = _config()
    config.environment.isolation_workers = 3
    assert environment_workers(config, None) == 3
    assert environment_workers(config, EnvironmentSpec("my_game:MyGame", config.environment)) == 3
    config.ray.num_actors = 2
    assert environment_workers(config, None) == 6
    config.environment.isolation = "thread"
    assert environment_workers(config, None) == 0


def test_logits_are_measured_for_the_micro_batches_that_are_trained() -> None:
    config = _config(mini_batch_size=8, micro_batch_size=5)  # 4 episodes a pass: they divide the mini-batch
    assert measured_work(config, _SAMPLE, resolve("tiny")).logits == 4 * 10


def test_a_sample_of_the_settings_is_within_their_limits() -> None:
    config = ConfigStore()
    config.inference.max_turns, config.inference.max_episode_tokens = 4, 400
    sample = EpisodeSample.of_settings(config)
    assert (sample.turns, sample.prompt) == (4, 2048)
    assert sample.longest == 400
    config.inference.max_turns, config.inference.max_episode_tokens, config.inference.max_tokens = 20, 32_768, 256
    assert 32_768 - 20 < EpisodeSample.of_settings(config).longest <= 32_768
    config.inference.max_turns = 1
    assert EpisodeSample.of_settings(config).longest == 256


def test_of_a_long_run_only_as_many_episodes_as_are_needed_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = iter([Trajectory(turns=[TurnRecord(0, 2, "stop", 0)])] * 300)
    monkeypatch.setattr("turnsmith.check.plan.workload.iter_episodes", lambda path: many, raising=False)
    assert len(EpisodeSample.of_file(tmp_path).episodes) == 256
    assert len(list(many)) == 300 - 256


def test_a_sample_is_read_back_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "check.json"
    file.write_text(json.dumps({"sample": _SAMPLE.as_dict()}))
    assert EpisodeSample.of_file(file).episodes == _SAMPLE.episodes
    file.write_text("{}")
    with pytest.raises(ConfigError, match="neither a run folder nor a file with an episode sample"):
        EpisodeSample.of_file(file)


def test_of_a_micro_batch_that_takes_too_long_a_part_is_measured(tiny_folder: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    work = MeasuredWork("tiny", 1, context=60, sampled=6, sequences=8, rows=8, length=64, logits=8 * 64)
    assert _micro_batch(model, work).part == 1.0
    assert _micro_batch(model, work, most_flops=0.0).part == pytest.approx(8), "one row of 64 tokens"


@pytest.mark.nightly
def test_this_machine_is_measured_with_a_real_model() -> None:
    work = MeasuredWork(resolve("tiny"), 1, context=60, sampled=6, sequences=8, rows=2, length=100, logits=100)
    found = calibrate(work)
    for clock in (found.wall, found.cpu):
        assert all(value >= 0 for value in vars(clock).values())
        assert 0 < clock.forward < clock.backward
    assert found.training > 16 * ModelShape.of_model(work.model).parameters
    assert found.serving > 0
