"""A real HTTP server on loopback with scripted responses, and responses in the format of real servers."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from turnsmith import Engine, Sampling


@dataclass
class Request:
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Reply:
    body: Any = None
    """Bytes as they are, anything else as JSON."""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    drop: bool = False
    """Break the connection instead of answering."""
    after: float = 0.0
    """Seconds to wait before."""


@dataclass
class LocalServer:
    """The requests received, and how many were in flight at a time."""

    answer: Callable[[Request], Reply]
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path.endswith(path)]


@contextmanager
def serving(answer: Callable[[Request], Reply]) -> Iterator[LocalServer]:
    server = LocalServer(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.path, headers, json.loads(body) if body else None)
            with server.lock:
                server.requests.append(request)
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            try:
                self.reply(server.answer(request))
            finally:
                with server.lock:
                    server.at_once -= 1

        def do_POST(self) -> None:
            self.do_GET()

        def reply(self, reply: Reply) -> None:
            time.sleep(reply.after)
            if reply.drop:
                self.close_connection = True
                self.connection.close()
                return
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(content)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):  # the client has gone, or the connection was dropped on purpose
                pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}"
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()


def like_vllm(engine: Engine, tokenizer: Any, *, processed: bool = True) -> Callable[[Request], Reply]:
    """Answers as `vllm serve` 0.28 does (`tests/e2e/test_openai_server.py` runs the real one), with `engine` behind."""

    def answer(request: Request) -> Reply:
        if request.path.endswith("/models"):
            return Reply({"object": "list", "data": [{"id": "served", "root": "somewhere", "max_model_len": 512}]})
        body = request.body
        if request.path != "/v1/completions" or body["model"] != "served":
            return Reply({"error": {"message": "There is no such thing.", "code": 404}}, 404)
        sampling = Sampling(
            body["max_tokens"],
            body["temperature"],
            body.get("top_p", 1.0),
            max(body.get("top_k", -1), 0),
            tuple(body.get("stop_token_ids", ())),
            body.get("seed"),
        )
        generation = asyncio.run(engine.generate(body["prompt"], sampling, session=""))
        ids = list(generation.token_ids)
        log_probs = list(generation.log_probs) if processed else [-1.5] * len(ids)
        names = [f"token_id:{token}" if body.get("return_tokens_as_token_ids") else "a" for token in ids]
        listed = body.get("return_token_ids")
        choice = {
            "index": 0,
            "text": tokenizer.decode(ids, skip_special_tokens=True),
            "finish_reason": generation.stop_reason,
            "logprobs": {"tokens": names, "token_logprobs": log_probs},
            "token_ids": ids if listed else None,
            "prompt_token_ids": body["prompt"] if listed else None,
        }
        return Reply({"choices": [choice], "usage": {"completion_tokens": len(ids)}})

    return answer


def completion(text: str = "ab", **more: Any) -> dict[str, Any]:
    return {"choices": [{"text": text, "finish_reason": "stop", **more}]}


def always(reply: Callable[[Request], Reply] | Reply) -> Callable[[Request], Reply]:
    """The models, and one reply to everything else."""

    def answer(request: Request) -> Reply:
        if request.path.endswith("/models"):
            return Reply({"data": [{"id": "served"}]})
        return reply if isinstance(reply, Reply) else reply(request)

    return answer
