"""`turnsmith serve`: put a model behind OpenAI's and Anthropic's APIs; or serve an environment."""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import os
import secrets
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnsmith.cli.export import STEP_HELP, checkpoint_step
from turnsmith.cli.run_folders import add_config_option, add_folder_options
from turnsmith.cli.serve_environment import ENVIRONMENT_PORT, add_environment_options, serve_environment
from turnsmith.errors import ConfigError, TurnsmithError
from turnsmith.records.run_state import EventKind
from turnsmith.text import hide_progress_bars, print_line

if TYPE_CHECKING:
    from turnsmith.config import ConfigStore
    from turnsmith.inference.sync.base import BaseInferenceEngine
    from turnsmith.records.run_folder import RunFolder
    from turnsmith.rollout.conversations import Conversations
    from turnsmith.trajectory import Trajectory

_KEY_VARIABLE = "TURNSMITH_API_KEY"
_PORT = 8000
_LEAST_KEY = 16
_WRITE_SECONDS = 30.0
"""Conversations that have ended are written so often."""

_DESCRIPTION = f"""\
Serve a model to everything that speaks OpenAI's chat completions or Responses,
or Anthropic's messages, with streaming and tools, in the way in which it was
trained: the tokens of a conversation are never made again from its text.

Requests need the API key: --key, or the variable {_KEY_VARIABLE}, or else a
new one, which is printed. On any address but loopback it must be given. The
connection is not encrypted: where others can listen, use a proxy or a tunnel.
Ctrl-C and SIGTERM end it.

With --environment, serve an environment to training and evaluation on other
machines, by OpenEnv's protocol, in worker processes of this one. The other
machines play openenv://HOST:PORT, with environment.token_file set to a copy of
the token file, which is required on any address but loopback."""

_EXAMPLES = """\
examples:
  turnsmith serve runs/MyGame-20260101-120000
  turnsmith serve latest --step best --record
  turnsmith serve smollm2 --port 9000 inference.max_episode_tokens=8000
  turnsmith serve --environment my_game.py:MyGame --host 0.0.0.0 \\
    --token-file env.token

Settings come from the defaults or, if MODEL is a run of your own, from its
config.yaml, then from --config, then from KEY=VALUE; later ones win."""


