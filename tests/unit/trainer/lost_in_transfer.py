"""Members of a weight transfer that are lost at random moments, in real processes over gloo:
`python -m tests.unit.trainer.lost_in_transfer FOLDER ROUNDS SIGNAL SEED SECONDS`, SIGNAL being KILL or STOP.

Two ranks of a trainer, which gather each weight together as FSDP2 does, send to three servers. In each round one of the
servers is killed in the middle, or stopped, as if its node had lost the network. The others have to end the transfer
within SECONDS, and the next one, with a new server in its place, brings every weight. Prints a line for each round.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.distributed import FileStore, ProcessGroupGloo

os.environ["VERL_PLATFORM"] = "cpu"
import verl  # noqa: F401  (its plugins load first)

from turnsmith.trainer.verl.checkpoint_engine import TorchCheckpointEngine

TRAINERS, SERVERS = 2, 3
WANTED = [("", None)] * TRAINERS + [("", True)] * SERVERS
"""Of a transfer: no error, and all weights arrived."""
WEIGHTS = 24
SIZE = 200_000


def weight(version: int, number: int) -> torch.Tensor:
    return torch.full((SIZE,), float(100 * version + number))


def gathered(group: Any, version: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The weights of a version, each from all ranks of the trainer."""
    for number in range(WEIGHTS):
        half = weight(version, number) / TRAINERS
        group.allreduce(half).wait()
        yield f"weight {number}", half


async def received(engine: TorchCheckpointEngine, version: int, how: int = 0, at: int = -1, later: float = 0) -> bool:
    """Whether all weights of a version arrived. This process is lost `later` than weight `at`, if there is one."""
    found: list[tuple[str, bool]] = []
    async for name, tensor in engine.receive_weights():
        if len(found) == at:
            threading.Timer(later, os.kill, (os.getpid(), how)).start()
        found.append((name, bool((tensor == weight(version, len(found))).all())))
    return found == [(f"weight {number}", True) for number in range(WEIGHTS)]


def member(folder: Path, rank: int, seconds: float, pipe: Connection) -> None:
    """A process of the trainer (a rank from 0), or beside a server (below 0): does what the pipe says."""
    torch.set_num_threads(1)
    os.environ["DIST_INIT_METHOD"] = f"file://{folder}/ranks"
    engine = TorchCheckpointEngine(4 * SIZE * 3, is_master=rank == 0, seconds=seconds)
    ours = ProcessGroupGloo(FileStore(f"{folder}/trainer", TRAINERS), rank, TRAINERS) if rank >= 0 else None
    while True:
        method, arguments = pipe.recv()
        try:
            if method == "send":
                answer: Any = asyncio.run(engine.send_weights(gathered(ours, *arguments)))
            elif method == "receive":
                answer = asyncio.run(received(engine, *arguments))
            else:
                answer = getattr(engine, method)(*arguments)
            pipe.send(("", answer))
        except Exception as error:  # noqa: BLE001
            pipe.send((f"{type(error).__name__}: {error}", None))


class Members:
    """All processes, and what verl's manager does with them."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.trainers = [self.start(rank) for rank in range(TRAINERS)]
        self.servers = [self.start(-1) for _ in range(SERVERS)]

    def start(self, rank: int) -> tuple[Any, Connection]:
        here, there = multiprocessing.Pipe()
        arguments = (self.folder, rank, self.seconds, there)
        process = multiprocessing.get_context("fork").Process(target=member, args=arguments, daemon=True)
        process.start()
        there.close()
        return process, here

    def ask(self, calls: list[tuple[Any, str, tuple[Any, ...]]]) -> list[tuple[str, Any]]:
        for (_, pipe), method, arguments in calls:
            pipe.send((method, arguments))
        return [self.answer(who) for who, _, _ in calls]

    def answer(self, who: tuple[Any, Connection]) -> tuple[str, Any]:
        process, pipe = who
        while not wait([pipe, process.sentinel], timeout=0.1):
            if Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return "stopped", None
        try:
            return pipe.recv()
        except EOFError:
            return "killed", None

    def meet(self) -> None:
        """One group of all, made anew if the members are others."""
        everyone = [*self.trainers, *self.servers]
        said = [answer for _, answer in self.ask([(one, "prepare", ()) for one in everyone])]
        groups = TorchCheckpointEngine.build_topology(TRAINERS, len(self.servers), said)
        arguments = [
            (theirs["rank"][place], theirs["size"][place], theirs["meeting"][place])
            for theirs in groups
            for place in range(len(theirs["rank"]))
        ]
        joined = self.ask([(one, "init_process_group", its) for one, its in zip(everyone, arguments, strict=True)])
        assert not any(error for error, _ in joined), joined

    def transfer(self, version: int, *loss: tuple[Any, ...]) -> list[tuple[str, Any]]:
        """What each says; with `loss`, the first server is lost as it says."""
        lost = [*loss, *[()] * len(self.servers)]
        return self.ask(
            [(one, "send", (version,)) for one in self.trainers]
            + [(one, "receive", (version, *its)) for one, its in zip(self.servers, lost, strict=False)]
        )


def one_round(members: Members, version: int, how: int) -> dict[str, Any]:
    """Lose a server in the middle of a transfer, then send again with another in its place."""
    random.shuffle(members.servers)  # so that any place in the group may be lost
    members.meet()
    begun = time.monotonic()
    answers = members.transfer(version, (how, random.randrange(WEIGHTS // 2), random.uniform(0, 0.02)))
    took = time.monotonic() - begun
    os.kill(members.servers[0][0].pid, signal.SIGKILL)
    members.servers[0] = members.start(-1)
    members.meet()
    again = members.transfer(version)
    errors = sorted({error for error, _ in answers} - {"", "killed", "stopped"})
    return {
        "failed": any(error for error, _ in answers),
        "seconds": round(took, 2),
        "errors": errors,
        "goes_on": again == WANTED,
        "in_words": all(error.startswith("TrainingFailure: The transfer of weights") for error in errors),
    }


def main(folder: Path, rounds: int, how: int, seed: int, time_out: float) -> None:
    random.seed(seed)
    members = Members(folder, time_out)
    members.meet()
    first = members.transfer(0)
    assert first == WANTED, first
    for version in range(1, rounds + 1):
        print(json.dumps(one_round(members, version, how)), flush=True)


if __name__ == "__main__":
    folder, rounds, how, seed, seconds = sys.argv[1:]
    main(Path(folder), int(rounds), getattr(signal, f"SIG{how}"), int(seed), float(seconds))
