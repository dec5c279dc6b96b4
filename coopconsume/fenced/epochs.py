"""Where an owner's fence epoch comes from: from the log alone, or from a registry's claim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from coopconsume.fenced.log import LogId


class EpochSource(Protocol):
    """Gives an owner its epoch, and knows whether it still owns the log.

    Safety does not rest on it, but on the ``open`` records of the log itself: it decides who
    ought to have the log, and keeps those away who ought not.
    """

    def next_epoch(self, log: LogId, last: int) -> int:
        """The epoch to open a log under.

        It is asked after all earlier owners were fenced and the log was read to its end, and again
        if the log has gone on meanwhile.

        Args:
            log: The log.
            last: The highest epoch in it; 0 if none.

        Returns:
            A number above ``last``.

        Raises:
            ProducerFenced: The log belongs to another one.
        """

    def join(self, log: LogId) -> None:
        """Checks that this writer may write beside others.

        A writer with shared access calls it after it has read the log to its end. An exclusive
        owner that takes the log after this call opens it behind that end, where the writer sees it.

        Args:
            log: The log.

        Raises:
            ProducerFenced, ProducerBusy: It may not.
        """

    def check(self, log: LogId, epoch: int) -> None:
        """Look whether the log still belongs to this owner, before it reconnects.

        Args:
            log: The log.
            epoch: The owner's epoch.

        Raises:
            ProducerFenced: It does not.
        """


class LogEpochs:
    """The source without a registry: the last one to acquire a log owns it."""

    def next_epoch(self, log: LogId, last: int) -> int:
        """The number after the last one in the log."""
        del log
        return last + 1

    def join(self, log: LogId) -> None:
        """Without a registry everybody may write beside others."""

    def check(self, log: LogId, epoch: int) -> None:
        """Nobody but the log says who owns it."""