def add_serve_command(commands: Any) -> None:
    """Add `turnsmith serve` to the subparsers."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "serve",
        help="serve a model over OpenAI's and Anthropic's APIs, or an environment",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    model = "a run folder, the name of a run in `runs`, `latest`, a model folder, a Hugging Face id, `tiny`, `smollm2`"
    add = parser.add_argument
    add("model", metavar="MODEL", nargs="?", help=model)
    add("overrides", metavar="KEY=VALUE", nargs="*", help="a setting, such as inference.temperature=0.7")
    add("--step", metavar="N", type=checkpoint_step, default="last", help=STEP_HELP)
    add("--host", metavar="HOST", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    port = "port to listen on; 0 picks a free one (default: 8000, of an environment 9000)"
    add("--port", metavar="PORT", type=int, help=port)
    add("--key", metavar="KEY", default="", help=f"API key; others can see it in `ps`, unlike ${_KEY_VARIABLE}")
    add("--record", action="store_true", help="save all conversations as episodes in a run folder")
    add_folder_options(parser, "serve-MODEL-TIME", "with --record: ")
    idle = "a conversation, or a client of an environment, that was silent for so long has ended (default: 1800)"
    add("--idle-seconds", metavar="S", type=float, default=1800.0, help=idle)
    add("--backend", metavar="NAME", help="transformers or vllm (default: auto)")
    add_config_option(parser)
    add_environment_options(parser)
    parser.set_defaults(run=_run, usage_error=parser.error)


def _run(args: argparse.Namespace) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    has_model = args.model is not None and (args.served is None or "=" not in args.model)  # else it is a setting
    if has_model == (args.served is not None):
        args.usage_error("name a model or, with --environment, an environment")
    if not args.idle_seconds > 0:
        raise ConfigError(f"--idle-seconds is {args.idle_seconds:g}; it must be more than 0.")
    if args.served is not None:
        with _listener(args.host, ENVIRONMENT_PORT if args.port is None else args.port) as listener:
            return serve_environment(args, listener)
    model = str(args.model)
    folder = _find_folder(model)
    config, name = serving_config(args, folder), folder.name if folder else Path(model).name
    with _listener(args.host, _PORT if args.port is None else args.port) as listener:
        key, is_new = _api_key(args.key or os.environ.get(_KEY_VARIABLE, ""), listener)
        from turnsmith.cli.engine import open_engine
        from turnsmith.gateway.strangers import allow_more_files

        hide_progress_bars()
        allow_more_files()
        with open_engine(config) as engine:
            stop = threading.Event()
            for kind in (signal.SIGINT, signal.SIGTERM):
                signal.signal(kind, lambda number, frame: stop.set())
            recording = _Recording(config, name) if args.record else None
            server = _Server(engine, config, name, key, args.idle_seconds, recording)
            engine.run(server.start(listener))
            _say_hello(name, listener, key if is_new else "")
            if recording:
                print_line(f"Recording in {recording.run.path}", sys.stdout)
            stop.wait()
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a second Ctrl-C does not wait for the end
            engine.run(server.stop())
    print_line("Stopped.", sys.stdout)
    return 0


def _find_folder(model: str) -> Path | None:
    """The folder of the run or model; None: it is a model by name."""
    from turnsmith.cli.run_folders import OUTPUT_DIR, find_run
    from turnsmith.records.run_folder import RunFolder

    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if model == "latest" or RunFolder.is_at(Path(OUTPUT_DIR) / model):
        return find_run(model, containing="resume.json").resolve()
    return None


def serving_config(args: argparse.Namespace, folder: Path | None) -> ConfigStore:
    """Read the settings: those of the run if it is the user's own, else the defaults; then the file, then KEY=VALUE."""
    from turnsmith.cli.run_folders import model_folder
    from turnsmith.cli.train import read_config
    from turnsmith.config import CheckpointConfig
    from turnsmith.config_sources import apply_overrides
    from turnsmith.records.checkpoints import choose_checkpoint
    from turnsmith.records.run_folder import RunFolder

    file, run = args.config, folder if folder and RunFolder.is_at(folder) else None
    if args.step != "last" and not run:
        raise ConfigError(f"--step chooses a checkpoint of a run, and {args.model} is none: leave it out.")
    if run and file is None and (run / "config.yaml").is_file():
        # It can name code to import, so it is only believed where the checkpoint shows that the folder is our own.
        if choose_checkpoint(run / "checkpoints", args.step).signed:
            file = str(run / "config.yaml")
        else:
            _warn(f"{run} is not a run of yours, so its settings are not used: pass --config if you trust them.")
    config = read_config(file, args.model if folder is None else str(model_folder(folder, args.step)), [])
    config.inference.backend = args.backend or config.inference.backend
    own = config.checkpoint if args.config else CheckpointConfig()  # not the folder and name of the run that is served
    config.checkpoint.run_name = args.name or own.run_name
    config.checkpoint.output_dir = args.output_dir or own.output_dir
    return apply_overrides(config, args.overrides)


def _listener(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"Cannot listen on {host}:{port}: {reason}.") from error


def _api_key(given: str, listener: socket.socket) -> tuple[str, bool]:
    """The key that requests need, and whether it is new."""
    host = str(listener.getsockname()[0])
    if given and len(given) < _LEAST_KEY:
        raise ConfigError(f"The API key has {len(given)} characters; it needs at least {_LEAST_KEY}.")
    if not given and not ipaddress.ip_address(host).is_loopback:
        raise ConfigError(
            f"Other machines can reach {host}, so clients must know an API key: set {_KEY_VARIABLE} or pass --key, at "
            f"least {_LEAST_KEY} characters; or listen on 127.0.0.1 and use a tunnel."
        )
    return given or secrets.token_urlsafe(24), not given


