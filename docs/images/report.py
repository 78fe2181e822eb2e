"""Draws report.png: the top of the report of a real run, in a browser, with the pointer over a curve.

Needs `pip install playwright` and a Chromium. Run: python docs/images/report.py runs/<name> [path of Chromium]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from turnsmith.viewer import write_report


def main(run: str, chromium: str | None = None) -> None:
    """Write the report, open it, and keep the picture."""
    page_file = write_report(run, Path(tempfile.mkdtemp()) / "report.html")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1010})
        page.goto(page_file.as_uri())
        page.locator("svg.chart").first.hover(position={"x": 130, "y": 60})
        page.screenshot(path=Path(__file__).with_name("report.png"))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
