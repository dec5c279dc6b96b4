"""The lost slots of a query of the demo, as a file that its checks read.

The job writes a line before it plans the slot's records again. So each repeat of them starts later.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from coopconsume.testing.history import Disturbance, Kill, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Committed = dict[tuple[str, int], list[tuple[int, int]]]


@dataclass(frozen=True)
class LostSlot:
    """A slot whose worker ended before the slot did, or that never reported.

    Attributes:
        slot: Its number.
        pid: The process id of its worker; 0: it is not known.
        reason: What happened, in words.
        at_ns: When the job knew, as ``time.monotonic_ns()``.
        until_ns: Until when handlers of it may run; ``at_ns`` if its worker has ended.
        committed: The offsets that the commit log counted as committed at ``at_ns``.
    """

    slot: int
    pid: int
    reason: str
    at_ns: int
    until_ns: int
    committed: Committed

    @property
    def has_ended(self) -> bool:
        """Whether its worker has ended."""
        return self.until_ns == self.at_ns

    def line(self) -> str:
        """Returns it as a line of JSON."""
        offsets = [[*place, pairs] for place, pairs in self.committed.items()]
        return json.dumps(asdict(self) | {"committed": offsets}) + "\n"

    @classmethod
    def parse(cls, line: str) -> LostSlot:
        """Parses the result of `line`."""
        values = json.loads(line)
        committed = {
            (topic, partition): [(first, last) for first, last in pairs]
            for topic, partition, pairs in values.pop("committed")
        }
        return cls(**values, committed=committed)


class LostSlotWriter(logging.Handler):
    """Writes lost slots to a file, by the job's log lines about them.

    Args:
        path: The file.
        committed: Returns what the commit log counts as committed now.
    """

    def __init__(self, path: str, committed: Callable[[], Committed]) -> None:
        super().__init__()
        self._path = path
        self._committed = committed

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a lost slot; called in the thread that plans its records again afterwards."""
        facts = getattr(record, "lostSlot", None)
        if facts is None:
            return
        try:
            committed, at_ns = self._committed(), time.monotonic_ns()
            until_ns = at_ns + int(1e9 * facts["mayRunFor"])
            lost = LostSlot(
                facts["slot"], facts["pid"], facts["reason"], at_ns, until_ns, committed
            )
            with Path(self._path).open("a") as file:
                file.write(lost.line())
        except Exception:  # noqa: BLE001 - without the fact the checks do not excuse the repeats
            self.handleError(record)


def read_lost_slots(path: str) -> list[LostSlot]:
    """Returns the lost slots in a file; a last line that a kill has cut off does not count."""
    file = Path(path)
    if not file.exists():
        return []
    lines = file.read_text().splitlines(keepends=True)
    return [LostSlot.parse(line) for line in lines if line.endswith("\n")]


def excuses(lost: Sequence[LostSlot]) -> tuple[list[Kill], Seen]:
    """Returns what lost slots excuse, for the checker: repeats of what was not committed then."""
    ended = [Kill(one.at_ns, one.committed, frozenset({one.pid})) for one in lost if one.has_ended]
    disturbances = [
        Disturbance(one.at_ns, one.until_ns, frozenset({one.pid}))
        for one in lost
        if one.pid and not one.has_ended
    ]
    return ended, Seen(disturbances, [(one.at_ns, one.committed) for one in lost])
