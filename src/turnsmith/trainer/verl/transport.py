"""Keys on the ports that verl's processes open, so that other users of the machine or the network cannot use them.

TransferQueue unpickles what it receives, and vLLM's HTTP server answers anyone. Every process of a run has the run's
key in an environment variable, which only processes of the same user can read.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable
from typing import Any

from transfer_queue.utils.zmq_utils import create_zmq_socket as _create_plain_socket

from turnsmith.trainer.ray_shims import QUEUE_NAMESPACE

RUN_KEY = "TURNSMITH_RUN_KEY"
"""The variable: 64 hexadecimal digits, drawn anew for each run."""


def protect_queue() -> None:
    """Encrypt and authenticate the sockets of TransferQueue made from now on, and keep the queue to this run."""
    from transfer_queue import controller, interface
    from transfer_queue.storage import simple_storage
    from transfer_queue.storage.managers import base
    from transfer_queue.utils import zmq_utils

    # Ray sends the classes of TransferQueue's processes by value, so that they refer to our function, too.
    for module in (zmq_utils, controller, simple_storage, base):
        module.create_zmq_socket = create_curve_socket  # type: ignore[attr-defined]
    # TransferQueue has one fixed namespace, and would take the queue of another run on the same cluster for its own.
    for name in ("ray", "TransferQueueController"):
        if not isinstance(real := getattr(interface, name), _InOwnNamespace):
            setattr(interface, name, _InOwnNamespace(real))


class _InOwnNamespace:
    """Ray, or an actor class of its, whose named actors are in the namespace of this run's queue."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_actor(self, name: str, namespace: str) -> Any:
        return self._real.get_actor(name, namespace=os.environ[QUEUE_NAMESPACE])

    def options(self, *, namespace: str, **more: Any) -> Any:
        return self._real.options(namespace=os.environ[QUEUE_NAMESPACE], **more)


def protect_http() -> None:
    """Let the HTTP servers of vLLM answer only clients with the key."""
    from verl.workers.rollout import utils

    utils.run_uvicorn = _with_key(utils.run_uvicorn)


def _with_key(serve: Callable[..., Any]) -> Callable[..., Any]:
    def serve_with_key(app: Any, server_args: Any, server_address: str) -> Any:
        return serve(RequireKey(app), server_args, server_address)  # vLLM's own takes no more middleware by now

    return serve_with_key


def create_curve_socket(ctx: Any, socket_type: Any, ip: str, identity: Any = None) -> Any:
    """A socket of TransferQueue with ZeroMQ's CURVE mechanism: `ROUTER`s are servers, `DEALER`s clients.

    A CURVE server accepts every client that knows its public key. Ours is derived from the run's key and never sent, so
    only processes of the run know it.
    """
    import zmq
    from zmq.utils import z85

    socket = _create_plain_socket(ctx, socket_type, ip, identity)
    secret = z85.encode(bytes.fromhex(os.environ[RUN_KEY]))
    if socket_type == zmq.ROUTER:
        socket.curve_server, socket.curve_secretkey = True, secret
    else:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = zmq.curve_public(secret)
    return socket


class RequireKey:
    """An ASGI application that passes on only requests with the run's key as their bearer token.

    Nothing in a run calls vLLM over HTTP: its server is there because verl always starts it.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        wanted = f"Bearer {os.environ[RUN_KEY]}".encode()
        authorization = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(authorization, wanted):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
        else:
            await send({"type": "websocket.close", "code": 1008})
