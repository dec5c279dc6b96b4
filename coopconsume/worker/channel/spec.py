"""Where a task finds the channel to its driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.worker.host_locks import WorkersFile

#: Usual seconds between two progressive reports of a slot.
REPORT_EVERY = 0.2


@dataclass(frozen=True)
class ChannelSpec:
    """The channel of a job, as every task of a batch gets it.

    Attributes:
        host: Name or address of the driver, as workers reach it.
        port: Where the driver listens.
        secret: Random bytes that only the job knows; both sides prove that they know it.
        lease: Seconds after the last renewal in which a slot may start records.
        report_every: Usual seconds between two progressive reports of a slot; the driver may
            want one up to half of it earlier or later.
        workers: What the tasks of the member lock, see `coopconsume.worker.host_locks`.
    """

    host: str
    port: int
    secret: bytes = field(repr=False)
    lease: float
    report_every: float = REPORT_EVERY
    workers: WorkersFile | None = None
