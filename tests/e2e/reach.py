"""Who could reach the processes of a run."""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

_ANY_WORKER = ("ray::IDLE", "ray::TaskRunner", "ray::TransformersServer", "ray::EpisodeWorker")
"""Workers of Ray that have no ports but Ray's."""


def listening_to_others() -> list[str]:
    """The processes under this one that listen on an address which other machines can reach."""
    return [
        f"{process.name()}: {connection.laddr.ip}:{connection.laddr.port}"
        for process in psutil.Process().children(recursive=True)
        for connection in _listeners(process)
        if not _is_loopback(connection.laddr.ip)
    ]


def _listeners(process: psutil.Process) -> list[Any]:
    try:
        return [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
    except psutil.Error:  # it has ended in the meantime
        return []


def _is_loopback(text: str) -> bool:
    address = ipaddress.ip_address(text)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def reachable_by_others(*folders: Path) -> dict[str, Any]:
    """Every port, socket and file of the processes under this one, and the files in `folders`, whoever may use them."""
    targets: dict[str, set[Any]] = {"listeners": set(), "ports": set(), "sockets": set(), "files": set()}
    for process in psutil.Process().children(recursive=True):
        if _listeners(process) and process.name() not in _ANY_WORKER:
            targets["listeners"].add(process.name().removeprefix("ray::"))
        targets["ports"] |= {("127.0.0.1", one.laddr.port) for one in _listeners(process)}
        with suppress(psutil.Error):
            targets["sockets"] |= {one.laddr for one in process.net_connections("unix") if one.laddr}
            targets["files"] |= {one.path for one in process.open_files() if not one.path.startswith("/proc")}
        targets["files"].add(f"/proc/{process.pid}/environ")
    for folder in folders:
        targets["files"] |= {str(path) for path in folder.rglob("*") if path.is_file()}
    return {name: sorted(found) for name, found in targets.items()}


def pickle_for_transfer_queue(proof: Path) -> list[bytes]:
    """A message to TransferQueue that makes the process which unpacks it create the file `proof`."""
    from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType

    body = {"storage_manager_type": _Touch(proof)}
    return ZMQMessage.create(request_type=ZMQRequestType.HANDSHAKE, sender_id="other", body=body).serialize()


class _Touch:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)
