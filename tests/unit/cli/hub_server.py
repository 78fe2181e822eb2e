"""A server with the calls of the Hugging Face hub that an upload makes; it keeps what it is sent."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Hub:
    """What has been uploaded."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses = refuses
        self.made: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.tokens: set[str | None] = set()
        self.address = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self) -> None:
        self._answer({"sha": "0" * 40, "siblings": [], "id": "me/chess"})

    def do_POST(self) -> None:
        sent = self._body()
        self.hub.tokens.add(self.headers.get("Authorization"))
        if self.hub.refuses:
            self._answer({"error": "Invalid username or password."}, 401)
        elif self.path == "/api/repos/create":
            self.hub.made.append(json.loads(sent))
            self._answer({"url": f"{self.hub.address}/me/chess", "name": "me/chess"})
        elif self.path.endswith("/preupload/main"):
            names = [file["path"] for file in json.loads(sent)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for name in names]
            self._answer({"files": files})
        elif self.path.endswith("/commit/main"):
            parts = [json.loads(line) for line in sent.splitlines()]
            files = [part["value"] for part in parts if part["key"] == "file"]
            self.hub.files |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            done = {"commitUrl": f"{self.hub.address}/me/chess/commit/1", "commitOid": "1" * 40, "success": True}
            self._answer(done)
        else:
            self._answer({})  # such as the check of a card's metadata

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline(), 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        return found

    def _answer(self, content: dict[str, Any], status: int = 200) -> None:
        told = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(told)))
        self.end_headers()
        self.wfile.write(told)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def hub_server(*, refuses: bool = False) -> Iterator[Hub]:
    """Serve on a free port."""
    hub = Hub(refuses=refuses)
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub})) as server:
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield hub
        server.shutdown()
