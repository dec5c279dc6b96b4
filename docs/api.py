"""Writes the reference of the API from docstrings, as Markdown."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The names on each page of the API, in order. A module stands for its public names.
API: dict[str, tuple[str, ...]] = {
    "admin": (
        "coopconsume.Admin",
        "coopconsume.diagnose",
        "coopconsume.doctor.Diagnosis",
        "coopconsume.doctor.Check",
        "coopconsume.admin.offsets.OffsetAdmin",
        "coopconsume.admin.offsets.PartitionStatus",
        "coopconsume.admin.offsets.status.Blocker",
        "coopconsume.kafka.blocker_records.BlockerRecord",
        "coopconsume.admin.offsets.status.Gap",
        "coopconsume.admin.offsets.status.Times",
        "coopconsume.admin.offsets.moves.Move",
        "coopconsume.admin.offsets.moves.Kept",
        "coopconsume.admin.dead_letters.actions.DeadLetters",
        "coopconsume.admin.place_choice.PlaceChoice",
        "coopconsume.admin.dead_letters.choice.Choice",
        "coopconsume.admin.dead_letters.stored.Letter",
        "coopconsume.admin.dead_letters.choice.Steps",
        "coopconsume.admin.records.actions.RecordAdmin",
        "coopconsume.admin.records.actions.FailedRecord",
        "coopconsume.admin.records.actions.RecordChoice",
        "coopconsume.admin.records.actions.RecordSteps",
        "coopconsume.runtime.decisions.Decision",
        "coopconsume.runtime.decided_by.DecidedBy",
        "coopconsume.admin.overview",
        "coopconsume.admin.overview.reader.GroupReader",
        "coopconsume.admin.overview.reader.GroupReading",
        "coopconsume.kafka.parked_keys.BehindParked",
        "coopconsume.kafka.retention.ExpiringOffsets",
        "coopconsume.admin.exporter.Exporter",
        "coopconsume.ui.page.LivePage",
        "coopconsume.admin.views",
        "coopconsume.admin.sql_source",
        "coopconsume.admin.pictures",
    ),
    "assignors": (
        "assignors.MAX_KEY_HASH",
        "assignors.Coverage",
        "assignors.KeyRange",
        "assignors.KeyRangeAssignor",
        "assignors.Member",
        "assignors.RangeKeyRangeAssignor",
        "assignors.RoundRobinKeyRangeAssignor",
        "assignors.Share",
        "assignors.StickyCost",
        "assignors.StickyKeyRangeAssignor",
        "assignors.coverage",
        "assignors.key_hash",
        "assignors.merge",
        "assignors.offset_hash",
        "assignors.sticky_cost",
    ),
    "commits": (
        "coopconsume.CommitStore",
        "commits.CommitOptions",
        "commits.GrantOptions",
        "commits.EpochOptions",
        "coopconsume.OffsetRanges",
        "coopconsume.PartitionCommits",
        "coopconsume.CommitResult",
        "commits.Epoch",
        "commits.Pending",
        "commits.Doubt",
        "commits.StableOffset",
        "commits.Assignment",
        "commits.AcquireRequest",
        "commits.Wanted",
        "commits.Acquisition",
        "commits.AcquisitionId",
        "commits.AcquisitionWatch",
        "commits.TableCheck",
        "commits.TableRepair",
        "commits.check_table",
        "commits.repair_table",
        "commits.move_table",
    ),
    "consumer": (
        "coopconsume.CooperativeConsumer",
        "coopconsume.query.CooperativeForeach",
        "coopconsume.CooperativeQuery",
        "coopconsume.Record",
        "coopconsume.State",
        "coopconsume.committed_state",
        "coopconsume.RetryPolicy",
        "coopconsume.Retry",
        "coopconsume.Reject",
        "coopconsume.SchemaRegistryDecoder",
        "coopconsume.DecoderFactory",
        "coopconsume.RebalanceListener",
        "coopconsume.Options",
        "coopconsume.set_shareable",
        "coopconsume.current_slot",
        "coopconsume.SlotContext",
        "coopconsume.ConcurrencyLimit",
        "coopconsume.CircuitBreaker",
        "coopconsume.CircuitOpen",
        "coopconsume.RecordLogFilter",
        "coopconsume.HandlerLine",
    ),
    "errors": ("coopconsume.errors",),
    "fenced": (
        "coopconsume.fenced.FencedWriter",
        "coopconsume.fenced.MultiLogWriter",
        "coopconsume.fenced.LogReader",
        "coopconsume.fenced.Write",
        "coopconsume.fenced.Consumed",
        "coopconsume.fenced.Appended",
        "coopconsume.fenced.WriterConfig",
        "coopconsume.fenced.LogId",
        "coopconsume.fenced.LogRecord",
        "coopconsume.fenced.Entry",
        "coopconsume.fenced.Loaded",
        "coopconsume.sinks.FencedDeltaSink",
        "coopconsume.sinks.FencedKafkaSink",
        "coopconsume.fenced.Audit",
        "coopconsume.fenced.auditing.Term",
        "coopconsume.fenced.auditing.AuditFinding",
        "coopconsume.fenced.MultiAudit",
        "coopconsume.fenced.EpochSource",
        "coopconsume.fenced.accepted",
        "coopconsume.fenced.read_log",
        "coopconsume.fenced.bulk_load",
        "coopconsume.fenced.audit",
        "coopconsume.fenced.repair",
        "coopconsume.fenced.audit_logs",
    ),
    "monitoring": (
        "coopconsume.monitoring",
        "coopconsume.monitoring.listener.Progress",
    ),
    "outputs": (
        "coopconsume.committed_rows",
        "coopconsume.create_committed_rows_view",
    ),
    "ownership": (
        "coopconsume.fenced.ExclusiveProducer",
        "coopconsume.fenced.LeaderElection",
        "coopconsume.fenced.Leader",
        "coopconsume.fenced.ownership",
    ),
    "queue": (
        "coopconsume.QueueConsumer",
        "coopconsume.AsyncQueueConsumer",
        "coopconsume.AcknowledgeType",
        "coopconsume.queue.QueueCommit",
        "coopconsume.queue.QueueReplica",
        "coopconsume.queue.inspection.queue_status",
        "coopconsume.queue.inspection.QueueStatus",
        "coopconsume.queue.inspection.QueuePartition",
        "coopconsume.queue.inspection.HoldStatus",
        "coopconsume.queue.inspection.ReplicaStatus",
    ),
    "testing": (
        "coopconsume.testing.run_handler",
        "coopconsume.testing.recorded",
        "coopconsume.testing.Fault",
        "coopconsume.testing.HandlerRun",
        "coopconsume.LocalKafka",
        "coopconsume.local_session",
        "coopconsume.testing.Recorder",
        "coopconsume.testing.read_history",
        "coopconsume.testing.check",
        "coopconsume.testing.Kill",
        "coopconsume.testing.Verdict",
        "coopconsume.testing.history.Finding",
        "coopconsume.testing.history.Witness",
        "coopconsume.testing.history.History",
        "coopconsume.testing.history.Call",
        "coopconsume.testing.history.Seen",
        "coopconsume.testing.history.Disturbance",
        "coopconsume.testing.history.Deletion",
        "coopconsume.testing.history.CorruptHistory",
    ),
}
_PACKAGES = ("assignors", "commits", "coopconsume")
#: Public by name, but called by the library alone.
_INTERNAL = {"State.left", "State.pass_on", "CircuitBreaker.begin", "CircuitBreaker.end"}
_SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples):")
_ENTRY = re.compile(r"(\*{0,2}[\w.]+|`{1,2}[^`]+`{1,2}): (.*)")


def reference(page: str) -> list[str]:
    """Returns the lines of a page of the API: its classes and functions, with their docstrings."""
    lines: list[str] = []
    for path in API[page]:
        for name, found in _objects(path):
            lines += ["", f"## {name.rpartition('.')[2]}", "", *_described(name, found)]
    return [*lines, ""]


def names(page: str) -> set[str]:
    """Returns the last parts of the names that a page describes."""
    return {name.rpartition(".")[2] for path in API[page] for name, _ in _objects(path)}


def _objects(path: str) -> Iterator[tuple[str, Any]]:
    """Yields the object at a path, or the public ones of a module, with their names."""
    found = _found(path)
    if not isinstance(found, ModuleType):
        yield path, found
        return
    own = [
        name
        for name, one in vars(found).items()
        if not name.startswith("_") and getattr(one, "__module__", "") == path
    ]
    for name in getattr(found, "__all__", own):
        yield f"{path}.{name}", getattr(found, name)


def _found(path: str) -> Any:
    owner, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(owner), name)
    except (AttributeError, ValueError):
        return importlib.import_module(path)


def _described(name: str, found: Any) -> list[str]:
    if not callable(found):
        return [f"`{name}` = `{found!r}`"]
    is_error = inspect.isclass(found) and issubclass(found, BaseException)
    lines = [f"`{name}{'' if is_error or _is_enum(found) else _signature(found)}`", ""]
    is_own = inspect.isroutine(found) or "__doc__" in vars(found)
    lines += _text(inspect.getdoc(found) if is_own else None)
    if _is_enum(found) and "Attributes:" not in lines:
        lines += ["", "Values: " + ", ".join(f"`{value}`" for value in found.__members__) + "."]
    if inspect.isclass(found):
        for member, value in _members(found):
            lines += ["", f"**`{member}{_signature_of_member(value)}`**", ""]
            lines += _text(inspect.getdoc(value))
    return lines


def _is_enum(found: Any) -> bool:
    return inspect.isclass(found) and issubclass(found, enum.Enum)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties of a class and of our bases, in their order."""
    seen: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] not in _PACKAGES:
            continue
        for name, value in vars(base).items():
            is_hidden = name.startswith("_") or f"{kind.__name__}.{name}" in _INTERNAL
            if name in seen or is_hidden or not _is_member(value):
                continue
            seen.add(name)
            yield name, value


