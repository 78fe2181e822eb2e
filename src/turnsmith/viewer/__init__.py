"""Shows runs: a report as one HTML file, and summaries in a terminal.

Reads run folders and nothing else: it works while a run goes on, after it died, and on another machine.
"""

from turnsmith.viewer.report import report_html, write_report

__all__ = ["report_html", "write_report"]
