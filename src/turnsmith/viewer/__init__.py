"""Views of a run: a report as one HTML file, and text summaries for the terminal.

Reads nothing but run folders, so it works while a run is in progress, after a crash, and on another machine.
"""

from turnsmith.viewer.report import report_html, write_report

__all__ = ["report_html", "write_report"]
