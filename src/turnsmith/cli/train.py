"""`turnsmith train`: train a model in an environment."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.cli.agent import Played, add_agent_options, add_training_options
from turnsmith.cli.run_folders import add_config_option, add_folder_options, check_output_dir
from turnsmith.text import print_line

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore

_DESCRIPTION = """\
Train a model in your own environment.

ENVIRONMENT is the environment class, a function that returns an environment, or
an agent function: `module:Name`, imported from the current folder, or
`path/to/file.py:Name`; or one by name, such as gymnasium:FrozenLake-v1. An
agent that is a program is given with --agent instead; rows of questions and
answers need only --data."""

_EXAMPLES = """\
examples:
  turnsmith train my_game.py:MyGame --model tiny training.learning_rate=1e-3
  turnsmith train games.chess:Chess --model Qwen/Qwen3-0.6B --config chess.yaml
  turnsmith train my_game.py:MyGame --dry-run
  turnsmith train --agent "python my_agent.py" --data tasks.jsonl --model tiny
  turnsmith train --data gsm8k.jsonl --reward number --model Qwen/Qwen3-0.6B
  turnsmith train games.chess:Chess=3 my_game.py:MyGame=1 --model smollm2

Settings come from the defaults, then --config, then --model, then KEY=VALUE;
later ones win. `environment.KEY=VALUE` reaches your environment as
`config.KEY`; `verl.KEY=VALUE` sets one of verl's own settings. --dry-run makes
the checks that come before Ray (training.check), and prints all settings."""


def add_train_command(commands: Any) -> None:
    """Add `turnsmith train` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "train", help="train a model in your environment", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    model = "a model folder, a run folder (its newest checkpoint), a Hugging Face id, `tiny` or `smollm2`"
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as training.batch_size=16")
    add("--model", metavar="MODEL", help=model)
    add_config_option(parser)
    add_training_options(parser)
    add_folder_options(parser, "ENVIRONMENT-TIME")
    add("--force", action="store_true", help="start although a machine with GPUs lacks what the run needs")
    add("--dry-run", action="store_true", help="check and print all settings and the resulting verl config, and exit")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Train or, with --dry-run, only check and print the settings."""
    played = Played.of(args, lambda words: read_config(args.config, args.model, words))
    config = played.config
    config.checkpoint.run_name = args.name or config.checkpoint.run_name
    config.checkpoint.output_dir = args.output_dir or config.checkpoint.output_dir
    config.ray.force = args.force or config.ray.force
    from turnsmith.trainer import RayPPOTrainer

    if args.dry_run and config.ray.gpus_per_node > 1 and config.model.device == "auto":
        config.model.device = "cuda"  # whatever this machine has: on a CPU, several ranks are asked for by its name
    trainer = RayPPOTrainer(config, played.environment, dataset=played.data, validation=played.validation)
    if args.dry_run:
        if not config.ray.address:  # a folder of the cluster may not be seen from here
            check_output_dir(config)
        if config.training.check:
            trainer.check(lambda line: print_line(line, sys.stderr))
        _print_settings(config, trainer.parts.environment.name)
        return 0
    try:
        trainer.fit()
    finally:
        trainer.cleanup()
    return 0


def read_config(file: str | None, model: str | None, overrides: list[str]) -> ConfigStore:
    """Read the settings of a run: defaults, then the file, then the model, then the overrides."""
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


def _print_settings(config: ConfigStore, environment: str) -> None:
    """Print the settings and the resulting verl config, as two YAML documents; as comments, a summary and what is asked
    of Ray.
    """
    from omegaconf import OmegaConf

    from turnsmith.config_sources import to_dict
    from turnsmith.records.yaml_text import dump_yaml
    from turnsmith.trainer.config.check import run_header, verl_config
    from turnsmith.trainer.config.log_probs import forward_words
    from turnsmith.trainer.driver.gpu_preflight import summary
    from turnsmith.trainer.driver.preflight import dry_run_table

    settings = dump_yaml(to_dict(config))
    verl = OmegaConf.to_yaml(verl_config(config), resolve=True)
    asked = "".join(f"# {line}\n" for line in [*dry_run_table(config).splitlines(), forward_words(config)])
    told = "".join(f"# {line}\n" for line in [run_header(config, environment), *summary(config)])
    text = f"{told}# turnsmith: all settings\n{settings}---\n# verl: the resulting config\n{verl}{asked}"
    print_line(text.removesuffix("\n"), sys.stdout)
