"""What a seam is, and what the checks share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

CPU, UNCHOSEN = "cpu", ""


@dataclass(frozen=True)
class Seam:
    """One thing that must hold in verl."""

    check: Callable[[], None]
    """Raises if it does not hold; its docstring says in words what should."""
    relied_on_by: str
    platform: str

    def answer(self) -> str:
        """Empty if the seam holds, else the sentence."""
        try:
            self.check()
        except Exception as error:
            found = str(error).splitlines()[0] if isinstance(error, AssertionError) else repr(error)
            return f"verl moved: {self.check.__doc__} ({found}). {self.relied_on_by} relies on it."
        return ""


SEAMS: dict[str, Seam] = {}
LOADED_BY_VERL: set[str] = set()
"""The modules that `import verl` alone had loaded."""


def seam(relied_on_by: str, platform: str = CPU) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(check: Callable[[], None]) -> Callable[[], None]:
        SEAMS[check.__name__] = Seam(check, relied_on_by, platform)
        return check

    return add


def same(found: Any, wanted: Any) -> None:
    assert found == wanted, f"found {found}, wanted {wanted}"


def holds(condition: bool) -> None:
    assert condition, "it does not hold"


def parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]
