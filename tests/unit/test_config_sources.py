import re
from pathlib import Path

import pytest

from turnsmith.config import ConfigStore, EnvironmentConfig, ImportName, names_elsewhere
from turnsmith.config_sources import apply_overrides, from_dict, known_keys, load, to_dict
from turnsmith.errors import ConfigError
from turnsmith.records.yaml_text import dump_yaml, parse_yaml


def one(override: str) -> ConfigStore:
    return apply_overrides(ConfigStore(), [override])


def test_a_config_survives_the_way_to_a_file_and_back(tmp_path: Path) -> None:
    config = ConfigStore()
    config.training.learning_rate = 1e-7
    config.training.mini_batch_size = 4
    config.checkpoint.run_name = "no"
    config.environment = EnvironmentConfig(max_steps=3, board={"size": 3}, words=["1e-3", "null", "2024-01-01"])
    config.verl = {"trainer.log_freq": 1, "actor_rollout_ref.actor.betas": [0.9, 0.999]}
    file = tmp_path / "config.yaml"
    file.write_text(dump_yaml(to_dict(config)))
    assert load(file) == config


def test_to_dict_is_a_copy_and_has_every_key() -> None:
    config = ConfigStore()
    config.environment = EnvironmentConfig(board={"size": 3})
    tree = to_dict(config)
    tree["environment"]["board"]["size"] = 4
    assert config.environment.board == {"size": 3}
    assert {f"{section}.{name}" for section, items in tree.items() for name in items} >= set(known_keys())


