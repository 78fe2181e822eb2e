"""Checks an installed wheel, in an environment of its own that has nothing of the checkout: `.ci/run wheel`.

    VENV/bin/python check_wheel.py core WHEEL        core dependencies: size, check, audit, play, sentences for the rest
    VENV/bin/python check_wheel.py macos WHEEL       the same without what only Linux has
    VENV/bin/python check_wheel.py adapters WHEEL    with `gymnasium` and `reasoning-gym`: check and audit of theirs
    VENV/bin/python check_wheel.py openai TOKENIZER  with `openai`: eval of a class and of an agent against $SERVED_URL

None of it may find torch, ray or verl.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

MOST_BYTES, MOST_DEPENDENCIES = 1_500_000, 20
HEAVY = ("torch", "ray", "verl", "vllm")
AS_MACOS = Path(__file__).with_name("as_macos.py").resolve()
GAME = """
import random

from turnsmith import BaseEnvironment, RayPPOTrainer

class Game(BaseEnvironment):
    reward_range = (0, 1)

    def reset(self, seed=None):
        self.number = random.Random(seed).randint(100, 999)
        return f"Double {self.number}"

    def solve(self):
        return str(2 * self.number)

    def step(self, action):
        right = action.strip() == str(2 * self.number)
        return "Thanks", float(right), True, {"success": right}
"""
AGENT = """
import json
import urllib.request

def agent(task, model):
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Say yes"}], "max_tokens": 4})
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {model.key}"}
    request = urllib.request.Request(f"{model.url}/chat/completions", body.encode(), headers)
    with urllib.request.urlopen(request) as answer:
        return float("choices" in json.load(answer))
"""


def turnsmith(
    folder: Path, *words: str, typed: str = "", before: tuple[str, ...] = ("-m", "turnsmith")
) -> tuple[int, str]:
    """Run a command as a user does; what it prints must not be a traceback."""
    command = [sys.executable, *before, *words]
    done = subprocess.run(command, cwd=folder, input=typed, capture_output=True, text=True, timeout=300)
    printed = done.stdout + done.stderr
    assert "Traceback" not in printed, f"turnsmith {' '.join(words)} ended in a traceback:\n{printed}"
    return done.returncode, printed


def worked(folder: Path, words: str, *expected: str, **options: object) -> None:
    """Run a command that must work and print what is expected."""
    code, printed = turnsmith(folder, *words.split(), **options)  # pyright: ignore[reportArgumentType]
    assert code == 0, f"turnsmith {words} ended with {code}:\n{printed}"
    for text in expected:
        assert text in printed, f"turnsmith {words} did not print {text!r}:\n{printed}"
    print(f"turnsmith {words:50} {printed.strip().splitlines()[-1]}")


def check_core(folder: Path, wheel: Path) -> None:
    """Size, dependencies, what works, and what says that it does not."""
    own = {"turnsmith", "pip", "setuptools", "wheel"}
    names = sorted({str(found.metadata["Name"]).lower() for found in distributions()} - own)
    print(f"wheel: {wheel.stat().st_size:,} bytes, {len(names)} dependencies: {', '.join(names)}")
    files = sum(file.stat().st_size for file in Path(sys.prefix).rglob("*") if file.is_file() and not file.is_symlink())
    print(f"environment: {files / 1e6:.0f} MB")
    assert wheel.stat().st_size < MOST_BYTES
    assert len(names) < MOST_DEPENDENCIES
    worked(folder, "check game.py:Game --audit -v", "ok      right answers are", "ok      many at once", "none failed")
    worked(folder, "play game.py:Game --name played", "Outcome: completed.", typed="5\n")
    worked(folder, "runs report played", "report")
    assert list(folder.glob("runs/played/*.html")), "the report is not there"
    needing = ["train --dry-run game.py:Game --model tiny", "train game.py:Game --model tiny", "check --machine"]
    needing += ["eval game.py:Game --model tiny", "eval game.py:Game --model http://127.0.0.1:9", "serve tiny"]
    for words in [*needing, "play game.py:Game --model tiny", "model tiny new", "check gymnasium:FrozenLake-v1"]:
        code, printed = turnsmith(folder, *words.split())
        sentence = printed.strip().splitlines()[-1]
        print(f"turnsmith {words:50} {sentence}")
        assert code == 2
        assert f"pip install '{wheel.resolve()}[" in sentence


def check_macos(folder: Path, _: Path) -> None:
    """What works without Linux's own functions, and what says that it needs them."""
    macos = {"before": (str(AS_MACOS),)}
    worked(folder, "check game.py:Game --audit -v", "ok      right answers are", "none failed", **macos)
    worked(folder, "play game.py:Game --name played", "Outcome: completed.", typed="5\n", **macos)
    worked(folder, "runs", "played", **macos)
    for words in (
        "check game.py:Game environment.isolation=process",
        "serve --environment game.py:Game",
        "train game.py:Game",
    ):
        code, printed = turnsmith(folder, *words.split(), **macos)
        print(f"on macOS: turnsmith {words}: {printed.strip().splitlines()[-1]}")
        assert code == 2
        assert "needs Linux" in printed


def check_adapters(folder: Path, _: Path) -> None:
    """Others' environments."""
    for name in ("gymnasium:FrozenLake-v1", "reasoning_gym:syllogism"):
        worked(folder, f"check {name} --audit", "ok      any text is answered", "none failed")


def check_openai(folder: Path, tokenizer: Path) -> None:
    """`eval` of a class and of an agent against the model that `SERVED_URL` names."""
    (folder / "agent.py").write_text(AGENT)
    for environment in ("game.py:Game", "agent.py:agent"):
        worked(
            folder,
            f"eval {environment} --model {os.environ['SERVED_URL']} --tokenizer {tokenizer} --episodes 4 --json r.json",
        )
        found = json.loads((folder / "r.json").read_text())
        assert found["is_complete"]
        assert found["tokens/model"] > 0


CHECKS = {"core": check_core, "macos": check_macos, "adapters": check_adapters, "openai": check_openai}


def main() -> None:
    """Check, in an empty folder."""
    what, path = sys.argv[1], Path(sys.argv[2]).resolve()
    found = [name for name in HEAVY if find_spec(name)]
    assert not found, f"{', '.join(found)} must not be here"
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "game.py").write_text(GAME)
        CHECKS[what](Path(name), path)
    print(f"{what}: ok")


if __name__ == "__main__":
    main()