def _say_hello(model: str, listener: socket.socket, new_key: str) -> None:
    host, port = listener.getsockname()[:2]
    url, key = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", new_key or "KEY"
    for line in (
        f"Serving {model} at {url}/v1" + ("" if new_key else " with the API key that you gave"),
        f"  OPENAI_BASE_URL={url}/v1 OPENAI_API_KEY={key}",
        f"  ANTHROPIC_BASE_URL={url} ANTHROPIC_API_KEY={key}",
    ):
        print_line(line, sys.stdout)


class _Server:
    """The model, its conversations and the HTTP server, all on the engine's event loop."""

    def __init__(
        self,
        engine: BaseInferenceEngine,
        config: ConfigStore,
        model: str,
        key: str,
        idle_seconds: float,
        recording: _Recording | None,
    ) -> None:
        from turnsmith.cli.engine import sampling_from_config
        from turnsmith.gateway.server import ModelServer
        from turnsmith.rollout.conversations import Conversations
        from turnsmith.rollout.spec import Limits
        from turnsmith.tools.parsing.formats import parser_for

        self._conversations: Conversations = Conversations(
            model,
            engine.engine,
            engine.chat,
            limits=Limits.of(config.inference),
            sampling=sampling_from_config(config),
            parser=parser_for(config.inference.tool_format, engine.tokenizer),
            idle=idle_seconds,
        )
        self._http = ModelServer(self._conversations, key)
        self._pause = min(_WRITE_SECONDS, idle_seconds)
        self._recording = recording
        self._stopping = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    async def start(self, listener: socket.socket) -> None:
        """Take requests."""
        await self._http.start(listener)
        self._writing = asyncio.get_running_loop().create_task(self._write_ended())

    async def stop(self) -> None:
        """Take no more requests, and write all conversations."""
        await self._http.stop()
        self._stopping.set()
        if self._writing is not None:
            await self._writing
        self._write(self._conversations.take_ended(every=True))
        if self._recording is not None:
            self._recording.finish()

    async def _write_ended(self) -> None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._pause)
            # Files may take their time, which others must not wait for.
            await asyncio.to_thread(self._write, self._conversations.take_ended())

    def _write(self, ended: list[Trajectory]) -> None:
        if ended and self._recording is not None:
            self._recording.write(ended)


class _Recording:
    """The run folder of a served model: each batch of conversations that have ended is a step of it."""

    def __init__(self, config: ConfigStore, model: str) -> None:
        from turnsmith.cli.engine import backend_name, model_name_or_path
        from turnsmith.cli.run_folders import create_run_folder
        from turnsmith.records.compaction import EpisodeCompactor
        from turnsmith.records.run_state import this_process

        self.run: RunFolder = create_run_folder(config, "serve", model)
        self._step = 0
        self._compactor = EpisodeCompactor(self.run.episodes_dir, _warn)
        where = {"model": model_name_or_path(config), "backend": backend_name(config)}
        self.run.append_event(EventKind.SERVING, environment="conversations", **where, **this_process())

    def write(self, conversations: list[Trajectory]) -> None:
        """Write a batch; if that fails, as on a full disk, say so and go on serving."""
        from turnsmith.records.episodes import write_episodes
        from turnsmith.rollout.episode_report import report_of

        try:
            write_episodes(self.run, self._step + 1, conversations, part="serve")
            self._step += 1
            self.run.append_metrics({"step": self._step, **report_of(conversations).metrics()})
        except (OSError, TurnsmithError) as error:
            _warn(f"{len(conversations)} conversations could not be recorded and are lost: {error}")
        self._compactor.step_done(self._step)

    def finish(self) -> None:
        """Note the end."""
        with suppress(OSError, TurnsmithError):
            self.run.append_event(EventKind.FINISHED, step=self._step)


def _warn(sentence: str) -> None:
    print_line(f"turnsmith: {sentence}", sys.stderr)
