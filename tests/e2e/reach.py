"""Who could reach the processes of a run."""

from __future__ import annotations

import ipaddress
from typing import Any

import psutil


def listening_to_others() -> list[str]:
    """The processes under this one that listen on an address which other machines can reach.

    But for the ranks: torch's meeting point for them is on every address, whatever it is told (torch 2.13). The threat
    model names it among what is not defended.
    """
    return [
        f"{process.name()}: {connection.laddr.ip}:{connection.laddr.port}"
        for process in psutil.Process().children(recursive=True)
        for connection in _listeners(process)
        if not process.name().startswith("ray::WorkerDict")
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