def _is_member(value: Any) -> bool:
    kinds = (property, classmethod, staticmethod)
    return (isinstance(value, kinds) or inspect.isfunction(value)) and bool(inspect.getdoc(value))


def _signature_of_member(value: Any) -> str:
    if isinstance(value, property):
        return ""
    if isinstance(value, classmethod | staticmethod):
        return _signature(value.__func__, bound=isinstance(value, classmethod))
    return _signature(value, bound=True)


def _signature(function: Any, *, bound: bool = False) -> str:
    """Returns the parameters with their defaults; types are in the descriptions."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return ""
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()][bound:]
    shown = signature.replace(parameters=parameters, return_annotation=signature.empty)
    return re.sub(r" at 0x[0-9a-f]+", "", str(shown))


def _text(doc: str | None) -> list[str]:
    """Returns a docstring in Google's style as Markdown; sections become lists."""
    lines: list[str] = []
    section = ""
    for line in (doc or "").splitlines():
        heading = _SECTION.fullmatch(line)
        if heading:
            section = heading[1]
            lines += [f"{section}:", ""]
        elif section and not line.startswith("    ") and line:
            section = ""
            lines.append(line)
        else:
            lines.append(_in_section(section, line) if section else line)
    return lines


def _in_section(section: str, line: str) -> str:
    entry = _ENTRY.fullmatch(line[4:])
    if section in ("Returns", "Yields") or not entry or line.startswith("     "):
        return line[4:] if section in ("Returns", "Yields") else f"  {line[4:].lstrip()}".rstrip()
    return f"- `{entry[1].strip('`')}`: {entry[2]}"
