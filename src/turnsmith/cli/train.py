"""`turnsmith train`: train a model in an environment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore

_DESCRIPTION = """\
Train a model in an environment of your own.

ENVIRONMENT is the class to train in: `module:Name`, found from the current
folder, or `path/to/file.py:Name`."""

_EXAMPLES = """\
examples:
  turnsmith train my_game.py:MyGame --model tiny training.learning_rate=1e-3
  turnsmith train games.chess:Chess --model Qwen/Qwen3-0.6B --config chess.yaml
  turnsmith train my_game.py:MyGame --dry-run

Settings come from the defaults, then --config, then --model, then KEY=VALUE;
the later one wins. `environment.KEY=VALUE` reaches your environment as
`config.KEY`; `verl.KEY=VALUE` sets a setting of verl itself. --dry-run prints
every setting there is."""


def add_train_command(commands: Any) -> None:
    """Add `turnsmith train` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train",
        help="train a model in your environment",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("environment", metavar="ENVIRONMENT", help="module:Name or path/to/file.py:Name")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, as in training.batch_size=16")
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a model folder, a run folder (its newest checkpoint), a Hugging Face id, `tiny` or `smollm2`",
    )
    parser.add_argument("--config", metavar="FILE", help="a YAML file with settings")
    parser.add_argument(
        "--dry-run", action="store_true", help="print all settings and the verl config they become; start nothing"
    )
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Train, or with --dry-run say what would be trained."""
    config = read_config(args.config, args.model, args.overrides)
    if args.dry_run:
        from turnsmith.env.spec import EnvironmentSpec

        EnvironmentSpec.of(args.environment, config.environment)  # A dry run says so, too, if it cannot be built.
        print_plan(config)
        return 0
    from turnsmith.trainer import RayPPOTrainer

    trainer = RayPPOTrainer(config, args.environment)
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return 0


def read_config(file: str | None, model: str | None, overrides: list[str]) -> ConfigStore:
    """The settings of a run: defaults, then the file, then the model, then the overrides."""
    from turnsmith import config_sources
    from turnsmith.config import ConfigStore

    config = config_sources.load(file) if file else ConfigStore()
    if model is not None:
        folder = Path(model).expanduser()
        if folder.is_dir():
            from turnsmith.cli.run_folders import model_folder

            config.model.local_path = str(model_folder(folder.resolve()))
        else:
            config.model.model_name, config.model.local_path = model, None
    return config_sources.apply_overrides(config, overrides)


def print_plan(config: ConfigStore) -> None:
    """Print the settings and the config that verl gets, as two YAML documents."""
    from turnsmith.config_sources import to_dict
    from turnsmith.records.yaml_text import dump_yaml

    settings = to_dict(config)
    from omegaconf import OmegaConf

    from turnsmith.trainer.config.to_verl import verl_config

    engine = OmegaConf.to_yaml(verl_config(config), resolve=True)
    print(f"# turnsmith: all settings\n{dump_yaml(settings)}---\n# verl: the config it becomes\n{engine}", end="")
