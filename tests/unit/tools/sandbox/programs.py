"""What the conformance checks run in the sandbox: the programs of attempts.txt, and forbidden system calls."""

from __future__ import annotations

import re
from pathlib import Path

HEAD = """
import os, sys
def refused(attempt, *errors):
    try:
        got = attempt()
    except (errors or (OSError,)) as error:
        print("held:", type(error).__name__, error)
    else:
        print("ESCAPED", repr(got)[:200])
"""


def read_attempts() -> dict[str, str]:
    """The programs of attempts.txt by their names."""
    text = Path(__file__).with_name("attempts.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)+)", text, re.MULTILINE))


ATTEMPTS = read_attempts()

# Name: its number on x86_64 and on aarch64. -1: there is none.
FORBIDDEN: dict[str, tuple[int, int]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "capset": (126, 91),
    "chown": (92, -1),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "execveat": (322, 281),
    "fanotify_init": (300, 262),
    "fork": (57, -1),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_uring_enter": (426, 426),
    "io_uring_setup": (425, 425),
    "ioperm": (173, -1),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "memfd_create": (319, 279),
    "mknodat": (259, 33),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pivot_root": (155, 41),
    "prctl": (157, 167),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "seccomp": (317, 277),
    "semget": (64, 190),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setresuid": (117, 147),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "socket": (41, 198),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, -1),
    "vmsplice": (278, 75),
}
