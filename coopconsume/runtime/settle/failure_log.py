"""Logs records that failed, for people who look at the output of a job."""

from __future__ import annotations

import logging
import math
import re
import time
from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from coopconsume.record import shown_key
from coopconsume.texts import tries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds between two lines about one type of error.
_EVERY = 10.0
#: Failed records that are remembered, so that each is logged once; and types of errors.
_MOST_RECORDS = 10_000
_MOST_KINDS = 1_000
_KIND = re.compile(r"\w+", re.ASCII)


@dataclass
class _Kind:
    """What was logged of one type of error."""

    logged_at: float = -math.inf
    left_out: int = 0
    #: The traceback for the next line; none once it was logged.
    trace: str | None = ""


class FailureLog:
    """Logs the first failure of a record, and that it was given up, as warnings.

    Of each type of error and outcome at most one line is written in ten seconds; the next line says
    how many were left out. The traceback of a type is logged once, with the first line if any
    failure in its report has one.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[tuple[str, int, int], None] = OrderedDict()
        self._kinds: OrderedDict[tuple[str, str], _Kind] = OrderedDict()

    def take(self, report: SlotReport, names: Sequence[tuple[str, int]]) -> None:
        """Logs the failed records of a report.

        Args:
            report: What a slot has reported; each report once.
            names: Topic and partition, by part.
        """
        failures = [
            (names[part], one)
            for part, outcome in report.partitions.items()
            for one in chain(outcome.failed, outcome.retrying)
        ]
        parked = set()
        for (topic, partition), one in sorted(failures, key=lambda failure: not failure[1].trace):
            at = topic, partition, one.offset
            if one.delay == math.inf:
                parked.add(at)
                then = f"parked after attempt {one.attempts}"
                self._log(
                    "parked",
                    at,
                    key=one.key,
                    error=one.error,
                    then=then,
                    attempt=one.attempts,
                    trace=one.trace,
                )
            elif self._is_first(at):
                then = f"{tries(one.attempts)}, next in {one.delay:.3g} s"
                self._log(
                    "retry",
                    at,
                    key=one.key,
                    error=one.error,
                    then=then,
                    attempt=one.attempts,
                    trace=one.trace,
                )
        for letter in report.dead:
            at = letter.topic, letter.partition, letter.offset
            if at not in parked:
                then = f"dead-lettered after attempt {letter.attempts}"
                self._log(
                    "dead",
                    at,
                    key=letter.dealt_by,
                    error=letter.reason,
                    then=then,
                    attempt=letter.attempts,
                    trace=letter.trace,
                )

    def _is_first(self, at: tuple[str, int, int]) -> bool:
        if at in self._known:
            return False
        self._known[at] = None
        if len(self._known) > _MOST_RECORDS:
            self._known.popitem(last=False)
        return True

    def _log(
        self,
        outcome: str,
        at: tuple[str, int, int],
        key: bytes | None,
        error: str,
        then: str,
        attempt: int,
        trace: str,
    ) -> None:
        # The text of Retry and Reject is the handler's own, and has no type in front.
        name = error.partition(":")[0]
        name = name if _KIND.fullmatch(name) else ""
        kind = self._kinds.setdefault((outcome, name), _Kind())
        if len(self._kinds) > _MOST_KINDS:
            self._kinds.popitem(last=False)
        if kind.trace == "":
            kind.trace = trace
        now = self._clock()
        if now - kind.logged_at < _EVERY:
            kind.left_out += 1
            return
        topic, partition, offset = at
        shown = shown_key(key)
        more = f"; {kind.left_out:,} more like it since the last line" if kind.left_out else ""
        text = f"{topic}-{partition}@{offset} key={shown}: {error} ({then}){more}"
        if kind.trace:
            text += f"\n{kind.trace.rstrip()}"
            kind.trace = None
        facts = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "key": shown,
            "error": error,
            "attempt": attempt,
            "outcome": outcome,
            "leftOut": kind.left_out,
        }
        kind.logged_at, kind.left_out = now, 0
        log.warning("%s", text, extra={"failure": facts})
