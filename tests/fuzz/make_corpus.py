"""Writes the corpus of the readers' fuzzers: `python -m tests.fuzz.make_corpus`. Run it when a format changes.

Finds of the fuzzers are kept beside these files, under names that begin with `find-`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from tests.fuzz.readers import CORPUS, FILES, SERVED, sample_files
from turnsmith import Outcome, RunFolder, TokenBuffer, Trajectory, TurnRecord
from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.wire import frame
from turnsmith.env.spec import EnvironmentSpec
from turnsmith.records.advantages import StepAdvantages, write_advantages
from turnsmith.records.episode_schema import SCHEMA
from turnsmith.records.episodes import write_episodes

SESSION = """{"type": "reset", "data": {"seed": 3, "episode_id": "e", "level": 2}}
{"type": "step", "data": {"type": "list_tools"}}
{"type": "step", "data": {"text": "8"}}
{"type": "step", "data": {"type": "call_tool", "tool_name": "add", "arguments": {"amount": 5}}}
{"type": "mcp", "data": {"jsonrpc": "2.0", "method": "tools/list", "id": 1}}
{"type": "state"}
{"type": "close"}"""


def main() -> None:
    """Write all of it."""
    for place, name in enumerate(FILES):
        _write("files", name, bytes([place]) + sample_files()[name])
    for name, content in _parquet_files().items():
        _write("parquet", name, content)
    for name, messages in _conversations().items():
        _write("frames", name, b"".join(frame(m.encode(message)) for message in messages))
    _write("session", "episode", SESSION.encode())


def _write(target: str, name: str, content: bytes) -> None:
    (CORPUS / target).mkdir(parents=True, exist_ok=True)
    (CORPUS / target / name).write_bytes(content)


def episode(name: str = "e1") -> Trajectory:
    """One with a turn, tokens, and something in every list."""
    tokens = TokenBuffer()
    tokens.open([1, 2])
    turn = TurnRecord(*tokens.append_model([5, 6], [-0.5, -0.25]), "stop", 0)
    return Trajectory(
        states=["?"],
        actions=["a"],
        rewards=[1.0],
        dones=[True],
        infos=[{"success": True}],
        messages=[{"role": "user", "content": "Go."}, {"role": "assistant", "content": "a"}],
        turns=[turn],
        tokens=tokens,
        outcome=Outcome.COMPLETED,
        episode_id=name,
        group_id="g",
        score=1.0,
        reward_shares={"bonus": 1.0},
    )


def _parquet_files() -> dict[str, bytes]:
    run = RunFolder.create(tempfile.mkdtemp(), "corpus")
    written = write_episodes(run, 1, [episode(), episode("e2")])
    table = pq.read_table(written)
    plain = Path(run) / "plain.parquet"  # not compressed, so that a changed byte changes a value
    metadata = {**SCHEMA.metadata}
    pq.write_table(table.replace_schema_metadata(metadata), plain, compression="none", use_dictionary=False)
    advantages = write_advantages(run, 1, StepAdvantages(advantages={"e1": [0.5, 0.5]}, values={"e1": [0.1, 0.2]}))
    return {
        "episodes": written.read_bytes(),
        "episodes-plain": plain.read_bytes(),
        "advantages": advantages.read_bytes(),
    }


def _conversations() -> dict[str, list[m.Message]]:
    name = EnvironmentSpec(SERVED).name
    define = m.Define(0, 1, name, [], config=m.encode({"max_steps": 3}), call_seconds=5.0)
    reset = m.Reset(1, 7, 1, 3)
    info = m.pack("", {"success": True})
    tool = m.ToolInfo("add", "Adds.", {"type": "object"}, 1.0, 10, False)
    return {
        "episode": [define, reset, m.Step(2, 7, "8"), m.IsOver(3, 7), m.Close(4, 7)],
        "tool": [define, reset, m.UseTool(2, 7, "add", '{"amount": 5}', "e1"), m.Ping(3)],
        "score": [define, reset, m.Score(2, 7, 2, b"\x80", 1.0)],
        "undefined": [m.Reset(1, 7, 99, 3, {"row": [1, None, 2.5]})],
        "replies": [
            m.Ready(0),
            m.ResetReply(1, "Go.", "", m.pack("", [tool])),
            m.StepReply(2, "next", 1.0, False, False, info),
            m.ToolReply(3, "7", True),
            m.ScoreReply(4, 0.5, {"bonus": 0.5}),
            m.ErrorReply(5, "It broke."),
            m.ExitReport(0, 139),
        ],
    }


if __name__ == "__main__":
    main()
