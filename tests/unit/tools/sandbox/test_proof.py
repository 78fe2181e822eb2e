"""The first sandbox of a process proves from inside that it isolates, before any program of a model runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turnsmith.errors import MissingDependency
from turnsmith.tools.sandbox import SandboxLimits, availability, check_sandbox
from turnsmith.tools.sandbox.command import command_for

WEAKENED = {
    "files of this machine are visible: /etc": ("--ro-bind", "/etc", "/etc"),
    "it does not run as nobody": (),
    "environment variables are inherited": ("--setenv", "SECRET", "1"),
}


@pytest.mark.parametrize("problem", WEAKENED)
def test_a_sandbox_that_does_not_isolate_is_refused(problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = command_for(SandboxLimits())
    first, *others = [option.replace("65534", "1000") if "nobody" in problem else option for option in command.before]
    weakened = replace(command, before=(first, *WEAKENED[problem], *others))
    monkeypatch.setattr(availability, "command_for", lambda limits: weakened)
    monkeypatch.setattr(availability, "_prove", availability._prove.__wrapped__)
    with pytest.raises(MissingDependency, match=rf"does not isolate \({problem}\)"):
        check_sandbox()


def test_only_libraries_that_python_needs_are_visible() -> None:
    mounted = command_for(SandboxLimits()).before
    assert "/usr/lib" not in mounted
    libraries = [path for path in mounted if ".so" in path and path.startswith("/usr")]
    assert any("libc.so" in path for path in libraries)
    assert len(libraries) < 100


def test_a_sandbox_that_was_killed_while_it_started_says_nothing_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = ["does not start (bwrap: no error output)", None]
    monkeypatch.setattr(availability, "_start_error", lambda: answers.pop(0))
    availability._prove.cache_clear()
    with pytest.raises(MissingDependency, match="does not start"):
        check_sandbox()
    check_sandbox()
    check_sandbox()
    assert answers == []
