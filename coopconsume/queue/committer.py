"""Commits the acknowledgements of a queue's consumer, and writes the dead letters of rejections."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coopconsume.errors import OutputNotWritten
from coopconsume.queue.acknowledge_type import ACCEPT, REJECT, RELEASE, RENEW, AcknowledgeType
from coopconsume.queue.held_records import HeldRecords, places_of

if TYPE_CHECKING:
    from coopconsume.queue.acknowledgements import Settled
    from coopconsume.queue.session import QueueSession
    from coopconsume.queue.settings import QueueSettings
    from coopconsume.sinks.base import DeadLetterSink


class QueueCommitter:
    """The acknowledgements that were started and have no result yet.

    `commit` starts those of the held records and waits. What has no result in time stays, and the
    next call waits for it, too.

    Args:
        settings: The settings of the queue.
        held: The held records.
    """

    def __init__(self, settings: QueueSettings, held: HeldRecords) -> None:
        self._settings = settings
        self._held = held
        self._unsettled: list[Settled] = []

    def commit(
        self, session: QueueSession, letters: DeadLetterSink | None, topic_id: str, timeout: float
    ) -> list[Settled]:
        """Write the acknowledgements, and wait until a majority of the replicas counts them.

        Args:
            session: The session with the replicas.
            letters: Where dead letters go; None: rejected records are released.
            topic_id: The id of the topic of the records.
            timeout: The seconds to wait.

        Returns:
            All acknowledgements that have their results now.

        Raises:
            OutputNotWritten: Dead letters could not be written; their records stay held. The next
                call returns the results of all other acknowledgements.
            QueueUnavailable: No majority answers.
        """
        if letters is None:
            self._held.release_rejected()
        self._settle(session, ACCEPT, RELEASE, RENEW)
        problem: OutputNotWritten | None = None
        try:
            self._confirm_rejected(session, timeout)
            if letters is not None:
                self._write_letters(session, letters, topic_id)
            self._settle(session, REJECT)
        except OutputNotWritten as error:
            problem = error
        session.wait(self._unsettled, timeout)
        if problem is not None:
            raise problem
        settled, self._unsettled = self._unsettled, []
        for one in settled:
            if one.row.kind == "renew":
                self._held.renewed(one)
        return settled

    def _settle(self, session: QueueSession, *kinds: AcknowledgeType) -> None:
        """Start the acknowledgements of some kinds."""
        for (kind, delay), offsets in self._held.take(kinds).items():
            self._unsettled.append(session.settle(kind.value, offsets, delay))

    def _confirm_rejected(self, session: QueueSession, timeout: float) -> None:
        """Hold rejected records for longer if their holds have ended, or may end soon.

        A record that another consumer has by now gets no dead letter.
        """
        ending = self._held.rejected_until(time.monotonic() + self._settings.hold / 2)
        if ending:
            settled = session.settle("renew", ending)
            session.wait([settled], timeout)
            self._held.renewed(settled)
            self._held.do_not_count(places_of(settled.refused))

    def _write_letters(self, session: QueueSession, letters: DeadLetterSink, topic_id: str) -> None:
        rejected = self._held.rejected()
        if rejected:
            from coopconsume.worker.report import DeadLetter

            found = [
                DeadLetter(
                    record.topic,
                    record.partition,
                    offset=record.offset,
                    key=record.key,
                    value=record.value,
                    timestamp=record.timestamp,
                    headers=record.headers,
                    attempts=record.attempt,
                    reason=reason,
                    trace="",
                )
                for record, reason in rejected
            ]
            letters.append(found, {self._settings.topic: topic_id}, session.member.holder)
