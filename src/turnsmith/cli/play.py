"""`turnsmith play`: a person plays an environment, and sees what a model would see."""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnsmith.cli.person import PersonEngine
    from turnsmith.config import ConfigStore
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.chat import Chat
    from turnsmith.tools.parsing import ActionParser
    from turnsmith.trajectory import Trajectory

_DESCRIPTION = """\
Play an environment yourself, in the place of the model. You see what the model
would see; what you type is its turn, tool calls and all. The episode is kept
in a run folder.

ENVIRONMENT is the class to play: `module:Name`, found from the current folder,
or `path/to/file.py:Name`."""

_EXAMPLES = """\
examples:
  turnsmith play my_game.py:MyGame
  turnsmith play turnsmith.env.examples:SupportDesk --seed 3 --raw
  printf '8\\n12\\n' | turnsmith play turnsmith.env.examples:GuessNumber

A line is a turn. End a line with \\ to go on in the next one; Ctrl-D leaves.
There is no limit on tokens or time unless you set one, as in
inference.max_seconds=60."""

_ROOMY = {"max_tokens": 100_000, "max_prompt_tokens": 1_000_000, "max_episode_tokens": 10_000_000, "max_seconds": 1e6}


def add_play_command(commands: Any) -> None:
    """Add `turnsmith play` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "play",
        help="play your environment yourself",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    add = parser.add_argument
    add("environment", metavar="ENVIRONMENT", help="module:Name or path/to/file.py:Name")
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, as in environment.max_steps=5")
    add("--model", metavar="MODEL", default="tiny", help="whose chat template and tokenizer to use (tiny)")
    add("--seed", metavar="S", type=int, default=0, help="what `reset` gets (0)")
    add("--raw", action="store_true", help="show the exact prompt, control tokens and all")
    add("--name", metavar="NAME", help="of the run's folder (play-ENVIRONMENT-TIME)")
    add("--output-dir", metavar="FOLDER", help="where run folders go (runs)")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Let the person play one episode, and record it."""
    from turnsmith.cli.person import PersonEngine, ShownChat
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.sync.engines import load_tokenizer
    from turnsmith.models import resolve
    from turnsmith.tools.parsing.formats import parser_for

    config = _play_config(args)
    spec = EnvironmentSpec.of(args.environment, config.environment)
    model = resolve(config.model.model_name, config.model.local_path)
    tokenizer, _ = load_tokenizer(model, config.model.trust_remote_code)
    chat = ShownChat(tokenizer)
    person = PersonEngine(chat, raw=args.raw)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # a byte that is no text costs a letter, not the game
    if sys.stdin.isatty():
        with suppress(ImportError):
            import_module("readline")  # gives the input line its arrows and history
    trajectory = _play(person, chat, config, spec, args.seed, parser_for(config.inference.tool_format, tokenizer))
    _show_end(person, trajectory)
    person.show(f"in {_record(config, spec, trajectory)}")
    return 130 if person.left == "with Ctrl-C" else 0


def _play_config(args: argparse.Namespace) -> ConfigStore:
    """The settings: defaults with room for a person, then KEY=VALUE."""
    from turnsmith.cli.train import read_config
    from turnsmith.config_sources import apply_overrides

    config = read_config(None, args.model, [])
    for name, value in _ROOMY.items():
        setattr(config.inference, name, value)
    config.checkpoint.run_name = args.name
    config.checkpoint.output_dir = args.output_dir or config.checkpoint.output_dir
    return apply_overrides(config, args.overrides)


def _play(
    person: PersonEngine, chat: Chat, config: ConfigStore, spec: EnvironmentSpec, seed: int, parser: ActionParser
) -> Trajectory:
    """The one episode loop, on a thread of its own; the person answers from this one."""
    from turnsmith.cli.engine import evaluation_sampling
    from turnsmith.loop_thread import LoopThread
    from turnsmith.rollout.episode import EpisodeStart, run_episode
    from turnsmith.rollout.limits import Limits

    loop = LoopThread("turnsmith-play")
    episode = loop.start(
        run_episode(
            EpisodeStart(f"seed-{seed}-0", f"seed-{seed}", seed),
            environment=spec,
            engine=person,
            chat=chat,
            limits=Limits.of(config.inference),
            sampling=evaluation_sampling(config),
            parser=parser,
        )
    )
    try:
        person.serve(episode)
        return episode.result()
    finally:
        loop.close()


def _show_end(person: PersonEngine, trajectory: Trajectory) -> None:
    """What came after the last turn, which a model would not be shown, and how it went."""
    roles = [message["role"] for message in trajectory.messages]
    after = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else len(roles)
    if person.asked == trajectory.num_turns:  # else these were shown with the question that got no answer
        for message in trajectory.messages[after:]:
            person.show(person.describe(message))
    turns, rewards = trajectory.num_turns, ", ".join(f"{reward:g}" for reward in trajectory.rewards)
    person.show("")
    person.show(f"You left {person.left}." if person.left else f"The episode ended as {trajectory.outcome}.")
    person.show(f"{turns} turn{'' if turns == 1 else 's'}, reward {trajectory.total_reward:g} ({rewards})")
    if trajectory.error and not person.left:
        person.show(trajectory.error)


def _record(config: ConfigStore, spec: EnvironmentSpec, trajectory: Trajectory) -> str:
    """Keep the episode in a run folder; return its path."""
    from turnsmith.cli.run_folders import create_run_folder
    from turnsmith.records.episodes import write_episodes
    from turnsmith.rollout.episode_report import report_of

    folder = create_run_folder(config, "play", spec.name)
    write_episodes(folder, 0, [trajectory], part="play")
    folder.append_metrics({"step": 0, **report_of([trajectory]).metrics()})
    folder.append_event("played", environment=spec.name, seed=trajectory.seed, outcome=trajectory.outcome)
    return str(folder.path)
