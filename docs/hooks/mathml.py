"""Formulas become MathML when the site is built, so that a browser draws them by itself: no script, no network.

`pymdownx.arithmatex` finds what is between dollars; this turns it from LaTeX into MathML. A formula that it cannot read
stops the build.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_converter = LatexToMathML(annotation=True)
"""With the LaTeX as an annotation, which readers do not see and copying keeps."""


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by mkdocs with the HTML of each page."""

    def to_mathml(found: re.Match[str]) -> str:
        latex = unescape(found[2]).strip()
        try:
            return _converter.convert_with_local_state(latex, displaystyle=found[1] == "div")
        except LatexError as error:
            raise PluginError(f"{page.file.src_path}: this formula cannot be read: {latex}\n{error}") from error

    return _FORMULA.sub(to_mathml, html)
