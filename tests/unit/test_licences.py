"""Every package in the locks has a licence on record that we may depend on."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "locks"


@pytest.fixture(scope="module")
def licences() -> dict[str, Any]:
    sys.path.insert(0, str(FOLDER))
    try:
        return runpy.run_path(str(FOLDER / "licences.py"))
    finally:
        sys.path.remove(str(FOLDER))


def test_every_locked_package_has_a_licence_that_is_allowed(licences: dict[str, Any]) -> None:
    assert licences["faults"](licences["read_table"]()) == [], "run locks/licences.py"


def test_the_table_has_nothing_else_and_says_where_each_package_is_locked(licences: dict[str, Any]) -> None:
    listed = {(row["name"], row["version"]): row["locks"].split() for row in licences["read_table"]()}
    assert listed == licences["locked"]()


@pytest.mark.parametrize(
    ("licence", "is_allowed"),
    [
        ("MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("AGPL-3.0-only", False),
        ("MIT AND GPL-3.0-or-later", False),
        ("LicenseRef-Proprietary", False),
        ("", False),
    ],
)
def test_a_licence_that_is_not_allowed_is_found(licences: dict[str, Any], licence: str, is_allowed: bool) -> None:
    rows = [row | ({"licence": licence} if row["name"] == "numpy" else {}) for row in licences["read_table"]()]
    found = licences["faults"](rows)
    assert bool(found) is not is_allowed
    assert all(one.startswith("numpy ") for one in found)


def test_a_package_without_an_entry_is_found(licences: dict[str, Any]) -> None:
    rows = [row for row in licences["read_table"]() if row["name"] != "torch"]
    assert {one.split()[0] for one in licences["faults"](rows)} == {"torch"}


def test_every_exception_is_needed(licences: dict[str, Any]) -> None:
    for name in [*licences["EXCEPTIONS"]]:
        reason = licences["EXCEPTIONS"].pop(name)
        assert licences["faults"](licences["read_table"]()), f"no package needs the exception {name}"
        licences["EXCEPTIONS"][name] = reason


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: other", "MIT OR Apache-2.0"),
        ("License: Apache 2.0", "Apache-2.0"),
        ("License: MIT License\n        \n        Copyright somebody", "MIT"),
        ("License: see below\nClassifier: License :: OSI Approved :: BSD License", "LicenseRef-BSD"),
        ("Classifier: License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0"),
        ("License: UNKNOWN", ""),
    ],
)
def test_what_packages_say_is_read(licences: dict[str, Any], metadata: str, licence: str) -> None:
    assert licences["licence_of"](licences["HeaderParser"]().parsestr(metadata)) == licence
