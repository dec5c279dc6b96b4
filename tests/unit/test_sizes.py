"""The sizes of classes, modules, functions, constructors and calls, and what still exceeds them.

The lists of exceptions only get shorter: an entry that fits by now has to go, and none grows.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parents[2]
#: The most methods of a class, lines of a module and of a function, parameters of a constructor
#: outside plain data, and arguments of a call without their names.
LIMITS: Final = {"class": 30, "module": 500, "function": 60, "constructor": 8, "call": 5}
#: Statements of the product that are not formatted: lists whose lines mean something.
NOT_FORMATTED: Final = 312
#: Functions with any number of arguments.
VARIADIC: Final = {
    *("zip", "pack", "selectExpr", "status_frame", "_columns"),
    *("info", "warning", "makeRecord"),
}
#: What exceeds them, and by how much it may.
EXCEPTIONS: Final[dict[str, dict[str, int]]] = {
    "class": {},
    "module": {},
    "function": {},
    # Public: each argument is a setting of the user's, which programs give by its name.
    "constructor": {
        "coopconsume.fenced.election.LeaderElection": 9,
        "coopconsume.testing.local.broker.LocalKafka": 9,
    },
    # Most make plain data for each record, row or message, where names cost time.
    "call": {
        "commits.fold.CommitResult": 6,
        "commits.snapshot.Acquisition": 7,
        "commits.snapshot.GrantState": 10,
        "commits.snapshot.PartitionState": 6,
        "coopconsume.admin.offsets.status.Blocker": 12,
        "coopconsume.admin.offsets.status.cls": 10,
        "coopconsume.admin.overview.collect.GroupSummary": 8,
        "coopconsume.admin.overview.collect.read_statuses": 6,
        "coopconsume.admin.overview.verdict.Condition": 10,
        "coopconsume.admin.records.actions.Decision": 7,
        "coopconsume.admin.records.actions.FailedRecord": 11,
        "coopconsume.fenced.kafka_engine.OpenTransaction": 7,
        "coopconsume.fenced.log.OffsetMismatch": 6,
        "coopconsume.fenced.reader.Head": 11,
        "coopconsume.fenced.session.Stamp": 9,
        "coopconsume.fenced.stamp.Stamp": 9,
        "coopconsume.query.JobSpec": 7,
        "coopconsume.queue.consumer.Record": 8,
        "coopconsume.queue.inspection.ReplicaStatus": 8,
        "coopconsume.queue.requests.ReplicaRow": 6,
        "coopconsume.queue.rows.ReplicaRow": 13,
        "coopconsume.runtime.plan.waiting_record.cls": 7,
        "coopconsume.runtime.poll.answers.DeadLetter": 12,
        "coopconsume.worker.async_runner.settle": 6,
        "coopconsume.worker.channel.messages.CallPlace": 6,
        "coopconsume.worker.channel.messages.DeadLetter": 13,
        "coopconsume.worker.channel.messages.Failure": 8,
        "coopconsume.worker.frame_runner.Record": 8,
        "coopconsume.worker.handler_lines.cls": 6,
        "coopconsume.worker.outcome.DeadLetter": 8,
        "coopconsume.worker.outcome.Failure": 8,
        "coopconsume.worker.realtime.fetch_messages.Ask": 7,
        "coopconsume.worker.realtime.fetch_messages.Portion": 6,
        "coopconsume.worker.realtime.fetch_server.cls": 10,
        "coopconsume.worker.realtime.fetch_state.Ask": 6,
        "coopconsume.worker.realtime.record_cache.Portion": 6,
        "coopconsume.worker.realtime.record_cache._Chunk": 8,
        "coopconsume.worker.realtime.value_reader.Portion": 6,
        "coopconsume.worker.row_records.InputRow": 7,
    },
}


@cache
def _sizes() -> tuple[tuple[str, str, int], ...]:
    return tuple(_measured())


def _measured() -> Iterator[tuple[str, str, int]]:
    """Yields kind, name and size of all that has a limit."""
    for file, source in _sources().items():
        module = str(file.relative_to(ROOT)).removesuffix(".py").replace("/", ".")
        yield "module", module, len(source.splitlines())
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield "function", f"{module}.{node.name}", node.end_lineno - node.lineno + 1
            if isinstance(node, ast.ClassDef):
                yield from _measured_of_class(f"{module}.{node.name}", node)
            if isinstance(node, ast.Call) and (called := _called(node)) not in VARIADIC:
                yield "call", f"{module}.{called}", len(node.args)


@cache
def _sources() -> dict[Path, str]:
    packages = ("assignors", "commits", "coopconsume")
    files = [file for package in packages for file in sorted((ROOT / package).rglob("*.py"))]
    return {file: file.read_text("utf-8") for file in files}


def _called(call: ast.Call) -> str:
    """Returns the name of what is called, without where it is."""
    return ast.unparse(call.func).rpartition(".")[2]


def _measured_of_class(name: str, node: ast.ClassDef) -> Iterator[tuple[str, str, int]]:
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    # The overloads of a method are its types.
    yield "class", name, sum(not _is_overload(one) for one in methods)
    for method in methods:
        if method.name == "__init__":
            arguments = method.args
            yield "constructor", name, len(arguments.args) + len(arguments.kwonlyargs) - 1


def _is_overload(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "overload" for one in method.decorator_list)


@pytest.mark.parametrize("kind", LIMITS)
def test_what_is_new_fits_and_what_does_not_fit_does_not_grow(kind: str) -> None:
    """Of several functions of one name in a module the largest counts."""
    found: dict[str, int] = {}
    for of, name, size in _sizes():
        if of == kind and size > LIMITS[kind]:
            found[name] = max(size, found.get(name, 0))
    allowed = EXCEPTIONS[kind]
    grown = {name: size for name, size in found.items() if size > allowed.get(name, LIMITS[kind])}
    assert not grown, f"more than {LIMITS[kind]}, or more than before: divide them"
    assert not allowed.keys() - found.keys(), "these fit by now: remove them from the list"


def test_what_is_not_formatted_becomes_less() -> None:
    """A list whose lines mean something may stay as it is written; a call may not."""
    found = sum(source.count("# fmt: skip") for source in _sources().values())
    assert found <= NOT_FORMATTED, "format them, or name the arguments"
    assert found == NOT_FORMATTED, "there are fewer by now: lower the number"