def test_an_empty_file_and_empty_sections_are_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("")
    (tmp_path / "b.yaml").write_text("training:\nverl:\n")
    assert load(tmp_path / "a.yaml") == load(tmp_path / "b.yaml") == ConfigStore()


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("training.learning_rate=1e-4", lambda c: c.training.learning_rate, 1e-4),
        ("training.gamma=1", lambda c: c.training.gamma, 1.0),
        ("training.batch_size=1e2", lambda c: c.training.batch_size, 100),
        ("training.mini_batch_size=null", lambda c: c.training.mini_batch_size, None),
        ("training.use_kl_loss=true", lambda c: c.training.use_kl_loss, True),
        ("checkpoint.run_name=2024", lambda c: c.checkpoint.run_name, "2024"),
        ("checkpoint.run_name=null", lambda c: c.checkpoint.run_name, None),
        ("model.model_name=no", lambda c: c.model.model_name, "no"),
        ("model.model_name=a=b", lambda c: c.model.model_name, "a=b"),
        ("environment.size=3", lambda c: c.environment.size, 3),
        ("environment.rate=1e-3", lambda c: c.environment.rate, 1e-3),
        ("environment.prompt=Note: be short #1", lambda c: c.environment.prompt, "Note: be short #1"),
        ("environment.items=[1, two]", lambda c: c.environment.items, [1, "two"]),
        ("environment.name='3'", lambda c: c.environment.name, "3"),
        ("environment.name=", lambda c: c.environment.name, ""),
        ("environment.map.size.x=3", lambda c: c.environment.map, {"size": {"x": 3}}),
        ("verl.trainer.x=1", lambda c: c.verl, {"trainer.x": 1}),
        ("verl.trainer={a: {b: 1}, c: []}", lambda c: c.verl, {"trainer.a.b": 1, "trainer.c": []}),
    ],
)
def test_an_override_is_read_as_its_setting_needs_it(override, read, value) -> None:
    found = read(one(override))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("training.learnin_rate=1", "There is no setting training.learnin_rate. Did you mean training.learning_rate?"),
        ("training.learningrate=1", "Did you mean training.learning_rate?"),
        ("batch_size=1", "There is no setting batch_size. Did you mean training.batch_size?"),
        ("model.temperature=1", "Did you mean inference.temperature?"),
        ("trainin.batch_size=1", "Did you mean training.batch_size?"),
        ("training.lr=1", "There is no setting training.lr. Here it is training.learning_rate."),
        ("training.max_steps=3", "Here it is training.steps_per_epoch times training.num_epochs."),
        ("training.beta=0.1", "Here it is training.kl_coef, with training.use_kl_loss=true."),
        ("num_generations=8", "There is no setting num_generations. Here it is training.group_size."),
        ("actor_rollout_ref.rollout.n=8", "Here it is training.group_size."),
        ("trainer.balance_batch=1", "To set one of verl's own, write verl.trainer.balance_batch."),
        ("trainer.batch_size=1", "Did you mean training.batch_size?"),
        ("training.zzzz=1", "Settings of training: adv_estimator, credit, learning_rate"),
        ("zzzz=1", "Sections: model, inference, training"),
        ("training=1", "training is a section"),
        ("training.batch_size", "write section.name=value"),
        ("training.batch_size=8.5", "training.batch_size must be an integer, not 8.5"),
        ("training.batch_size=many", "training.batch_size must be an integer, not 'many' (a string)."),
        ("training.batch_size=true", "must be an integer"),
        ("training.learning_rate=.nan", "must be a finite number"),
        ("training.use_kl_loss=1", "must be true or false"),
        ("training.mini_batch_size=x", "must be an integer or null"),
        ("environment.max_steps=x", "environment.max_steps must be an integer"),
        ("environment.get=1", "is reserved"),
        ("environment.a-b=1", "is reserved"),
    ],
)
def test_a_wrong_override_is_an_error_in_words(override: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        one(override)
    assert sentence in str(caught.value)


def test_a_nested_setting_cannot_go_inside_a_single_value() -> None:
    with pytest.raises(ConfigError, match="already holds a single value"):
        apply_overrides(ConfigStore(), ["environment.map=3", "environment.map.size=3"])


def test_the_last_override_wins() -> None:
    assert apply_overrides(ConfigStore(), ["ray.num_nodes=2", "ray.num_nodes=3"]).ray.num_nodes == 3


def test_verl_may_be_nested_or_dotted_in_a_file() -> None:
    nested = from_dict({"verl": {"trainer": {"x": 1}}})
    assert nested == from_dict({"verl": {"trainer.x": 1}})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("training:\n  batch_size: 1\n  batch_size: 2\n", "duplicate key 'batch_size' (line 3)"),
        ("training: [1", "is not valid YAML"),
        ("- 1\n", "must hold sections such as `training:`, not a list"),
        ("training: 3\n", "training is a section and needs settings in it, not an integer"),
        ("checkpoint:\n  run_name: 2024\n", "must be a string or null, not 2024 (an integer). Put it in quotes."),
    ],
)
def test_a_wrong_file_is_an_error_that_names_it(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "c.yaml")
    assert sentence in str(caught.value)
    assert "c.yaml" in str(caught.value)


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"There is no config file nowhere\.yaml"):
        load("nowhere.yaml")


def test_the_names_of_other_tools_lead_to_settings_that_exist() -> None:
    own = {key.rpartition(".")[2] for key in known_keys()}
    for name, ours in names_elsewhere().items():
        settings = re.findall(r"[a-z]+\.\w+", ours)
        assert settings, name
        assert set(settings) <= set(known_keys())
        assert name not in own or name == "max_steps"  # a setting of the environment; in training it is the steps


def test_a_misspelt_attribute_cannot_be_set() -> None:
    config = ConfigStore()
    with pytest.raises(
        ConfigError, match=r"TrainingConfig has no setting num_generations\. Here it is training\.group"
    ):
        config.training.num_generations = 8  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"ConfigStore has no setting trainng\. Did you mean training\?"):
        config.trainng = 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"TrainingConfig has no setting learnin_rate\. Did you mean learning_rate\?"):
        config.training.learnin_rate = 3  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"ModelConfig has no setting zzz\. It has model_name, local_path"):
        config.model.zzz = 3  # type: ignore[attr-defined]
    config.environment.anything = 3
    assert config.environment.anything == 3


def test_a_wrong_type_is_found_when_the_config_is_used() -> None:
    config = ConfigStore()
    config.training.batch_size = "8"  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="must be an integer"):
        to_dict(config)


