"""A JSON client for one HTTP server, with bounded concurrency, a timeout, retries, and failures in plain words.

Built on httpx, which does connection pooling, timeouts and TLS. An httpx client is bound to one event loop; this one
runs that loop in its own thread, so that a response can be awaited from any loop.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from urllib.parse import quote, urlsplit

import orjson

from turnsmith.concurrency.clocks import Bottleneck, Wait
from turnsmith.concurrency.loop_thread import LoopThread
from turnsmith.errors import ConfigError, EngineFailure, MissingDependency
from turnsmith.importing import install_line

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")

API_KEY_VARIABLE = "OPENAI_API_KEY"
_CONNECT_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 4.0
"""Less than the 5 s after which uvicorn, which vLLM and SGLang use, closes an idle connection."""
_MAX_RETRY_AFTER = 60.0
_LOOPBACK_HOSTS = {"localhost", "127.0.0.1", "::1"}


class ServerRefused(EngineFailure):
    """The server responded with an error; `status` is its HTTP status."""

    status: int = 0


class ServerOptions(TypedDict, total=False):
    """How a server is called, by all that call one; the defaults are those of `HttpClient`."""

    api_key: str | None
    """Sent as a bearer token; None: the environment variable `OPENAI_API_KEY`, if it is set."""
    timeout: float
    """Maximum seconds for one response, retries included."""
    retries: int
    """How often to retry when the server is busy (408, 429, 5xx) or the connection breaks."""
    max_concurrency: int
    """Maximum requests in flight; the others wait."""


class HttpClient:
    """A client for a server that takes and returns JSON. Its keywords are those of `ServerOptions`.

    Args:
        url: The server's URL, to which paths are appended.
        api_key: Error messages never contain it.
        timeout: See `ServerOptions`, as for the rest.
        retries: As there.
        max_concurrency: As there.

    Example:
        >>> server = HttpClient("http://127.0.0.1:9", retries=0)
        >>> server.run(server.request("/generate", {}))
        Traceback (most recent call last):
        turnsmith.errors.EngineFailure: The server at http://127.0.0.1:9 cannot be reached: ... Is it running there?
        >>> server.close()
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 4,
        max_concurrency: int = 64,
    ) -> None:
        self.url = url.rstrip("/")
        parts = _parse_url(self.url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        """The URL without its password, for error messages."""
        if timeout <= 0 or retries < 0 or max_concurrency < 1:
            raise ConfigError("timeout must be more than 0, retries 0 or more, and max_concurrency at least 1.")
        self._key = _check_key(os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key)
        self._timeout, self._retries = timeout, retries
        self._slots = asyncio.Semaphore(max_concurrency)
        self._bottleneck = Bottleneck(
            f"one of {max_concurrency} requests to {self.name}", "max_concurrency allows more"
        )
        self._client = _make_client(parts, max_concurrency, self._key)
        self._loop = LoopThread("turnsmith-http")

    async def run_async(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine that awaits `request`, for a caller on any event loop."""
        return await self._loop.run_async(work)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine that awaits `request`, for a caller without an event loop."""
        return self._loop.run(work)

    async def request(self, path: str, body: dict[str, Any] | None = None, *, session: str = "") -> Any:
        """POST `body` (GET if it is None) and return the response's JSON. Only inside `run` or `run_async`.

        Args:
            path: Appended to the URL.
            body: Sent as JSON.
            session: Sent as the header `X-Session-ID`, so that a router can send an episode to the same replica.

        Raises:
            ServerRefused: If the server responded with an error, and for a busy server, if all retries failed.
            EngineFailure: If there was no response, none in time, or one that is not JSON.
        """
        headers = {"X-Session-ID": quote(session, safe="/")} if session else {}
        await self._take_slot()
        try:
            deadline = time.monotonic() + self._timeout
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._request_with_retries(path, body, headers, deadline)
            except TimeoutError:
                raise EngineFailure(
                    f"The server at {self.name} did not respond within {self._timeout:g} s. "
                    "Request fewer tokens, or raise timeout."
                ) from None
        finally:
            self._slots.release()

    async def _take_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()
            return
        wait = Wait(self._bottleneck)  # without a limit: the engine may take as long as it needs
        try:
            await self._slots.acquire()
        finally:
            wait.end()

    def close(self) -> None:
        """Close all connections; pending requests raise EngineFailure. Safe to call twice."""
        self._loop.close(cleanup=self._client.aclose)

    async def _request_with_retries(
        self, path: str, body: dict[str, Any] | None, headers: dict[str, str], deadline: float
    ) -> Any:
        for attempt in range(self._retries + 1):
            retry_after: float | None = None
            try:
                response = await self._send(path, body, headers)
                if response.is_success:
                    return self._read(response)
                failure: EngineFailure = self._refusal(response, attempt)
                if not _is_retryable(response.status_code):
                    raise failure
                retry_after = _retry_after_seconds(response.headers.get("retry-after", ""))
            except _ConnectionBroken as broken:
                failure = EngineFailure(f"The server at {self.name} {broken} Is it running there?")
            if attempt == self._retries:
                raise failure
            if retry_after is not None and retry_after > min(_MAX_RETRY_AFTER, deadline - time.monotonic()):
                raise EngineFailure(f"{failure} It asks to retry after {retry_after:.0f} s, which is too long.")
            delay = min(0.5 * 2**attempt, 8.0) if retry_after is None else retry_after
            # Jitter, because a busy server turns many requests away at the same moment.
            await asyncio.sleep(delay * random.uniform(1.0, 1.5))
        raise AssertionError("unreachable")

    async def _send(self, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> httpx.Response:
        import httpx

        try:
            if body is None:
                return await self._client.get(self.url + path, headers=headers)
            headers = {"Content-Type": "application/json", **headers}
            return await self._client.post(self.url + path, content=orjson.dumps(body), headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _ConnectionBroken(f"cannot be reached: {self._masked(_describe(error))}.") from None
        except httpx.HTTPError as error:
            raise _ConnectionBroken(f"closed the connection: {self._masked(_describe(error))}.") from None

    def _read(self, response: httpx.Response) -> Any:
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError:
            start = self._masked(response.text[:80].strip())
            raise EngineFailure(
                f"The response of the server at {self.name} is not JSON: {start!r}. "
                "Check that the URL is that of the API, such as http://host:8000/v1."
            ) from None

    def _refusal(self, response: httpx.Response, attempt: int) -> ServerRefused:
        status = response.status_code
        message = self._masked(_error_message(response))[:400].rstrip(".")
        times = f" {attempt + 1} times" if attempt and _is_retryable(status) else ""
        hint = f" Pass its API key as api_key, or set {API_KEY_VARIABLE}." if status in (401, 403) else ""
        refused = ServerRefused(f"The server at {self.name} refused{times} with {status}: {message}.{hint}")
        refused.status = status
        return refused

    def _masked(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class _ConnectionBroken(Exception):
    """There was no response; a retry may get one."""


def _describe(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def is_url(text: str) -> bool:
    """Whether this is a server's URL, not a model's name or path.

    Example:
        >>> is_url("http://127.0.0.1:8000/v1"), is_url("Qwen/Qwen3-0.6B")
        (True, False)
    """
    return text.startswith(("http://", "https://"))


def _parse_url(url: str) -> Any:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        valid, parts = False, None
    if not valid:
        raise ConfigError("The server's URL must look like http://host:8000/v1 or https://host/v1.")
    return parts


def _check_key(key: str) -> str:
    key = key.strip()
    # Checked here, because httpx's error would contain the key.
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError(
            "The API key has characters that are not allowed in an HTTP header: check for a space or a quote."
        )
    return key


def _make_client(parts: Any, connections: int, key: str) -> httpx.AsyncClient:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependency(f"httpx is not installed: {install_line('openai')}.") from error
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        # `request` bounds the time for a whole response.
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_KEEP_ALIVE_SECONDS
        ),
        # The machine's HTTP proxy cannot reach the machine itself.
        trust_env=parts.hostname not in _LOOPBACK_HOSTS,
        # Without TLS there is nothing to verify, and loading the certificates is slow.
        verify=parts.scheme == "https",
    )


def _is_retryable(status: int) -> bool:
    return status in (408, 429) or (status >= 500 and status != 501)


def _retry_after_seconds(header: str) -> float | None:
    """Seconds to wait, from a `Retry-After` header: a number or a date.

    Example:
        >>> [_retry_after_seconds(header) for header in ("2.5", "soon", "Wed, 21 Oct 2015 07:28:00 GMT")]
        [2.5, None, 0.0]
    """
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _error_message(response: httpx.Response) -> str:
    """The server's error message: OpenAI's and vLLM's `error.message`, FastAPI's `detail`, else the plain text."""
    try:
        body: Any = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = response.text
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and name in body:
            body = body[name]
    if isinstance(body, str):
        return body.strip() or response.reason_phrase
    return orjson.dumps(body).decode()
