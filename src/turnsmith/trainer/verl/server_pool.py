"""Routes an episode's requests to one of the rollout servers, always the same one for the same episode."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

from ray.exceptions import ActorUnavailableError, ActorUnschedulableError, RayTaskError
from verl.workers.rollout.llm_server import LLMServerManager

from turnsmith.errors import EngineFailure
from turnsmith.inference.engine import Generation, Sampling
from turnsmith.trainer.verl.lost_and_joined_servers import RESTART_SECONDS, SERVER_LOST

_LOOK_SECONDS = 0.5
_AVOID_SECONDS = 10.0
"""How long a lost server gets no requests while others are up; about as long as its restart."""
_AGAIN_SECONDS = 0.05
_INTERRUPTED = ("aborted", "abort")
"""Stop reasons of a turn that a weight update interrupted: vLLM's in verl, and SGLang's."""
_FINISHED = ("completed", "stop", "length")
"""All other stop reasons of the rollout servers: `completed` is vLLM's in verl, and ours."""


class ServerPool:
    """Rollout servers as one engine: a session stays on one server; a new one goes to the server with the fewest.

    verl asks a load-balancer process on each turn. Here every process that runs episodes balances its own sessions,
    which saves that process and one remote call per turn. Of equally busy servers, each process prefers those that
    follow its own place among the servers, so that what none of them can see, the sum, is even as well.

    The requests of a lost server are repeated on another one; if there is none, they wait until Ray reaches the server
    again, or has restarted it and the trainer has sent it weights. Then it gets new sessions again.

    Args:
        servers: The handles of the servers.
        backend: Which engine they run; SGLang has its own name for the sampling seed.
        place: The number of this process among those that run episodes.
        workers: How many there are.
    """

    def __init__(self, servers: list[Any], backend: str = "", place: int = 0, workers: int = 1) -> None:
        self._servers = list(servers)
        self._backend = backend
        self._first = place * len(servers) // workers
        self._sessions = [0] * len(servers)
        self._busy = [0] * len(servers)
        self._lost_until = [0.0] * len(servers)
        self._home: dict[str, int] = {}

    def of_worker(self, place: int, workers: int) -> ServerPool:
        """The pool for one of several processes."""
        return ServerPool(self._servers, self._backend, place, workers)

    def add(self, servers: Sequence[Any]) -> None:
        """Use these servers too. They get all new sessions until they have as many as the others."""
        self._servers += servers
        self._sessions += [0] * len(servers)
        self._busy += [0] * len(servers)
        self._lost_until += [0.0] * len(servers)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids` on the session's server; a turn that a weight update interrupts goes on after it."""
        part = await self._continue(list(prompt_ids), sampling, session)
        parts, said = [part], list(part.token_ids)
        while part.stop_reason in _INTERRUPTED and len(said) < sampling.max_tokens:
            await asyncio.sleep(_AGAIN_SECONDS)
            left = replace(sampling, max_tokens=sampling.max_tokens - len(said))
            part = await self._continue([*prompt_ids, *said], left, session)
            parts.append(part)
            said += part.token_ids
        swaps = _swaps(parts)
        return Generation(
            token_ids=said,
            log_probs=[log_prob for part in parts for log_prob in part.log_probs or ()],
            stop_reason=_stop_reason(part.stop_reason, said, sampling),
            weights_version=swaps[0][1],
            swaps=swaps[1:],
        )

    async def _continue(self, prompt_ids: list[int], sampling: Sampling, session: str) -> Any:
        until = 0.0
        while True:
            home = self._server_of(session)
            self._busy[home] += 1
            try:
                part = await self._servers[home].generate.remote(
                    request_id=f"{session}-{len(prompt_ids)}",
                    prompt_ids=prompt_ids,
                    sampling_params=_verl_sampling(sampling, self._backend),
                )
                break
            except (*SERVER_LOST, RayTaskError) as error:
                if not _is_lost(error):
                    raise
                self._lose(home, error)
                until = until or time.monotonic() + RESTART_SECONDS
                if not self._up() and (time.monotonic() > until or min(self._lost_until) == inf):
                    raise EngineFailure(f"Rollout server {home} was lost: {type(error).__name__}.") from error
            finally:
                self._busy[home] -= 1
            if not self._up():
                await asyncio.sleep(_LOOK_SECONDS)
        self._lost_until[home] = 0.0
        if part.stop_reason not in (*_INTERRUPTED, *_FINISHED):  # a whole turn can be trained
            raise EngineFailure(f"Rollout server {home} ended a turn with the unknown reason {part.stop_reason!r}.")
        return part

    def _lose(self, server: int, error: Exception) -> None:
        restarts = _restarts(self._servers[server]) and not isinstance(error, ActorUnschedulableError)
        may_return = restarts or isinstance(error, ActorUnavailableError)
        self._lost_until[server] = time.monotonic() + _AVOID_SECONDS if may_return else inf

    def _up(self) -> list[int]:
        """The servers that are not known to be lost."""
        now = time.monotonic()
        return [place for place, until in enumerate(self._lost_until) if until <= now]

    def _server_of(self, session: str) -> int:
        home = self._home.get(session)
        if home is None:
            # One task plays an episode from its first turn to its last, so the session ends with that task.
            task: Any = asyncio.current_task()
            task.add_done_callback(lambda task: self._leave(session))
        elif not self._lost_until[home]:
            return home
        else:
            self._leave(session)
        home = self._home[session] = min(self._up() or range(len(self._servers)), key=self._load)
        self._sessions[home] += 1
        return home

    def _load(self, server: int) -> tuple[int, int, int]:
        return self._sessions[server], self._busy[server], (server - self._first) % len(self._servers)

    def _leave(self, session: str) -> None:
        self._sessions[self._home.pop(session)] -= 1


def _restarts(server: Any) -> bool:
    """Whether Ray restarts a lost server; only our own."""
    return hasattr(server, "lacks_weights")


def _is_lost(error: Exception) -> bool:
    """Whether a server is lost, or about to end because its engine has ended."""
    return isinstance(error, SERVER_LOST) or type(getattr(error, "cause", None)).__name__ == "EngineDeadError"


def _verl_sampling(sampling: Sampling, backend: str) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": True,
    }
    if sampling.seed is not None:
        params["sampling_seed" if backend == "sglang" else "seed"] = sampling.seed
    return params


def _swaps(parts: list[Any]) -> tuple[tuple[int, int], ...]:
    """Index and version of the first weights, and of every swap within or between the parts."""
    swaps: list[tuple[int, int]] = []
    place = 0
    for part in [part for part in parts if part.token_ids] or parts[-1:]:
        swaps.append((place, part.extra_fields.get("global_steps") or 0))
        swaps += [(place + within, version) for within, version in part.extra_fields.get("swaps") or ()]
        place += len(part.token_ids)
    return tuple(swaps)


def _stop_reason(reason: str, said: list[int], sampling: Sampling) -> str:
    if reason in ("stop", "length"):
        return reason
    # "completed" is either; length and last token tell which. A server may have more stop tokens than we know.
    ended = len(said) < sampling.max_tokens or said[-1] in sampling.stop_token_ids
    return "stop" if ended else "length"


class PooledServerManager(LLMServerManager):
    """verl's server manager without its load-balancer process."""

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None

    def get_client(self, client_cls: type | None = None, **kwargs: Any) -> ServerPool:
        """The engine that episodes use."""
        return ServerPool(self.server_handles, self.rollout_config.name)
