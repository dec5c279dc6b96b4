"""Returns what a consumer has read once a later look has found its topics to be those of the run.

A look at a topic takes longer the more partitions it has, as the answer names all of them. So looks
take half of the time at most; meanwhile the consumer's own threads fetch what is read next.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from commits.model import TopicPartition
    from coopconsume.worker.realtime.fetch_messages import Portion
    from coopconsume.worker.realtime.reader import ConsumedMessage
    from coopconsume.worker.realtime.topic_check import TopicCheck


@dataclass
class Fetched:
    """The result of one poll.

    Attributes:
        records: By ascending offsets in each partition.
        ends: The ends that were reached, by partition: everything below was returned.
        portions: What a fetch server has returned.
    """

    records: Sequence[ConsumedMessage] = ()
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    portions: Sequence[Portion] = ()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.records or self.ends or self.portions)


class ConfirmedReads:
    """The reads of a consumer, each with a look at its topics that began after it.

    Args:
        read: Returns the next records of a consumer, given the seconds to wait for the first one,
            and how many records there may be.
        topics: Looks at the ids of topics.
    """

    def __init__(self, read: Callable[[float, int], Fetched], topics: TopicCheck) -> None:
        self._read = read
        self._topics = topics
        self._unconfirmed = Fetched()

    def forget(self) -> None:
        """Forgets what was read and is not returned yet."""
        self._unconfirmed = Fetched()
        self._topics.forget()

    def poll(self, timeout: float, most: int) -> Fetched:
        """Returns the next confirmed records, as soon as there are any.

        Args:
            timeout: Seconds to wait for them.
            most: Records at most.

        Raises:
            ReadFailed: The consumer cannot continue, or a topic is another one.
        """
        until = time.monotonic() + timeout
        while True:
            if self._topics.is_looking:
                if self._topics.confirmed(max(0.0, until - time.monotonic())):
                    found, self._unconfirmed = self._unconfirmed, Fetched()
                    return found
            elif (pause := self._topics.next_at - time.monotonic()) > 0:
                time.sleep(max(0.0, min(pause, until - time.monotonic())))
            else:
                left = max(0.0, until - time.monotonic())
                self._unconfirmed = self._unconfirmed or self._read(left, most)
                if self._unconfirmed:
                    self._topics.look(_topics_of(self._unconfirmed))
                    continue
            if time.monotonic() >= until:
                return Fetched()


def _topics_of(fetched: Fetched) -> set[str]:
    topics = {message.topic() or "" for message in fetched.records}
    return topics | {topic for topic, _ in fetched.ends}
