"""Makes sure that what a real-time slot has read is of the topics that its run knows.

A consumer of librdkafka reads a topic by its name. It reads on at its old offset once the topic was
deleted and created again, and does not say so. A topic never gets an earlier id back: if it has
its id after a read, the records were of that topic.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from concurrent.futures import wait
from typing import TYPE_CHECKING, Any, Final

from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.librdkafka import client_config
from coopconsume.worker.realtime.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future

log = logging.getLogger(__name__)

#: Seconds of one look.
_LOOK: Final = 1.0


class TopicCheck:
    """Compares the ids of topics with those that a run knows.

    Attributes:
        next_at: When the next look may begin, on the monotonic clock: after a pause that is as long
            as the last look.

    Args:
        kafka: Settings by Kafka's names.
        ids: The ids by name, as Kafka's own text; a topic without one is not checked.
    """

    def __init__(self, kafka: Mapping[str, str], ids: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._ids = {name: topic_id for name, topic_id in ids.items() if topic_id}
        self._admin: Any = None
        self._begun_at = 0.0
        #: The descriptions that are awaited, by topic; None: no look is under way.
        self._awaited: dict[str, Future[Any]] | None = None
        self.next_at = 0.0

    @property
    def is_looking(self) -> bool:
        """Whether a look is under way, or its result was not asked for."""
        return self._awaited is not None

    def forget(self) -> None:
        """Ends the look that is under way."""
        self._awaited = None

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._admin = None

    def look(self, topics: Iterable[str]) -> None:
        """Begins a look at some topics."""
        from confluent_kafka import TopicCollection

        self._begun_at, self._awaited = time.monotonic(), {}
        names = [name for name in topics if name in self._ids]
        if not names:
            return
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            config = client_config(self._kafka) | {"log_level": 3, "error_cb": _heard}
            self._admin = AdminClient(config)
        self._admin.poll(0.0)
        found = self._admin.describe_topics(TopicCollection(names), request_timeout=_LOOK)
        for described in found.values():
            described.add_done_callback(self._ended)
        self._awaited = found

    def _ended(self, _described: Future[Any]) -> None:
        now = time.monotonic()
        self.next_at = now + min(_LOOK, now - self._begun_at)

    def confirmed(self, timeout: float) -> bool | None:
        """Returns whether all topics of the look had their ids after it began.

        Args:
            timeout: Seconds to wait for its end.

        Returns:
            None: the look is under way. False: it is not known for now, as no broker answers, or as
            one has no such topic.

        Raises:
            ReadFailed: One has another id.
        """
        from confluent_kafka import KafkaException

        assert self._awaited is not None
        if wait(self._awaited.values(), timeout).not_done:
            return None
        found, self._awaited = self._awaited, None
        for name, described in found.items():
            try:
                topic_id = _text(described.result().topic_id)
            except KafkaException as error:
                log.debug("the id of topic %s is not known for now: %s", name, error)
                return False
            if is_other_topic(self._ids[name], topic_id):
                raise ReadFailed(
                    f"topic {name} was deleted and created again: its id is {topic_id}, and not "
                    f"{self._ids[name]}"
                )
        return True


def _text(topic_id: Any) -> str:
    """Returns an id of librdkafka in the text form of other clients; empty without one."""
    data = base64.b64decode(f"{topic_id}==")
    return str(uuid.UUID(bytes=data)) if any(data) else ""


def _heard(error: Any) -> None:
    log.debug("a slot's look at topic ids: %s", error)
