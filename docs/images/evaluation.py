"""Draws evaluation.svg: what `turnsmith eval` shows at the end of a real evaluation.

Run: python docs/images/evaluation.py runs/<name> "<the header line>" [runs/<the one it was compared with>]
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from turnsmith import RunFolder
from turnsmith.cli.eval_view import summary_table
from turnsmith.rollout.evaluation.result import EvaluationResult


def main(folder: str, header: str, earlier: str = "") -> None:
    """Read the evaluation back from its run folder, and keep the picture of its table."""
    result = EvaluationResult.read(folder)
    (record,) = RunFolder.open(folder).read_metrics()
    result.seconds = record["time/evaluate"]
    comparison = result.compare(EvaluationResult.read(earlier)) if earlier else None
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True, highlight=False)
    console.print(Text(header))
    console.print(summary_table(result, comparison, earlier))
    picture = console.export_svg(title="turnsmith eval", unique_id="turnsmith-eval")
    # Fonts from elsewhere would be fetched by whoever looks at the page.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    picture = "\n".join(line.rstrip() for line in picture.splitlines()) + "\n"
    Path(__file__).with_name("evaluation.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
