"""Settings of the documentation site; ``make docs`` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sphinx.util.nodes import make_refnode

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "coopconsume"
author = "the authors of coopconsume"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
html_theme = "furo"
html_title = "coopconsume"
html_copy_source = False

myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
default_role = "literal"

# Several classes have a `topic`; napoleon takes some attributes for types.
suppress_warnings = ["ref.python"]
# Names outside of this project (the site is built without a network), and names of types.
nitpick_ignore_regex = [
    ("py:class", r"Engine|Visibility|Range|Place|TopicPartition"),
    ("py:class", r"Records|Results|Expected|Offsets|LastSeqs|LetterStatus|commits\.fold\.LogState"),
    ("py:class", r"[a-z_ ]+"),  # Attributes that napoleon treats as types.
    (
        "py:.*",
        r"(kafka|pyspark|pyarrow|pa|np|numpy|NDArray|datetime|subprocess|collections)\b.*",
    ),
]


def _add_contents(_: Sphinx, page: str, source: list[str]) -> None:
    """Turns the list of links of an index page into its hidden table of contents."""
    if page.rpartition("/")[2] == "index":
        pages = re.findall(r"^- \[[^\]]*\]\(([\w./-]+)\.md\)", source[0], re.MULTILINE)
        lines = ["", "", "```{toctree}", ":hidden:", "", *pages, "```", ""]
        source[0] += "\n".join(lines)


def _separate_first_line(
    _app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Keeps napoleon from taking the start of a property's docstring for its type."""
    if what in ("property", "attribute") and lines:
        lines[0] = f": {lines[0]}"  # A type is expected before the colon.


def _resolve_by_last_name(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.reference | None:
    """Resolves a name without its module, as docstrings use it, if one documented object fits."""
    last = str(node.get("reftarget", "")).rpartition(".")[2]
    objects = env.domains.python_domain.objects
    found = {entry.node_id: entry for name, entry in objects.items() if name.endswith(f".{last}")}
    if node.get("refdomain") != "py" or len(found) != 1:
        return None
    (entry,) = found.values()
    page = node["refdoc"]
    return make_refnode(app.builder, page, entry.docname, entry.node_id, content)


def setup(app: Sphinx) -> None:
    """Connects the events of a build."""
    app.connect("source-read", _add_contents)
    app.connect("autodoc-process-docstring", _separate_first_line, priority=400)
    app.connect("missing-reference", _resolve_by_last_name)
