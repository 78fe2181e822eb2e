"""Where an episode's requests go: one of the rollout servers, always the same one for the same episode."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayActorError
from verl.workers.rollout.llm_server import LLMServerManager

from turnwise.errors import EngineFailure
from turnwise.inference.engine import Generation, Sampling

_REMEMBERED_SESSIONS = 200_000
_RESTART_SECONDS = 300.0
_LOOK_SECONDS = 0.5


class ServerPool:
    """Rollout servers as one engine: sticky by session, a new session goes to the least busy server.

    verl asks a balancer process for each turn. Here every episode worker balances its own requests, which saves that
    process and one remote call a turn.

    A server that is lost fails the requests that it had in hand. Later requests go to the others; where there is no
    other they wait until Ray has started it again and the trainer has sent it weights.
    """

    def __init__(self, servers: list[Any]) -> None:
        self._servers = servers
        self._busy = [0] * len(servers)
        self._lost = [False] * len(servers)
        self._home: OrderedDict[str, int] = OrderedDict()

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str) -> Generation:
        """Continue `prompt_ids` on the session's server."""
        home = self._server_of(session)
        self._busy[home] += 1
        try:
            output = await self._ask(
                home,
                request_id=f"{session}-{len(prompt_ids)}",
                prompt_ids=list(prompt_ids),
                sampling_params=_verl_sampling(sampling),
            )
        finally:
            self._busy[home] -= 1
        return Generation(
            token_ids=output.token_ids,
            log_probs=output.log_probs or [],
            stop_reason=_stop_reason(output, sampling),
            weights_version=output.extra_fields.get("global_steps") or 0,
            swaps=tuple(output.extra_fields.get("swaps") or ()),
        )

    async def _ask(self, home: int, **request: Any) -> Any:
        """One request; to a server that is known to be lost it is made again until there is an answer."""
        server, until = self._servers[home], time.monotonic() + _RESTART_SECONDS
        while True:
            waits = self._lost[home]
            try:
                output = await server.generate.remote(**request)
            except RayActorError as error:
                self._lost[home] = True
                # Only our own server is one that Ray starts again.
                if not waits or not hasattr(server, "lacks_weights") or time.monotonic() > until:
                    raise EngineFailure(f"Rollout server {home} was lost: {type(error).__name__}.") from error
                await asyncio.sleep(_LOOK_SECONDS)
            else:
                self._lost[home] = False
                return output

    def _server_of(self, session: str) -> int:
        if session not in self._home or self._lost[self._home[session]]:
            up = [place for place, lost in enumerate(self._lost) if not lost] or range(len(self._servers))
            self._home[session] = min(up, key=self._busy.__getitem__)
            if len(self._home) > _REMEMBERED_SESSIONS:
                self._home.popitem(last=False)
        return self._home[session]


def _verl_sampling(sampling: Sampling) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_tokens": sampling.max_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "logprobs": True,
    }
    return params if sampling.seed is None else params | {"seed": sampling.seed}


def _stop_reason(output: Any, sampling: Sampling) -> str:
    # verl says "completed" for a finished turn and for a cut one alike: its length and last token tell them apart. A
    # server may know more stop tokens than we do.
    if output.stop_reason == "aborted":
        return "abort"
    ended = len(output.token_ids) < sampling.max_tokens or output.token_ids[-1] in sampling.stop_token_ids
    return "stop" if ended else "length"


class PooledServerManager(LLMServerManager):
    """verl's server manager without its balancer process."""

    async def _init_global_load_balancer(self) -> None:
        self.global_load_balancer = None

    def get_client(self, client_cls: type | None = None, **kwargs: Any) -> ServerPool:
        """The engine that episodes use."""
        return ServerPool(self.server_handles)
