"""Calls of the user's rebalance listener."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from assignors import KeyRange
    from commits.model import TopicPartition
    from coopconsume.group.callbacks import RebalanceListener

log = logging.getLogger(__name__)

#: Seconds between two looks whether a listener has returned.
_LISTENER_PAUSE = 0.05


class ListenerCalls:
    """Calls a rebalance listener, and knows whether it was notified of key ranges that are held.

    Args:
        lock: Is held while the assignment changes.
        leaving: Is set when the consumer leaves: then nobody waits for a call any more.
    """

    def __init__(self, lock: AbstractContextManager[object], leaving: threading.Event) -> None:
        self._lock = lock
        self._leaving = leaving
        self._listener: RebalanceListener | None = None
        self._is_announced = self._is_closed = False

    def attach(self, listener: RebalanceListener | None) -> None:
        """Calls this listener from now on; None: calls nobody."""
        self._listener = listener

    def notify(
        self,
        what: str,
        ranges: Mapping[TopicPartition, Sequence[KeyRange]],
        *,
        goes_on: bool = False,
    ) -> None:
        """Calls the listener, and waits until it returns or somebody leaves the group.

        A listener that closes its consumer waits for the group's threads; they do not wait for it.

        Args:
            what: The name of its method.
            ranges: The key ranges that it is about.
            goes_on: Whether the member has others that it goes on with.
        """
        with self._lock:
            if self._listener is None or self._leaving.is_set() or self._is_closed:
                return
            self._is_announced = goes_on or what == "on_assigned"
        call = threading.Thread(
            target=self.call, args=(what, ranges), name="coopconsume-listener", daemon=True
        )
        call.start()
        while call.is_alive() and not self._leaving.is_set():
            call.join(_LISTENER_PAUSE)

    def close(self) -> bool:
        """Notifies of nothing any more.

        Returns:
            Whether the listener knows of key ranges that are not revoked: its last call is due. It
            is false when repeated.
        """
        with self._lock:
            is_due = self._is_announced and not self._is_closed
            self._is_closed = True
        return is_due

    def call(self, what: str, ranges: Mapping[TopicPartition, Sequence[KeyRange]]) -> None:
        """Calls the listener in this thread, whatever it was notified of; logs its errors."""
        try:
            getattr(self._listener, what)(ranges)
        except Exception:
            log.exception("the rebalance listener failed in %s", what)
