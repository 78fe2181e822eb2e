"""Checks an installed wheel, in an environment that has its core dependencies and nothing else: `.ci/run wheel`.

    VENV/bin/python check_wheel.py core WHEEL        size, dependencies, help, report; a sentence for a missing extra
    VENV/bin/python check_wheel.py openai TOKENIZER  with the extra `openai`: `eval` against a server

It imports nothing of the checkout.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import distributions
from pathlib import Path

MOST_BYTES, MOST_DEPENDENCIES = 1_500_000, 20
GAME = """
from turnsmith import BaseEnvironment

class Game(BaseEnvironment):
    def reset(self):
        return "Say yes"

    def step(self, action):
        return "Thanks", float("yes" in action), True, {"success": "yes" in action}
"""


def turnsmith(folder: Path, *words: str) -> tuple[int, str]:
    """Run a command as a user does; what it prints must not be a traceback."""
    command = [sys.executable, "-m", "turnsmith", *words]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed, f"turnsmith {' '.join(words)} ended in a traceback:\n{printed}"
    return done.returncode, printed


def check_core(folder: Path, wheel: Path) -> None:
    """Size, dependencies, what works, and what says that it does not."""
    own = {"turnsmith", "pip", "setuptools", "wheel"}
    names = sorted({str(found.metadata["Name"]).lower() for found in distributions()} - own)
    print(f"wheel: {wheel.stat().st_size:,} bytes, {len(names)} dependencies: {', '.join(names)}")
    assert wheel.stat().st_size < MOST_BYTES
    assert len(names) < MOST_DEPENDENCIES
    assert turnsmith(folder, "--help")[0] == 0
    assert turnsmith(folder, "train", "--help")[0] == 0
    from turnsmith import RunFolder

    run = RunFolder.create(folder / "runs", "Game-1")
    run.append_metrics({"step": 1, "reward/mean": 0.5})
    run.append_event("finished")
    assert turnsmith(folder, "runs")[0] == 0
    code, printed = turnsmith(folder, "report", "Game-1")
    assert code == 0, printed
    assert list(run.path.glob("*.html")), "the report is not there"
    needing = [
        "train --dry-run game.py:Game --model tiny",
        "train game.py:Game --model tiny",
        "selftest",
        "model tiny new",
    ]
    needing += ["eval game.py:Game --model tiny", "eval game.py:Game --model http://127.0.0.1:9", "play game.py:Game"]
    for words in [*needing, "serve tiny", "model tiny new", "eval gymnasium:FrozenLake-v1 --model tiny"]:
        code, printed = turnsmith(folder, *words.split())
        sentence = printed.strip().splitlines()[-1]
        print(f"turnsmith {words:45} {sentence}")
        assert code == 2
        assert f"pip install '{wheel.resolve()}[" in sentence


class Server(BaseHTTPRequestHandler):
    """A server that takes only messages and returns only text."""

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "model", "object": "model"}]})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        if not self.path.endswith("/chat/completions"):
            self.send_error(404)
            return
        message = {"role": "assistant", "content": "yes"}
        self._send({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {}})

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _send(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def check_openai(folder: Path, tokenizer: Path) -> None:
    """`eval` against a server that returns text; any tokenizer will do to count it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    words = ["--model", url, "--tokenizer", str(tokenizer), "--episodes", "4", "--json", "result.json"]
    code, printed = turnsmith(folder, "eval", "game.py:Game", *words)
    print(printed)
    assert code == 0
    assert json.loads((folder / "result.json").read_text())["success/mean"] == 1.0


def main() -> None:
    """Check, in an empty folder."""
    what, path = sys.argv[1], Path(sys.argv[2]).resolve()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "game.py").write_text(GAME)
        (check_core if what == "core" else check_openai)(Path(name), path)
    print(f"{what}: ok")


if __name__ == "__main__":
    main()
