"""Makes the table of machines with GPUs in docs/running-on-a-cluster.md from what their owners report.

`python -m docs.hooks.gpu_machines FILE...` adds reports: each a `check.json` of `turnsmith check --machine`, or the
text of an issue that has one. Without a file it only writes the table again.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "gpu_machines"
PAGE = FOLDER.parents[1] / "running-on-a-cluster.md"
BEGIN, END = "<!-- gpu_machines: begin -->\n", "<!-- gpu_machines: end -->\n"
NONE = "No GPU machine has been reported yet.\n"
_HEAD = """\
| GPUs | driver, CUDA | versions | run | checks | engine and trainer, in roundings of the dtype |
| --- | --- | --- | --- | --- | --- |
"""
_PACKAGES = ("turnsmith", "verl", "torch", "vllm", "transformers")


def read_report(text: str) -> dict[str, Any]:
    """The JSON of a report, which an issue may surround with its own text.

    Raises:
        ValueError: There is none, or it is of another check or of a machine without GPUs.
    """
    report = json.loads(text[text.index("{") : text.rindex("}") + 1])
    if not {"machine", "settings", "checks"} <= report.keys():
        raise ValueError("this is no check.json of `turnsmith check --machine`")
    if not report["machine"]["gpus"]:
        raise ValueError("the machine of this report has no GPU")
    return report


def row(report: Mapping[str, Any]) -> str:
    """A report as a row of the table."""
    machine, settings, spreads = report["machine"], report["settings"], report.get("log_probs") or {}
    names: list[str] = machine["gpus"]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in _PACKAGES if name in machine["versions"])
    model, ray = settings["model"], settings["ray"]
    layout = f"{model['model_name']}, {ray['num_nodes']} x {ray['gpus_per_node']} GPUs"
    layout += f", tensor parallel {model['tensor_parallel_size']}" if model["tensor_parallel_size"] > 1 else ""
    by_status: dict[str, list[str]] = {}
    for check in report["checks"]:
        by_status.setdefault(check["status"], []).append(check["code"])
    checks = f"{len(by_status.get('passed', []))} passed"
    for status in ("failed", "warning", "skipped"):
        checks += f"; {status}: {', '.join(by_status[status])}" if status in by_status else ""
    cells = [
        gpus,
        f"{machine.get('driver') or '?'}, {machine.get('cuda') or '?'}",
        versions,
        layout,
        checks,
        _times(spreads),
    ]
    return "| " + " | ".join(re.sub(r"[|\n<>`\[\]]", " ", cell) for cell in cells) + " |\n"


def _times(spreads: Mapping[str, Mapping[str, float]]) -> str:
    """How far engine and trainer were apart in the worst run, as a multiple of what the dtype alone moves."""
    runs = [spread for name, spread in spreads.items() if name != "rounding"]
    if not runs or "rounding" not in spreads:
        return "not measured"
    worst = max(run[name] / spreads["rounding"][name] for run in runs for name in ("mean", "q90"))
    return f"{worst:.2f}, over {sum(run['tokens'] for run in runs)} tokens"


def table(reports: Sequence[Mapping[str, Any]]) -> str:
    """The table, or a sentence that says that there is no report."""
    return _HEAD + "".join(map(row, reports)) if reports else NONE


def page(text: str, folder: Path = FOLDER) -> str:
    """The page with the table of the reports in a folder."""
    before, _, rest = text.partition(BEGIN)
    reports = [read_report(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    return f"{before}{BEGIN}\n{table(reports)}\n{END}{rest.partition(END)[2]}"


def main(files: Sequence[str], folder: Path = FOLDER, written: Path = PAGE) -> None:
    """Add the reports in these files, and write the table."""
    folder.mkdir(exist_ok=True)
    for name in files:
        report = read_report(Path(name).read_text(encoding="utf-8"))
        number = 1 + max((int(file.stem) for file in folder.glob("*.json")), default=0)
        (folder / f"{number:04}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    written.write_text(page(written.read_text(encoding="utf-8"), folder), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
