"""`turnsmith play`: play an environment by hand, and see what a model would see."""

from __future__ import annotations

import argparse
import io
import sys
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from turnsmith.cli.agent import Played, add_agent_options
from turnsmith.cli.run_folders import add_config_option, add_folder_options
from turnsmith.errors import InternalError
from turnsmith.records.run_state import EventKind
from turnsmith.trajectory import Outcome

if TYPE_CHECKING:
    from turnsmith.cli.human_engine import HumanEngine, RecordingChat
    from turnsmith.config import ConfigStore
    from turnsmith.env.spec import EnvironmentSpec
    from turnsmith.inference.chat import Chat
    from turnsmith.inference.chat.byte_chat import ByteChat
    from turnsmith.rollout.attempt import EpisodeStart
    from turnsmith.tools.parsing import ActionParser
    from turnsmith.trajectory import Trajectory

_DESCRIPTION = """\
Play an environment yourself, in place of the model. You see what the model
would see, and what you type is its turn, tool calls included. The episode is
saved in a run folder. Exits with 1 if the environment failed.

ENVIRONMENT is given as for `turnsmith train`, and so are --agent and --data, of
which one row is played."""

_EXAMPLES = """\
examples:
  turnsmith play my_game.py:MyGame
  turnsmith play turnsmith.env.examples:SupportDesk --seed 3 --raw
  turnsmith play my_game.py:MyGame --data tasks.jsonl --row 12
  printf '8\\n12\\n' | turnsmith play turnsmith.env.examples:GuessNumber

Each line is one turn. End a line with \\ to continue on the next; Ctrl-D quits.
Tokens and time are unlimited, whatever --config says, unless you set a limit,
such as inference.max_episode_tokens=200."""

_LIMITS = {"max_tokens": 100_000, "max_prompt_tokens": 1_000_000, "max_episode_tokens": 10_000_000, "max_seconds": 1e6}


def add_play_command(commands: Any) -> None:
    """Add `turnsmith play` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "play", help="play your environment yourself", description=_DESCRIPTION, epilog=_EXAMPLES
    )
    add = parser.add_argument
    add_agent_options(parser)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as environment.max_steps=5")
    model = "the model whose prompt to see, token for token (default: that of --config, or else none)"
    add("--model", metavar="MODEL", help=model)
    add("--row", metavar="N", type=int, default=0, help="row of --data to play, counted from 0 (default: 0)")
    add("--seed", metavar="S", type=int, default=0, help="seed passed to `reset` (default: 0)")
    add("--raw", action="store_true", help="show the exact prompt, control tokens included")
    add_folder_options(parser, "play-ENVIRONMENT-TIME")
    add_config_option(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    """Let a person play one episode, and record it. Exits with 1 if the environment failed, with 130 after Ctrl-C."""
    from turnsmith.cli.human_engine import HumanEngine, RecordingChat
    from turnsmith.tools.parsing.formats import parser_for

    played = Played.of(args, lambda words: _play_config(args, words))
    config, start, spec = played.config, _start(args, played.tasks()), played.spec()
    own, tokenizer = _chat(config)
    chat = RecordingChat(own)
    engine = HumanEngine(chat, raw=args.raw)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # an invalid byte becomes U+FFFD and does not end the episode
    if sys.stdin.isatty():
        with suppress(ImportError):
            import_module("readline")  # arrow keys and history on the input line
    parser = parser_for(config.inference.tool_format, tokenizer)
    trajectory = _run_episode(engine, chat, config, spec, start, parser)
    _show_end(engine, trajectory)
    is_bug = trajectory.outcome is Outcome.INTERNAL_ERROR
    failed = not engine.exit_reason and trajectory.outcome is not None and not trajectory.outcome.is_behaviour
    played = EventKind.FAILED if failed else EventKind.FINISHED
    end = EventKind.STOPPED if engine.exit_reason else played
    engine.show(f"Saved in {_record(config, spec, trajectory, end)}")
    if is_bug:
        raise InternalError.read(trajectory.error)
    return 130 if engine.exit_reason == "Ctrl-C" else int(failed)


def _start(args: argparse.Namespace, tasks: list[dict[str, Any]] | None) -> EpisodeStart:
    """Where the episode begins: with the seed and, of `--data`, one row."""
    from turnsmith.errors import ConfigError
    from turnsmith.rollout.episode import EpisodeStart

    if args.row and tasks is None:
        args.usage_error("--row is for --data FILE")
    if tasks is not None and not 0 <= args.row < len(tasks):
        raise ConfigError(f"There is no row {args.row}: {args.data} has the rows 0 to {len(tasks) - 1}.")
    task = None if tasks is None else tasks[args.row]
    return EpisodeStart(f"seed-{args.seed}-0", f"seed-{args.seed}", args.seed, task)


def _chat(config: ConfigStore) -> tuple[Chat | ByteChat, Any]:
    """The chat to play in, and its tokenizer: the model's, or plain bytes, which need no extra and load at once."""
    if not (config.model.model_name or config.model.local_path):
        from turnsmith.inference.chat.byte_chat import ByteChat

        return ByteChat(), None
    from turnsmith.inference.chat import Chat, set_template, thinking_settings
    from turnsmith.inference.models import resolve
    from turnsmith.inference.sync.engines import load_tokenizer

    folder = resolve(config.model.model_name, config.model.local_path)
    tokenizer, _ = load_tokenizer(folder, config.model.trust_remote_code)
    set_template(tokenizer, config.model.chat_template)
    return Chat(tokenizer, template_settings=thinking_settings(tokenizer, config.inference.thinking)), tokenizer


