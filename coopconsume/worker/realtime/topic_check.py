"""Makes sure that what a real-time slot has read is of the topics that its run knows.

A consumer of librdkafka reads a topic by its name. It reads on at its old offset once the topic was
deleted and created again, and does not say so. A topic never gets an earlier id back: if it has
its id after a read, the records were of that topic.
"""

from __future__ import annotations

import base64
import logging
import uuid
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, Final

from coopconsume.kafka.identity import is_other_topic
from coopconsume.kafka.librdkafka import client_config
from coopconsume.worker.realtime.errors import ReadFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

log = logging.getLogger(__name__)

#: Seconds of one look.
_LOOK: Final = 1.0


class TopicCheck:
    """Compares the ids of topics with those that a run knows.

    Args:
        kafka: Settings by Kafka's names.
        ids: The ids by name, as Kafka's own text; a topic without one is not checked.
    """

    def __init__(self, kafka: Mapping[str, str], ids: Mapping[str, str]) -> None:
        self._kafka = kafka
        self._ids = {name: topic_id for name, topic_id in ids.items() if topic_id}
        self._admin: Any = None

    def close(self) -> None:
        """Closes the connections to the brokers."""
        self._admin = None

    def confirm(self, topics: Iterable[str]) -> bool:
        """Returns whether all topics had their ids after this call began.

        Returns:
            False: it is not known for now, as no broker answers, or as one has no such topic.

        Raises:
            ReadFailed: One has another id.
        """
        from confluent_kafka import KafkaException, TopicCollection

        names = [name for name in topics if name in self._ids]
        if not names:
            return True
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            config = client_config(self._kafka) | {"log_level": 3, "error_cb": _heard}
            self._admin = AdminClient(config)
        self._admin.poll(0.0)
        found = self._admin.describe_topics(TopicCollection(names), request_timeout=_LOOK)
        for name, described in found.items():
            try:
                topic_id = _text(described.result(_LOOK).topic_id)
            except (KafkaException, FutureTimeoutError) as error:
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
