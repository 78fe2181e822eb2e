"""Requests that a rollout server breaks off, because it gets new weights, go on where they were."""

from __future__ import annotations

from typing import Any

from turnsmith.inference.engine import Sampling
from turnsmith.trainer.verl.server_pool import ServerPool
from turnsmith.trainer.verl.transformers.server import ServerOutput


class Server:
    """Stands where a rollout server's handle is: says the next of its answers, and keeps what it was asked."""

    def __init__(self, *answers: ServerOutput) -> None:
        self.answers, self.asked = list(answers), []
        self.generate = self

    async def remote(self, **request: Any) -> ServerOutput:
        self.asked.append((request["prompt_ids"], request["sampling_params"]["max_tokens"]))
        return self.answers.pop(0)


def part(token_ids: list[int], version: int, stop_reason: str = "aborted", **more: Any) -> ServerOutput:
    log_probs = [-float(token) for token in token_ids]
    return ServerOutput(token_ids, log_probs, stop_reason, extra_fields={"global_steps": version, **more})


async def test_a_request_goes_on_after_new_weights() -> None:
    server = Server(part([], 3), part([5, 6], 3), part([7], 4, swaps=[]), part([8, 2], 5, "completed"))
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=9, stop_token_ids=(2,)), session="a")
    assert server.asked == [([1], 9), ([1], 9), ([1, 5, 6], 7), ([1, 5, 6, 7], 6)]
    assert (generation.token_ids, generation.stop_reason) == ([5, 6, 7, 8, 2], "stop")
    assert generation.log_probs == [-5.0, -6.0, -7.0, -8.0, -2.0]
    assert (generation.weights_version, generation.swaps) == (3, ((2, 4), (3, 5)))


async def test_one_that_was_broken_off_after_its_last_token_is_over() -> None:
    server = Server(part([5, 6], 3))
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=2), session="a")
    assert (generation.token_ids, generation.stop_reason) == ([5, 6], "length")


async def test_swaps_within_a_part_are_told_by_the_server() -> None:
    server = Server(part([5, 6], 3, "completed", swaps=[(1, 4)]))
    generation = await ServerPool([server]).generate([1], Sampling(max_tokens=9), session="a")
    assert (generation.weights_version, generation.swaps) == (3, ((1, 4),))
