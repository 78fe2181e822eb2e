"""One HTTP server, asked over and over: bounded in number and time, patient with a busy one, and every failure a
sentence.

The client is httpx (transformers brings it too): pooled connections, time-outs and TLS are its work. Like vLLM's engine
it is bound to one event loop; here that is a loop in a thread of its own, so that an answer can be awaited from any.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Coroutine
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlsplit

import orjson

from turnsmith.errors import ConfigError, EngineFailure, MissingDependency
from turnsmith.loop_thread import LoopThread

if TYPE_CHECKING:
    import httpx

Result = TypeVar("Result")

API_KEY_VARIABLE = "OPENAI_API_KEY"
_CONNECT_SECONDS = 10.0
_KEEP_ALIVE_SECONDS = 4.0
"""Less than the 5 s after which uvicorn, and so vLLM and SGLang, drop an idle connection."""
_LONGEST_PAUSE = 60.0
_LOCAL = {"localhost", "127.0.0.1", "::1"}


class ServerRefused(EngineFailure):
    """The server answered with an error; `status` is its HTTP status."""

    status: int = 0


class HttpClient:
    """A server that takes and gives JSON.

    Args:
        url: Where it is; paths are put behind it.
        api_key: Sent as a bearer token; None: what `OPENAI_API_KEY` holds, if anything. It never gets into an error.
        timeout: Most seconds for one answer, with all repeats.
        retries: How often to ask again when the server is busy (408, 429, 5xx) or the connection breaks.
        max_concurrency: Most requests under way at a time; the others wait.

    Example:
        >>> server = HttpClient("http://127.0.0.1:9", retries=0)
        >>> server.run(server.ask("/generate", {}))
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
        parts = _checked(self.url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        """The URL without a password in it; what errors say."""
        if timeout <= 0 or retries < 0 or max_concurrency < 1:
            raise ConfigError("timeout must be more than 0, retries 0 or more, and max_concurrency at least 1.")
        self._key = _checked_key(os.environ.get(API_KEY_VARIABLE, "") if api_key is None else api_key)
        self._timeout, self._retries = timeout, retries
        self._free = asyncio.Semaphore(max_concurrency)
        self._client = _make_client(parts, max_concurrency, self._key)
        self._loop = LoopThread("turnsmith-http")

    async def share(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work`, in which `ask` can be awaited, for a caller on any event loop."""
        return await self._loop.share(work)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do `work`, in which `ask` can be awaited, for a caller without an event loop."""
        return self._loop.run(work)

    async def ask(self, path: str, body: dict[str, Any] | None = None, *, session: str = "") -> Any:
        """Send `body` (None: only ask) and give back the JSON of the answer. Call it inside `share` or `run`.

        Args:
            path: Put behind the URL.
            body: What to send.
            session: Sent as the header `X-Session-ID`, so that a router can send an episode to the same replica.

        Raises:
            ServerRefused: If the server said no, or said that it is busy until patience ran out.
            EngineFailure: If there was no answer, none in time, or one that is not JSON.
        """
        headers = {"X-Session-ID": quote(session, safe="/")} if session else {}
        async with self._free:
            began = time.monotonic()
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._ask_patiently(path, body, headers, began)
            except TimeoutError:
                raise EngineFailure(
                    f"The server at {self.name} gave no answer within {self._timeout:g} s. "
                    "Ask for fewer tokens, or raise timeout."
                ) from None

    def close(self) -> None:
        """Drop all connections; whoever still waits gets an EngineFailure. Safe to call twice."""
        self._loop.close(last=self._client.aclose)

    async def _ask_patiently(
        self, path: str, body: dict[str, Any] | None, headers: dict[str, str], began: float
    ) -> Any:
        for attempt in range(self._retries + 1):
            wished: float | None = None
            try:
                response = await self._send(path, body, headers)
                if response.is_success:
                    return self._read(response)
                failure: EngineFailure = self._refusal(response, attempt)
                if not _is_busy(response.status_code):
                    raise failure
                wished = _wished_pause(response.headers.get("retry-after", ""))
            except _BrokenConnection as broken:
                failure = EngineFailure(f"The server at {self.name} {broken} Is it running there?")
            if attempt == self._retries:
                raise failure
            if wished is not None and wished > min(_LONGEST_PAUSE, self._timeout - (time.monotonic() - began)):
                raise EngineFailure(f"{failure} It asks to wait {wished:.0f} s, which is too long.")
            # Never the same for two: many are turned away at the same moment.
            pause = min(0.5 * 2**attempt, 8.0) if wished is None else wished
            await asyncio.sleep(pause * random.uniform(1.0, 1.5))
        raise AssertionError("unreachable")

    async def _send(self, path: str, body: dict[str, Any] | None, headers: dict[str, str]) -> httpx.Response:
        import httpx

        try:
            if body is None:
                return await self._client.get(self.url + path, headers=headers)
            headers = {"Content-Type": "application/json", **headers}
            return await self._client.post(self.url + path, content=orjson.dumps(body), headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise _BrokenConnection(f"cannot be reached: {self._masked(_word_of(error))}.") from None
        except httpx.HTTPError as error:
            raise _BrokenConnection(f"broke off the connection: {self._masked(_word_of(error))}.") from None

    def _read(self, response: httpx.Response) -> Any:
        try:
            return orjson.loads(response.content)
        except orjson.JSONDecodeError:
            start = self._masked(response.text[:80].strip())
            raise EngineFailure(
                f"The server at {self.name} answered with something that is not JSON: {start!r}. "
                "Check that the URL is that of the API, such as http://host:8000/v1."
            ) from None

    def _refusal(self, response: httpx.Response, attempt: int) -> ServerRefused:
        status = response.status_code
        said = self._masked(_message_of(response))[:400]
        times = f" {attempt + 1} times" if attempt and _is_busy(status) else ""
        hint = f" Give its API key as api_key or in {API_KEY_VARIABLE}." if status in (401, 403) else ""
        refused = ServerRefused(f"The server at {self.name} refused{times} with {status}: {said.rstrip('.')}.{hint}")
        refused.status = status
        return refused

    def _masked(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text


class _BrokenConnection(Exception):
    """No answer came; another try may get one."""


def _word_of(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def is_url(text: str) -> bool:
    """Whether this names a server rather than a model.

    Example:
        >>> is_url("http://127.0.0.1:8000/v1"), is_url("Qwen/Qwen3-0.6B")
        (True, False)
    """
    return text.startswith(("http://", "https://"))


def _checked(url: str) -> Any:
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:
        valid, parts = False, None
    if not valid:
        raise ConfigError("The server's URL must look like http://host:8000/v1 or https://host/v1.")
    return parts


def _checked_key(key: str) -> str:
    key = key.strip()
    # Checked here, because the client would put the key into its error.
    if not (key.isascii() and key.isprintable()) or " " in key:
        raise ConfigError("The API key holds characters that no HTTP header can carry: check for a space or a quote.")
    return key


def _make_client(parts: Any, connections: int, key: str) -> httpx.AsyncClient:
    try:
        import httpx
    except ImportError as error:
        raise MissingDependency("httpx is not installed: pip install 'turnsmith[openai]'.") from error
    return httpx.AsyncClient(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        # The time for a whole answer is bounded by `ask`.
        timeout=httpx.Timeout(None, connect=_CONNECT_SECONDS),
        limits=httpx.Limits(
            max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=_KEEP_ALIVE_SECONDS
        ),
        # A proxy of the machine's does not lead to the machine itself.
        trust_env=parts.hostname not in _LOCAL,
        # Without TLS there is nothing to verify, and loading all certificates takes longer than the rest.
        verify=parts.scheme == "https",
    )


def _is_busy(status: int) -> bool:
    return status in (408, 429) or (status >= 500 and status != 501)


def _wished_pause(retry_after: str) -> float | None:
    """Seconds to wait, from a `Retry-After` header: a number or a date.

    Example:
        >>> _wished_pause("2.5"), _wished_pause("soon"), _wished_pause("Wed, 21 Oct 2015 07:28:00 GMT")
        (2.5, None, 0.0)
    """
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _message_of(response: httpx.Response) -> str:
    """What the server says is wrong: OpenAI's and vLLM's `error.message`, FastAPI's `detail`, else the plain text."""
    try:
        told: Any = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        told = response.text
    for name in ("error", "message", "detail"):
        if isinstance(told, dict) and name in told:
            told = told[name]
    if isinstance(told, str):
        return told.strip() or response.reason_phrase
    return orjson.dumps(told).decode()
