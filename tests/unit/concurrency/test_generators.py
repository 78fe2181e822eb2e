"""Torch's default generator, as an environment seeds it and draws from it."""

from __future__ import annotations

import torch

from turnsmith.concurrency.generators import Generators, enter, install, leave


def drawn(generators: Generators, seed: int | None = None) -> tuple[list[float], int]:
    token = enter(generators)
    try:
        if seed is not None:
            torch.manual_seed(seed)
        return torch.rand(3).tolist(), torch.initial_seed()
    finally:
        leave(token)


def of_torch(seed: int) -> list[float]:
    return torch.rand(3, generator=torch.Generator().manual_seed(seed)).tolist()


def test_an_environment_that_seeds_torch_seeds_its_own_generator() -> None:
    install()
    before, one, other = torch.get_rng_state(), Generators(1), Generators(2)
    assert drawn(one, seed=5) == (of_torch(5), 5)
    assert drawn(other) == (of_torch(2), 2), "as if it had been seeded with the episode's seed"
    assert drawn(one)[0] != of_torch(5), "it goes on where it was"
    assert torch.equal(torch.get_rng_state(), before), "that of the process is another"
