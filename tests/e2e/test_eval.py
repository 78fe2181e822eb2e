"""The commands as a person starts them: SmolLM2 evaluated, an evaluation stopped, and a game in a real terminal."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from turnsmith import Outcome, RunFolder, read_episodes

pytestmark = pytest.mark.e2e

TURNSMITH = [sys.executable, "-m", "turnsmith"]


def test_smollm2_at_the_support_desk(tmp_path: Path) -> None:
    options = [
        "--model",
        "smollm2",
        "--episodes",
        "4",
        "--samples",
        "2",
        "--output-dir",
        str(tmp_path),
        "--name",
        "desk",
    ]
    limits = ["inference.max_tokens=16", "inference.max_turns=2", "inference.max_tool_calls=2"]
    done = subprocess.run(
        [*TURNSMITH, "eval", "turnsmith.env.examples:SupportDesk", *options, *limits],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for part in ("SupportDesk · smollm2 · transformers", "success", "pass@2", "as the environment's info says"):
        assert part in done.stdout
    run = RunFolder.open(tmp_path / "desk")
    episodes = read_episodes(run)
    (record,) = run.read_metrics()
    assert len(episodes) == record["episodes/total"] == 4
    assert record["success/low"] <= record["success/mean"] <= record["success/high"]
    assert all(episode.outcome is not None and episode.outcome.is_behaviour for episode in episodes)
    assert all("refund" in episode.messages[0]["content"] for episode in episodes)


def test_ctrl_c_keeps_what_has_ended(tmp_path: Path) -> None:
    options = [
        "--model",
        "tiny",
        "--episodes",
        "200",
        "--concurrency",
        "2",
        "--output-dir",
        str(tmp_path),
        "--name",
        "cut",
    ]
    limits = ["inference.max_tokens=4", "inference.max_turns=2"]
    command = [*TURNSMITH, "eval", "turnsmith.env.examples:GuessNumber", *options, *limits]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert any(line.startswith("20/200 episodes") for line in process.stdout)
            os.killpg(process.pid, signal.SIGINT)  # what a terminal does
            rest = process.stdout.read()
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()
    assert "Stopped after" in rest
    assert 20 <= len(read_episodes(tmp_path / "cut")) < 200
    assert RunFolder.open(tmp_path / "cut").read_events()[-1]["kind"] == "stopped"


def test_a_person_plays_in_a_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [
        *TURNSMITH,
        "play",
        "turnsmith.env.examples:GuessNumber",
        "--output-dir",
        str(tmp_path),
        "--name",
        "played",
    ]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=_own_terminal,
    )
    os.close(theirs)
    try:
        _read_until(ours, "you> ")
        os.write(ours, b"9\x7f8\r")  # a typing error, taken back with the backspace key
        seen = _read_until(ours, "Higher than 8.", "you> ")
        assert "\x1b[1;36m--- user ---" in seen
        _read_until(ours, "You quit (Ctrl-C).", "\nSaved in ", press=b"\x03")  # Ctrl-C
        assert process.wait(timeout=30) == 130
    finally:
        process.kill()
        os.close(ours)
    (episode,) = read_episodes(tmp_path / "played")
    assert (episode.actions, episode.outcome) == (["8"], Outcome.ENGINE_FAILED)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C reaches the process as a signal


def _read_until(terminal: int, *parts: str, press: bytes = b"") -> str:
    """What the terminal shows, up to and with the parts in this order.

    Keys to `press` are pressed again while nothing comes: a terminal that changes its mode forgets those before.
    """
    seen, began, presses = "", time.monotonic(), 0
    while (waited := time.monotonic() - began) < 120:
        if press and not seen and waited >= 10 * presses:
            presses += 1
            os.write(terminal, press)
        place = 0
        for part in parts:
            place = seen.find(part, place)
            if place < 0:
                break
        else:
            return seen
        if select.select([terminal], [], [], 1.0)[0]:
            try:
                seen += os.read(terminal, 4096).decode(errors="replace")
            except OSError:  # the other side is closed
                break
    pytest.fail(f"{parts} did not come; the terminal shows {seen!r}")
