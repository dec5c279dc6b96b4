"""Sources of fence epochs: the log itself, or a claim in a registry."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coopconsume.fenced.log import LogId


class EpochSource:
    """Gives an owner its epoch; without a registry, the last one to acquire a log owns it.

    A subclass decides who may have the log. Safety does not depend on it, but on the ``open``
    records of the log.
    """

    def next_epoch(self, log: LogId, last: int) -> int:
        """Returns the epoch to open a log under.

        It is called after all earlier owners were fenced and the log was read to its end, and again
        if the log has grown meanwhile.

        Args:
            log: The log.
            last: The highest epoch in it; 0 if none.

        Returns:
            A number above ``last``.

        Raises:
            ProducerFenced: The log belongs to another owner.
        """
        del log
        return last + 1

    def join(self, log: LogId) -> None:
        """Checks that this writer may write beside others.

        A writer with shared access calls it after it has read the log to its end. An exclusive
        owner that takes the log after this call opens it behind that end, where the writer sees it.

        Raises:
            ProducerFenced, ProducerBusy: It may not.
        """

    def check(self, log: LogId, epoch: int) -> None:
        """Checks that the log still belongs to the owner with an epoch, before it reconnects.

        Raises:
            ProducerFenced: It does not.
        """
