"""Draws terminal.svg: the live view of a real run, as it stood after its last step or after an earlier one.

Run: python docs/images/terminal.py runs/<name> "<the run's header line>" [steps]
"""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

from rich.console import Console

from turnsmith import RunFolder
from turnsmith.trainer.display import Panel


def main(folder: str, header: str, steps: str = "") -> None:
    """Feed the run's metrics and its own clock to the view, and keep the picture."""
    run = RunFolder.open(folder)
    records = run.read_metrics()
    shown = records[: int(steps)] if steps else records
    panel = Panel(len(records), header)
    for record in shown:
        panel.add_step(record)
    synced = [event["time"] for event in run.read_events() if event.get("content") == "sync_weights"]
    panel._began = json.loads((run.path / "run.json").read_text())["created"]
    panel._ended = synced[len(shown) - 1]
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    console.print(panel)
    picture = console.export_svg(title="turnsmith", unique_id="turnsmith")
    # Fonts from elsewhere would be fetched by whoever looks at the page.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"
    Path(__file__).with_name("terminal.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
