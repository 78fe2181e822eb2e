"""Another user of the machine, who tries every port, socket and file of a run: `python another_user.py < targets.json`.

Starts as root, and drops to a user id that nobody has before it touches anything. Prints what it got, as JSON.
"""

from __future__ import annotations

import http.client
import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import zmq

UID = 54321


def main() -> None:
    targets = json.load(sys.stdin)
    importlib.import_module("encodings.idna")  # the first connection does, which this user may no longer do
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    got: list[str] = []
    for address, port in targets["ports"]:
        answers = {path: status_of(address, port, path) for path in ("/", "/v1/models", "/metrics")}
        got += [f"http {port} {path}" for path, status in answers.items() if status and status < 400]
        if not any(answers.values()) and answered_over_zmq(address, port, targets["frames"]):
            got.append(f"zmq {port}")
    got += [f"socket {path}" for path in targets["sockets"] if _connected(path)]
    got += [f"read {path}" for path in targets["files"] if _opened(path, "rb")]
    got += [f"written {path}" for path in targets["files"] if _opened(path, "r+b")]
    json.dump(got, sys.stdout)


def answered_over_zmq(address: str, port: int, frames: list[str]) -> bool:
    """Whether an answer came; frames that hold a pickle may have done their work in any case."""
    context: Any = zmq.Context()
    asking = context.socket(zmq.DEALER)
    # A server that has refused the handshake by now leaves nobody to send to: without a limit, sending would not end.
    asking.linger = asking.sndtimeo = 300
    asking.connect(f"tcp://{address}:{port}")
    try:
        asking.send_multipart([bytes.fromhex(frame) for frame in frames])
        return bool(asking.poll(300))
    except zmq.Again:
        return False
    finally:
        asking.close()
        context.term()


def status_of(address: str, port: int, path: str) -> int:
    """The HTTP status of the answer to a request without a key; 0 if there is none."""
    connection = http.client.HTTPConnection(address, port, timeout=0.5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def _connected(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(0.5)
        try:
            asking.connect(path)
        except BlockingIOError:  # it may connect, only nobody takes the connection now
            return True
        except OSError:
            return False
        return True


def _opened(path: str, mode: str) -> bool:
    try:
        with Path(path).open(mode):
            return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
