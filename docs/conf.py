"""Settings of the documentation site; ``make docs`` builds it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "coopconsume"
author = "the authors of coopconsume"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "coopconsume"
html_copy_source = False

myst_heading_anchors = 3


def _add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """Turns the list of links of an index page into its hidden table of contents."""
    if page.rpartition("/")[2] == "index":
        pages = re.findall(r"^- \[[^\]]*\]\(([\w./-]+)\.md\)", source[0], re.MULTILINE)
        lines = ["", "", "```{toctree}", ":hidden:", "", *pages, "```", ""]
        source[0] += "\n".join(lines)


def setup(app: Sphinx) -> None:
    """Connects the event of a build."""
    app.connect("source-read", _add_contents)
