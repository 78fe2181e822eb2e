"""Formulas become MathML when the site is built, so that a browser draws them by itself: no script, no network.

`pymdownx.arithmatex` finds what is between dollars; this extension of Python-Markdown turns it from LaTeX into MathML.
A formula that it cannot read stops the build.
"""

from __future__ import annotations

import re
from html import unescape
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.postprocessors import Postprocessor
from math_core import LatexToMathML

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)
_converter = LatexToMathML(annotation=True)
"""With the LaTeX as an annotation, which readers do not see and copying keeps."""


class _ToMathML(Postprocessor):
    def run(self, text: str) -> str:
        return _FORMULA.sub(_mathml, text)


class MathMLExtension(Extension):
    """Converts each formula of a page."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (Python-Markdown's name)
        """Run after everything else, when the formulas are in the page's HTML."""
        md.postprocessors.register(_ToMathML(md), "mathml", -1)


def makeExtension(**settings: Any) -> MathMLExtension:  # noqa: N802 (Python-Markdown's name)
    """Called by Python-Markdown."""
    return MathMLExtension(**settings)


def _mathml(found: re.Match[str]) -> str:
    return _converter.convert_with_local_state(unescape(found[2]).strip(), displaystyle=found[1] == "div")