def test_a_setting_with_fixed_choices_takes_no_other() -> None:
    with pytest.raises(ConfigError, match=r"model\.dtype must be one of auto, .* not 'float23'\. Did you mean float32"):
        apply_overrides(ConfigStore(), ["model.dtype=float23"])
    with pytest.raises(ConfigError, match=r"must be one of episode, turn, anchored, not 'my:credit'\."):
        apply_overrides(ConfigStore(), ["training.credit=my:credit"])
    with pytest.raises(ConfigError, match=r"must be one of .*, or module:name of your own, not 'wandbb'"):
        apply_overrides(ConfigStore(), ["logging.trackers=[wandbb]"])


def test_what_a_user_registers_is_named_by_module_and_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    config = apply_overrides(
        ConfigStore(), ["training.adv_estimator=my_module:mine", "logging.warnings=[sub/checks.py:slow]"]
    )
    assert config.training.adv_estimator == ImportName("my_module:mine")
    assert config.logging.warnings == [ImportName(f"{tmp_path}/sub/checks.py:slow")], "it holds in other folders, too"
    assert from_dict(to_dict(config)) == config


def test_yaml_reads_numbers_and_words_as_people_mean_them() -> None:
    text = "{a: 1e-4, b: 1_000, c: 0x10, d: 007, e: yes, f: True, g: ~, h: .inf, i: 1:30, j: -.5, k: 1.}"
    assert parse_yaml(text) == {
        "a": 1e-4,
        "b": 1000,
        "c": 16,
        "d": "007",
        "e": "yes",
        "f": True,
        "g": None,
        "h": float("inf"),
        "i": "1:30",
        "j": -0.5,
        "k": 1.0,
    }


@pytest.mark.parametrize(
    "text", ["1e-4", "no", "null", "", "2024-01-01", "007", "1:30", "true", " x", "a: b", "é", "0x1", "1e5"]
)
def test_yaml_gives_a_text_back_as_a_text(text: str) -> None:
    assert parse_yaml(dump_yaml({"key": text})) == {"key": text}


def test_settings_of_an_earlier_version_are_read_and_what_changes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    config = load(Path(__file__).parent / "earlier_settings.yaml")  # written by commit 931d45e
    kept = (
        config.model.model_name,
        config.training.learning_rate,
        config.environment.board_size,
        config.evaluation.every,
    )
    assert kept == ("tiny", 1e-2, 3, 5)
    assert (config.training.warmup_steps, config.failures.environment) == (0.25, "mask")
    assert (
        "training.min_lr_ratio=0.1, a setting of an earlier version. It was removed; every run now has what was its "
        "default, 0.0." in caplog.text
    )
    assert (
        "failures.timeout=mask, a setting of an earlier version. It is part of failures.environment now." in caplog.text
    )
    assert len(caplog.records) == 3, "nothing is said of what had its default"


def test_who_sets_a_setting_of_an_earlier_version_is_told_what_replaced_it() -> None:
    with pytest.raises(ConfigError, match=r"It is part of training\.warmup_steps now"):
        apply_overrides(ConfigStore(), ["training.warmup_ratio=0.1"])
    removed = "It was removed; every run now has what was its default, "
    for override, default in (
        ("environment.threads=8", 0),
        ("training.stragglers=drop", "wait"),
        ("training.plan=forecast.json", "null"),
    ):
        with pytest.raises(ConfigError, match=f"There is no setting [a-z.]*. {removed}{default}."):
            apply_overrides(ConfigStore(), [override])


def test_of_the_two_limits_of_a_turn_the_one_that_was_used_is_kept(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("inference: {max_tokens: 128, max_turn_tokens: 64}")
    assert load(tmp_path / "config.yaml").inference.max_tokens == 64
    (tmp_path / "config.yaml").write_text("inference: {max_tokens: 128, max_turn_tokens: null}")
    assert load(tmp_path / "config.yaml").inference.max_tokens == 128
