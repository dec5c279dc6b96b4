"""For how long a member's work may go on after the death of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.classic import is_classic
from coopconsume.group.owned import LEASE, STARTS_WITHIN
from coopconsume.group.settings import lease_of, life_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from coopconsume.options import Options


class WorkLife:
    """The time for which the next owners of a member's shares wait if its process dies.

    The leases of its slots move it, and whether slots end their processes without their driver.

    Args:
        options: Of the consumer.
        spark: The session that runs the slots; None: they start at once.
    """

    def __init__(self, options: Options, spark: SparkSession | None) -> None:
        self._options = options
        starts_within = 0.0 if spark is None or is_classic(spark) else STARTS_WITHIN
        longest = max(options.batch_time + LEASE + starts_within, lease_of(options))
        self._unleased_ms = int(1000 * (longest + options.handler_timeout))
        #: Of the slots; None: they have none. And whether they end without their driver.
        self._lease: float | None = None
        self._fails_stop = False

    def work_under_leases(self, lease: float | None) -> None:
        """Sets the seconds after the last renewal in which slots start records.

        What they have started then has ``leaseGrace``, or with a claim ``handlerTimeout``. None:
        slots have no leases, and a batch may go on for its whole life.
        """
        self._lease = lease

    def end_with_driver(self) -> None:
        """Notes that slots end their processes when nothing is heard of their driver."""
        self._fails_stop = True

    @property
    def ms(self) -> int:
        """The same time in milliseconds, as a join or a claim says it."""
        if self._lease is None:
            return self._unleased_ms
        if self._fails_stop:
            return int(1000 * life_of(self._options, self._lease))
        return int(1000 * (self._lease + self._options.handler_timeout))