def _play_config(args: argparse.Namespace, overrides: list[str]) -> ConfigStore:
    """Read the settings: defaults, then the file, then limits that no person reaches, then KEY=VALUE."""
    from turnsmith.cli.train import read_config
    from turnsmith.config_sources import apply_overrides

    config = read_config(args.config, args.model, [])
    if not (args.model or args.config):
        config.model.model_name = ""
    for name, value in _LIMITS.items():
        setattr(config.inference, name, value)
    config.checkpoint.run_name = args.name
    config.checkpoint.output_dir = args.output_dir or config.checkpoint.output_dir
    return apply_overrides(config, overrides)


def _run_episode(
    engine: HumanEngine,
    chat: RecordingChat,
    config: ConfigStore,
    spec: EnvironmentSpec,
    start: EpisodeStart,
    parser: ActionParser,
) -> Trajectory:
    """Run the episode on an event loop in another thread, while this thread reads the person's turns."""
    from turnsmith.cli.engine import sampling_from_config
    from turnsmith.concurrency.loop_thread import LoopThread
    from turnsmith.rollout.episode import run_episode
    from turnsmith.rollout.players import Players
    from turnsmith.rollout.spec import Limits

    loop = LoopThread("turnsmith-play")
    episode = loop.start(
        run_episode(
            start,
            environment=spec,
            engine=engine,
            chat=cast("Chat", chat),
            limits=Limits.of(config.inference),
            sampling=sampling_from_config(config),
            parser=parser,
            players=Players.of(config.players).check(),
        )
    )
    try:
        engine.answer_until_done(episode)
        return episode.result()
    finally:
        loop.close()


def _show_end(engine: HumanEngine, trajectory: Trajectory) -> None:
    """Show the messages after the last turn, which a model would not see, and the outcome."""
    roles = [message["role"] for message in trajectory.messages]
    after = len(roles) - roles[::-1].index("assistant") if "assistant" in roles else len(roles)
    if engine.prompts_shown == trajectory.num_turns:  # otherwise the last prompt, which got no answer, has shown them
        for message in trajectory.messages[after:]:
            engine.show(engine.describe(message), is_styled=True)
    turns, rewards = trajectory.num_turns, ", ".join(f"{reward:g}" for reward in trajectory.rewards)
    engine.show("")
    engine.show(f"You quit ({engine.exit_reason})." if engine.exit_reason else f"Outcome: {trajectory.outcome}.")
    engine.show(f"{turns} turn{'' if turns == 1 else 's'}, reward {trajectory.total_reward:g} ({rewards})")
    if trajectory.error and not engine.exit_reason and trajectory.outcome is not Outcome.INTERNAL_ERROR:
        engine.show(trajectory.error)


def _record(config: ConfigStore, spec: EnvironmentSpec, trajectory: Trajectory, end: EventKind) -> str:
    """Save the episode in a run folder, with how the run ended, and return the folder's path."""
    from turnsmith.cli.run_folders import create_run_folder
    from turnsmith.records.episodes import write_episodes
    from turnsmith.rollout.episode_report import report_of

    run = create_run_folder(config, "play", spec.name)
    write_episodes(run, 0, [trajectory], part="play")
    run.append_metrics({"step": 0, **report_of([trajectory]).metrics()})
    run.append_event(EventKind.PLAYED, environment=spec.name, seed=trajectory.seed, outcome=trajectory.outcome)
    run.append_event(end, **({"content": trajectory.error} if end == EventKind.FAILED else {}))
    return str(run.path)
