"""The requests of one consumer to the replicas: their numbers, rows and answer times. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from coopconsume.queue.rows import ReplicaRow
from coopconsume.queue.timing import QuorumLimit

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coopconsume.queue.replica_set import ReplicaSet
    from coopconsume.queue.rows import Beginning, Kind, Offsets


_KEPT_SENT = 1_000


class AppendRow(NamedTuple):
    """An instruction: append a row to the log of a replica. It may be lost or repeated.

    Attributes:
        replica: The number of the replica, from 0.
        row: The row.
    """

    replica: int
    row: ReplicaRow


class Requests:
    """Numbers the requests of a consumer, writes their rows, and measures how long answers take.

    `new_number` moves the number, `send` and `answered` move what waits for its answer and, with
    it, the quorum time limit.

    Args:
        holder: The unique id of the consumer.
        hold: The duration of a hold in seconds.
        replicas: The replicas.

    Attributes:
        number: The number of the last request.
        limit: The quorum time limit.
    """

    def __init__(self, holder: str, hold: float, replicas: ReplicaSet) -> None:
        self.number = 0
        self.limit = QuorumLimit(hold)
        self._holder = holder
        self._hold = hold
        self._replicas = replicas
        #: When the row of a request was first sent to a replica.
        self._sent: dict[tuple[int, int], float] = {}

    @property
    def repeat_after(self) -> float:
        """The seconds after which a row without an answer is sent again."""
        return max(4 * self.limit.seconds, self._hold / 20)

    def new_number(self) -> int:
        """Return the number of a new request."""
        self.number += 1
        return self.number

    def row(
        self,
        kind: Kind,
        request: int,
        offsets: Offsets,
        seconds: float = 0.0,
        *,
        delivered: bool = False,
        beginnings: Mapping[int, Beginning] | None = None,
    ) -> ReplicaRow:
        """Return a row about offsets of the logs that the consumer works on."""
        logs = {p: self._replicas.log(p) for p in offsets}
        topic_id = next((log.topic_id for log in logs.values()), "")
        cuts = {p: log.cut for p, log in logs.items() if log.cut}
        return ReplicaRow(
            kind, self._holder, request, offsets, seconds, delivered,
            topic_id=topic_id, cuts=cuts, beginnings=beginnings or {},
        )  # fmt: skip

    def send(self, replica: int, row: ReplicaRow, now: float) -> AppendRow:
        """Send a row whose answer is waited for."""
        if len(self._sent) >= _KEPT_SENT:
            del self._sent[next(iter(self._sent))]
        self._sent.setdefault((replica, row.request), now)
        return AppendRow(replica, row)

    def send_to_all(self, row: ReplicaRow, now: float) -> list[AppendRow]:
        """Send a row whose answers are waited for to each replica."""
        return [self.send(replica, row, now) for replica in range(len(self._replicas.states))]

    def append_to_all(self, row: ReplicaRow) -> list[AppendRow]:
        """Append a row to each replica; nobody waits for answers."""
        return [AppendRow(replica, row) for replica in range(len(self._replicas.states))]

    def answered(self, replica: int, request: int, now: float) -> None:
        """Measure the time of an answer, if it is the first one of a replica to a request."""
        sent = self._sent.pop((replica, request), None)
        if sent is not None:
            self.limit.answered(now - sent)
