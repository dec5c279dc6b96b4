"""Writes the generated parts of the reference pages: ``python docs/generate.py``.

A part stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``. `BLOCKS` names the page of
each part and the function that makes it. A unit test compares pages and code.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

sys.path.insert(0, str(Path(__file__).parent))

import api

import coopconsume.errors
from coopconsume.admin.overview.metrics import LABELS
from coopconsume.admin.views import SCHEMAS
from coopconsume.cli import main as commands
from coopconsume.cli.exit_codes import EXIT_CODES
from coopconsume.errors import AssignorError, CommitStoreError, CoopConsumeError, FencedLogError
from coopconsume.monitoring.numbers import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    JOB_GAUGES,
    PHASES,
)
from coopconsume.option_names import OPTIONS_OF_SPARK, REFUSED_SETTINGS, WITHOUT_EFFECT
from coopconsume.options import TABLE
from coopconsume.spark_versions import SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

DOCS = Path(__file__).parent
# The first that fits counts.
_FAMILIES = (FencedLogError, CommitStoreError, AssignorError, CoopConsumeError)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def _default(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def options() -> list[str]:
    """Returns the table of all options, in the order of the code."""
    rows = (
        (f"`{o.name}`", o.values.text, _default(o.default), o.doc) for o in TABLE if o.is_listed
    )
    return _table(("Option", "Values", "Default", "Meaning"), rows)


def foreign_names() -> list[str]:
    """Returns the table of names of Spark and Kafka that are refused or have no effect."""
    found = [(name, "refused", remedy) for name, remedy in OPTIONS_OF_SPARK.items()]
    found += [(f"kafka.{name}", "refused", why) for name, why in REFUSED_SETTINGS.items()]
    found += [(f"kafka.{name}", "no effect", why) for name, why in WITHOUT_EFFECT.items()]
    rows = ((f"`{name}`", result, text) for name, result, text in sorted(found))
    return _table(("Name", "Result", "Why, or what to use"), rows)


def _errors(family: type[Exception]) -> list[str]:
    kinds = [getattr(coopconsume.errors, name) for name in sorted(coopconsume.errors.__all__)]
    rows = (
        (f"`{kind.__name__}`", _bases(kind), "yes" if kind.retriable else "no", _summary(kind))
        for kind in kinds
        if next(base for base in _FAMILIES if issubclass(kind, base)) is family
    )
    return _table(("Error", "Base", "Retriable", "Meaning"), rows)


def _bases(kind: type) -> str:
    public = [base for base in kind.__mro__[1:] if base.__name__ in coopconsume.errors.__all__]
    return f"`{public[0].__name__}`" if public else ""


def _summary(kind: type) -> str:
    text = inspect.getdoc(kind) or ""
    return " ".join(text.partition("\n\n")[0].split()).replace("``", "`").replace("|", "\\|")


def exit_codes() -> list[str]:
    """Returns the table of exit codes that ``--help`` shows."""
    rows = re.findall(r"^ +(\d+) +(.*)$", EXIT_CODES, re.MULTILINE)
    return _table(("Code", "Meaning"), [(code, text[0].upper() + text[1:]) for code, text in rows])


def metrics() -> list[str]:
    """Returns the table of metrics that listeners and the exporter export."""
    of_job = (*JOB_GAUGES, PHASES, *HISTOGRAMS)
    parts = [("total", COUNTERS), ("partition", GAUGES), ("job", of_job)]
    rows = [
        (
            f"`{n.metric}`", f"`{n.field}`", n.unit, scope,
            "job, exporter" if n in LABELS else "job", n.doc,
        )
        for scope, numbers in parts
        for n in numbers
    ]  # fmt: skip
    of_jobs = {n for _, numbers in parts for n in numbers}
    rows += [
        (
            f"`{n.metric}`",
            "",
            n.unit,
            "group" if "group" in labels else "exporter",
            "exporter",
            n.doc,
        )
        for n, labels in LABELS.items()
        if n not in of_jobs
    ]
    return _table(("Metric", "Field of progress", "Unit", "Scope", "From", "Meaning"), rows)


def spark_jars() -> list[str]:
    """Returns the table of the jars by minor version of Spark."""
    rows = (
        (m.version, f"`{m.coordinates[0]}`", f"`io.delta:{m.delta}`" if m.delta else "none yet",
         f"`{m.pandas}`", m.pyarrow)
        for m in SUPPORTED
    )  # fmt: skip
    return _table(("Spark", "Kafka source", "Delta", "pandas", "pyarrow from"), rows)


def _columns(schema: pa.Schema) -> list[str]:
    return _table(("Column", "Type"), ((f"`{c.name}`", f"`{_type(c.type)}`") for c in schema))


def _type(kind: pa.DataType) -> str:
    return str(kind).replace("|", "\\|")


def _commands(command: click.Command, parent: click.Context | None = None) -> list[str]:
    """Returns the help of a command and of all commands below it, without the exit codes."""
    name = "coopconsume" if parent is None else command.name
    settings = {**command.context_settings, "terminal_width": 100}
    context = click.Context(command, parent, name, **settings)
    text = command.get_help(context).partition("\n  Exit codes:")[0].rstrip()
    lines = ["", f"## {context.command_path}", "", "```text", *text.splitlines(), "```"]
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            lines += _commands(command.commands[name], context)
    return lines if parent else [*lines, ""]


#: By name: the page below docs/, and the function that makes the lines of the table.
BLOCKS: dict[str, tuple[str, Callable[[], list[str]]]] = {
    "options": ("reference/options.md", options),
    "foreign-names": ("reference/options.md", foreign_names),
    "errors-coopconsume": ("reference/errors.md", lambda: _errors(CoopConsumeError)),
    "errors-fenced": ("reference/errors.md", lambda: _errors(FencedLogError)),
    "errors-commits": ("reference/errors.md", lambda: _errors(CommitStoreError)),
    "errors-assignors": ("reference/errors.md", lambda: _errors(AssignorError)),
    "exit-codes": ("reference/exit-codes.md", exit_codes),
    "metrics": ("reference/metrics.md", metrics),
    "spark-jars": ("reference/versions.md", spark_jars),
    "view-partitions": ("reference/sql-views.md", lambda: _columns(SCHEMAS["partitions"])),
    "view-gaps": ("reference/sql-views.md", lambda: _columns(SCHEMAS["gaps"])),
    "view-chunks": ("reference/sql-views.md", lambda: _columns(SCHEMAS["chunks"])),
    "view-decisions": ("reference/sql-views.md", lambda: _columns(SCHEMAS["decisions"])),
    "commands": ("reference/cli.md", lambda: _commands(commands)),
    **{
        f"api-{page}": (f"reference/api/{page}.md", partial(api.reference, page))
        for page in api.API
    },
}


def updated(page: str, text: str) -> str:
    """Returns the text of a page with its generated tables made new.

    Raises:
        ValueError: The page lacks the markers of one of its tables.
    """
    for name, (place, make) in BLOCKS.items():
        if place != page:
            continue
        marks = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not marks.search(text):
            raise ValueError(f"docs/{page} has no <!-- {name}:begin --> with an end")
        body = "\n".join(make()) + "\n"
        text = marks.sub(lambda found, body=body: f"{found[1]}{body}{found[2]}", text)
    return text


def main() -> None:
    """Writes all pages that have generated tables."""
    for page in sorted({page for page, _ in BLOCKS.values()}):
        path = DOCS / page
        path.write_text(updated(page, path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
