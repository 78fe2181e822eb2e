"""What the two sides say is typed, and what users return is measured before it is unpacked."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.serialization import pack_trajectory, unpack_trajectory
from turnsmith.errors import EnvironmentFailure
from turnsmith.trajectory import Outcome, Trajectory, TurnRecord


def test_every_message_comes_back_as_itself():
    requests = [
        m.Define(0, 1, "game:Game", ["/games"]),
        m.Reset(1, 2, 3, 4, {"row": [1, "two", None]}),
        m.Step(2, 3, "go \N{SNOWMAN}"),
        m.IsOver(3, 4),
        m.UseTool(4, 5, "add", '{"amount": 1}', "episode-1"),
        m.Score(5, 6, 7, b"\x00", 9.0),
        m.Close(6, 7),
        m.Ping(-1),
    ]
    for request in requests:
        assert m.read_request(m.encode(request)) == request
    for reply in (
        m.Ready(0),
        m.ToolReply(1, "text", True),
        m.ScoreReply(2, 0.5, {}),
        m.BoolReply(3),
        m.ErrorReply(4, "why"),
    ):
        assert m.read_reply(m.encode(reply)) == reply


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"\xc1",
        b"\x90",
        msgspec.msgpack.encode([22, 1, "text", "no number", False, False, {}]),
        msgspec.msgpack.encode([22, 1, 7, 1.0, False, False, {}]),
        msgspec.msgpack.encode([99, 1]),
        msgspec.msgpack.encode({"call": 1}),
        b"\x93\x1a\x01\xa1\xff",  # an error reply whose text is not UTF-8
        b"\x96\x16\x01\xa0\x00\xc2\xc2" + b"\x91" * 100_000,  # nested too deeply
    ],
)
def test_anything_else_is_refused(wrong: bytes):
    with pytest.raises(m.BadMessage):
        m.read_reply(wrong)


def test_plain_data_and_arrays_of_numbers_travel():
    info = {"score": np.float32(0.5), "board": np.eye(2), "seen": {3}, "nan": math.nan}
    there = m.read_dict(m.pack("info", info))
    assert (there["score"], there["board"], there["seen"]) == (0.5, [[1.0, 0.0], [0.0, 1.0]], [3])
    assert math.isnan(there["nan"])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"lock": object()}, "object is not plain data"),
        ({"number": 10**30}, "info cannot leave its process"),
        ({"text": "\ud800"}, "info cannot leave its process"),
        ({"text": "x" * 2**21}, "info takes 2,097,1.. bytes; the limit is 1,048,576"),
    ],
)
def test_what_cannot_travel_is_told_in_a_sentence(value: dict, sentence: str):
    with pytest.raises(EnvironmentFailure, match=sentence):
        m.pack("info", value)


def test_an_episode_comes_back_whole():
    trajectory = Trajectory(["a"], ["b"], [1.5], [True], [{"k": [1]}], [{"role": "user", "content": "a"}])
    trajectory.tokens.open([1, 2])
    trajectory.tokens.append_model([3, 4], [-0.5, -0.25])
    trajectory.turns = [TurnRecord(2, 4, "stop", 7, 0.1, 0.2, ((3, 8),))]
    trajectory.outcome, trajectory.episode_id, trajectory.group_id = Outcome.COMPLETED, "e", "g"
    trajectory.seed = 5
    assert unpack_trajectory(pack_trajectory(trajectory)) == trajectory
    with pytest.raises(EnvironmentFailure, match="cannot be sent"):
        pack_trajectory(Trajectory(infos=[{"lock": object()}]))
