"""What every test may use. Models come from the cache, made on first use; nothing is fetched from a model hub."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import threading
from collections.abc import Generator, Iterable
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
if threading.current_thread() is threading.main_thread():
    # A shell that runs the tests in the background has Ctrl-C ignored, and then every process that they start would.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if "PYTEST_XDIST_WORKER" in os.environ:
    # Tests already run side by side; threads of torch on top of that wait for each other most of the time.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is imported while tests are collected stays to the end: millions of objects that no collection of garbage frees.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow start of verl first: then only short tests are left at the end, which all processes can share."""
    items.sort(key=lambda item: item.path.name != "test_verl_contract.py")


def pytest_collection_finish() -> None:
    """From here on garbage is collected again, without looking through all that was imported."""
    gc.enable()
    gc.freeze()
    # Not before Python exits: pytest itself collects garbage five times at its end.
    atexit.register(gc.unfreeze)


_gateways: list[Any] = []


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_newgateway(gateway: Any) -> None:
    """Remember the processes that run tests, for their exit codes."""
    from xdist.workermanage import NodeManager

    NodeManager.EXIT_TIMEOUT = 120  # xdist kills a process that takes 10 s to exit, as it may on a busy machine
    _gateways.append(gateway)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Fail if a process that ran tests crashed at its exit, which xdist does not look at."""
    yield
    for gateway in _gateways:
        if code := gateway._io.popen.wait(timeout=10):
            print(f"\n{gateway.id}, a process of the tests, ended with exit code {code} after its last test.")
            session.exitstatus = session.exitstatus or pytest.ExitCode.INTERNAL_ERROR


MAY_SKIP = (
    "TURNSMITH_CHAOS_SEED is not set",
    "only x86_64 has",
    "this machine has no such call",
    "the five documents are not here",
)
"""Reasons that nothing which is installed or who runs the tests could change."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where nothing may be skipped, as every night, a skipped test fails: a green night must mean that it ran."""
    report = yield
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
    if report.skipped and "TURNSMITH_NO_SKIPS" in os.environ and not any(known in reason for known in MAY_SKIP):
        report.outcome, report.longrepr = "failed", f"{reason}; TURNSMITH_NO_SKIPS is set, so this test has to run."
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, Iterable[pytest.Collector], list[pytest.Collector]]:
    """Doctests are looked for in the package, not in the tests and the files beside them."""
    return [each for each in (yield) if not isinstance(each, DoctestModule)]


@pytest.fixture(scope="session")
def tiny_folder() -> str:
    """Folder of the tiny random model."""
    from turnsmith.inference.models import resolve

    return resolve("tiny")


@pytest.fixture(scope="session")
def smollm2_folder() -> str:
    """Folder of SmolLM2-135M-Instruct."""
    from turnsmith.inference.models import resolve

    return resolve("smollm2")
