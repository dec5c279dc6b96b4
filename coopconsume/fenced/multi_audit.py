"""Audit of appends over several logs: each is in all of its logs, or in none."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from coopconsume.fenced.deadline import Deadline
from coopconsume.fenced.engines import open_engine
from coopconsume.fenced.multi import LOGS_HEADER
from coopconsume.fenced.settings import Settings
from coopconsume.fenced.view import LogView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coopconsume.fenced.engine import Engine
    from coopconsume.fenced.multi import LogName


@dataclass(frozen=True)
class MultiAudit:
    """What the logs have of appends over several logs.

    Attributes:
        whole: Number of appends that are in all of their logs that were looked at.
        torn: Ids of appends that are in some of their logs only, or with other record counts.
        unknown: Number of appends whose part may have been below a log's first offset now.
    """

    whole: int
    torn: tuple[str, ...]
    unknown: int

    @property
    def ok(self) -> bool:
        """Whether no append is torn."""
        return not self.torn


@dataclass
class _Found:
    """What was found of one append: the counts that its records name, and those in the logs."""

    named: Counter[str] = field(default_factory=Counter)
    there: dict[str, int] = field(default_factory=dict)


def audit_logs(
    options: Mapping[str, Any],
    logs: Iterable[LogName],
    *,
    engine: str | Engine = "kafka-python",
    timeout: float = 30.0,
) -> MultiAudit:
    """Reads logs from their start to their end, and compares the parts of each append over several.

    Its memory grows with the number of such appends.

    Args:
        options: As for `FencedWriter`.
        logs: The logs; parts of appends in other logs are not looked at.
        engine: As for `FencedWriter`.
        timeout: Seconds to wait for an answer, above 0.

    Raises:
        LogBlocked, LogReplaced, LogCorrupt, LogTruncated, LogUnavailable: As for `LogReader.read`.
        OptionError, EngineNotUsable: As for `FencedWriter`.
    """
    settings = Settings.parse(options)
    client = open_engine(engine, settings, timeout)
    views = [LogView(client, topic, partition) for topic, partition in logs]
    found: dict[str, _Found] = {}
    starts: dict[str, int] = {}
    try:
        for view in views:
            with view.reporting("reading"):
                starts[str(view.log)] = _begin(view, client)
                _read(view, found, timeout)
        begun = list(found)
        # What was written meanwhile may be missing in a log that was read before.
        for view in views:
            with view.reporting("reading"):
                _read(view, found, timeout)
    finally:
        client.close()
    return _compared({batch_id: found[batch_id] for batch_id in begun}, starts)


def _begin(view: LogView, client: Engine) -> int:
    view.identify()
    start = client.start(view.log.topic, view.log.partition)
    view.begin_at(start)
    return start


def _read(view: LogView, found: dict[str, _Found], timeout: float) -> None:
    deadline = Deadline(timeout)
    for rows in view.counted(view.decided_end(deadline), deadline):
        stamp = view.fold.stamp
        header = rows[0].headers[1] if len(rows[0].headers) > 1 else ("", b"")
        if stamp is None or header[0] != LOGS_HEADER:
            continue
        append = found.setdefault(stamp.batch, _Found())
        for part in header[1].decode(errors="replace").split(","):
            log, _, count = part.rpartition(":")
            append.named[log] = int(count) if count.isdecimal() else -1
        append.there[str(view.log)] = stamp.n if stamp.kind == "data" else 0


def _compared(found: Mapping[str, _Found], starts: Mapping[str, int]) -> MultiAudit:
    whole, unknown, torn = 0, 0, []
    for batch_id, append in found.items():
        wanted = {log: count for log, count in append.named.items() if log in starts}
        if append.there == wanted:
            whole += 1
        elif any(starts[log] for log in wanted.keys() - append.there.keys()):
            unknown += 1
        else:
            torn.append(batch_id)
    return MultiAudit(whole, tuple(torn), unknown)
