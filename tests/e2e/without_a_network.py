"""Run a command in a network of its own that leads nowhere, and print every packet it sends out: `python ... COMMAND`.

Needs root. Besides loopback there is one interface, with a default route and a name server behind it that never answer;
whatever a process sends anywhere arrives there.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

IP = "/usr/sbin/ip" if Path("/usr/sbin/ip").exists() else "ip"


def main(command: list[str]) -> int:
    if os.environ.get("TURNSMITH_TEST_IN_NAMESPACE") != "1":
        again = ["unshare", "--net", "--mount", sys.executable, __file__, *command]
        return subprocess.run(again, env=os.environ | {"TURNSMITH_TEST_IN_NAMESPACE": "1"}, check=False).returncode
    for line in (
        "link set lo up",
        "link add out0 type veth peer name nowhere0",
        "link set nowhere0 up",
        "addr add 10.99.0.1/24 dev out0",
        "link set out0 up",
        "route add default via 10.99.0.2",
        # Packets leave at once, without waiting for an answer to "who has 10.99.0.2?".
        "neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev out0",
        "neigh add 10.99.0.53 lladdr 02:00:00:00:00:53 dev out0",
    ):
        subprocess.run([IP, *line.split()], check=True)
    with tempfile.NamedTemporaryFile("w") as names:
        names.write("nameserver 10.99.0.53\noptions timeout:1 attempts:1\n")
        names.flush()
        subprocess.run(["mount", "--bind", names.name, os.path.realpath("/etc/resolv.conf")], check=True)
        packets: list[str] = []
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        listener.bind(("nowhere0", 0x0800))
        threading.Thread(target=_collect, args=(listener, packets), daemon=True).start()
        code = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    json.dump({"code": code, "packets": packets}, sys.stdout)
    return 0


def _collect(listener: socket.socket, packets: list[str]) -> None:
    while True:
        data = listener.recv(2048)
        readable = "".join(chr(byte) if 32 < byte < 127 else "." for byte in data[28:])
        packets.append(f"to {socket.inet_ntoa(data[16:20])}: {readable[:80]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
