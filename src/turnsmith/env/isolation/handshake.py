"""How a client of an environment server shows that it knows the token, without sending it.

The server sends random bytes, the client answers with their HMAC under the token, and only then does the server start a
worker. What follows is not encrypted: docs/isolation.md shows the tunnel for networks where others listen.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import sys
from pathlib import Path

from turnsmith.env.isolation import messages as m
from turnsmith.env.isolation.wire import frame
from turnsmith.errors import ConfigError, WorkerLost

_LEAST_TOKEN = 16
_MOST_BYTES = 256
"""Limit on a message of somebody who has not shown the token yet."""
_IDLE = socket.TCP_KEEPALIVE if sys.platform == "darwin" else socket.TCP_KEEPIDLE
_KEEPALIVE = {_IDLE: 60, socket.TCP_KEEPINTVL: 15, socket.TCP_KEEPCNT: 4}


def read_token(path: str, *, create: bool = False) -> bytes:
    """The token in a file; without a file, none.

    Args:
        path: The file; empty: there is no token.
        create: Whether to write a new token, which only this user can read, if the file does not exist.

    Raises:
        ConfigError: The file cannot be read or written, or its token is short enough to be guessed.

    Example:
        >>> import tempfile
        >>> file = f"{tempfile.mkdtemp()}/token"
        >>> read_token(file, create=True) == read_token(file) != b""
        True
    """
    if not path:
        return b""
    file = Path(path).expanduser()
    try:
        if create and not file.exists():
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
                new.write(secrets.token_urlsafe(32) + "\n")
        token = file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"The token file {file} cannot be used: {error.strerror or error}.") from error
    if len(token) < _LEAST_TOKEN:
        raise ConfigError(f"The token in {file} has {len(token)} characters; it needs at least {_LEAST_TOKEN}.")
    return token


def keep_alive(connection: socket.socket) -> None:
    """Let the kernel notice a peer that is gone without a word, within two minutes; and send small messages at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def ask_for_token(connection: socket.socket, token: bytes) -> bool:
    """The server's side: whether the other end knows the token, or none is needed."""
    nonce = secrets.token_bytes(32)
    connection.sendall(frame(m.encode(m.Hello(0, nonce, bool(token)))))
    try:
        answer = m.read_proof(_receive(connection))
    except (*m.BadMessage, EOFError):
        return False
    return not token or hmac.compare_digest(answer.proof, _proof(token, nonce))


def show_token(connection: socket.socket, token: bytes) -> None:
    """The client's side.

    Raises:
        WorkerLost: The other end is no environment server of this version, or needs a token that we do not have.
    """
    try:
        hello = m.read_hello(_receive(connection))
    except (*m.BadMessage, EOFError):
        hello = None
    if hello is None or hello.protocol != m.PROTOCOL:
        raise WorkerLost("What answers there is no environment server, or one of another version of turnsmith.")
    if hello.needs_token and not token:
        raise WorkerLost("The environment server needs a token: set environment.isolation_token_file.")
    connection.sendall(frame(m.encode(m.Proof(0, _proof(token, hello.nonce) if hello.needs_token else b""))))


def _proof(token: bytes, nonce: bytes) -> bytes:
    return hmac.digest(token, nonce, "sha256")


def _receive(connection: socket.socket) -> bytes:
    """One message, and not a byte more; raises an EOFError if there is none."""
    length = int.from_bytes(_read(connection, 4), "little")
    if length > _MOST_BYTES:
        raise EOFError
    return _read(connection, length)


def _read(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data
