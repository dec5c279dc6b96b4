"""Calls of one Kafka cluster: within the caller's time, and again after errors that pass."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import BrokerUnreachable, TopicNotFound
from coopconsume.kafka import kafka_python_compat
from coopconsume.kafka.call_limit import CallLimit, Deadline, NoAnswerInTime, call_within
from coopconsume.kafka.security import access

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from coopconsume.options import Options

log = logging.getLogger(__name__)

PATIENCE: Final = 15.0
"""The seconds for which a call is repeated by default."""

_CONNECT_MS = 10_000


class KafkaCalls:
    """Synchronous calls of one Kafka cluster, by kafka-python's admin client.

    Args:
        options: The options of the consumer.

    Attributes:
        limit: Ends all calls of all threads, as the consumer leaves its group.
        cluster_id, brokers, version: Its id; host and port of each broker; their version at least.

    Raises:
        AuthenticationFailed: The login or TLS fails; raised without retries.
        BrokerUnreachable: No broker answers within ten seconds.
        InvalidOption: A security setting is not valid.
    """

    def __init__(self, options: Options) -> None:
        from kafka.admin import KafkaAdminClient
        from kafka.errors import KafkaError

        self._options = options
        self.limit = CallLimit()
        self._here = threading.local()
        self.servers = options.kafka["bootstrap.servers"]
        config = self._config = options.client_config()
        try:
            access.look(config, options.kafka)
            self._admin = kafka_python_compat.connected(
                KafkaAdminClient, **config, bootstrap_timeout_ms=_CONNECT_MS
            )
            found = self._admin.describe_cluster()
            self.cluster_id = str(found["cluster_id"])
            self.brokers = tuple((one["host"], int(one["port"])) for one in found["brokers"])
            self.version = kafka_python_compat.broker_version(self._admin)
        except (KafkaError, OSError) as error:
            refused = access.refused(error, options.kafka)
            if refused is not None:
                raise refused from None
            cause = _unknown_hosts(self.servers) or str(error) or type(error).__name__
            raise BrokerUnreachable(self.servers, cause) from None

    @contextmanager
    def limited_by(self, limit: CallLimit) -> Iterator[None]:
        """Ends calls of this thread at a limit, with `BrokerUnreachable`."""
        before = getattr(self._here, "limit", None)
        self._here.limit = limit
        try:
            yield
        finally:
            self._here.limit = before

    @contextmanager
    def patient_for(self, seconds: float) -> Iterator[None]:
        """Limits the wait of this thread for each answer; then `BrokerUnreachable` is raised."""
        before = self._patience
        self._here.patience = seconds
        try:
            yield
        finally:
            self._here.patience = before

    @property
    def _patience(self) -> float:
        """The seconds for which the calling thread waits for one answer."""
        return float(getattr(self._here, "patience", math.inf))

    def _left(self) -> float:
        """Returns the seconds for which the calling thread waits for an answer."""
        own: CallLimit | None = getattr(self._here, "limit", None)
        return self.limit.left if own is None else min(own.left, self.limit.left)

    def answer(self, call: Callable[[], Any]) -> Any:
        """Makes a call to Kafka, and returns its answer.

        Raises:
            BrokerUnreachable: `limit`, or that of the calling thread, is over.
        """
        own = Deadline(self._patience)
        try:
            return call_within(lambda: min(self._left(), own.left), call)
        except NoAnswerInTime:
            raise BrokerUnreachable(self.servers, "no answer in time") from None

    def close(self) -> None:
        """Closes the connections. Repeated calls have no effect."""
        self._admin.close()

    def call(
        self, call: Callable[[], Any], topics: Iterable[str] = (), patience: float = PATIENCE
    ) -> Any:
        """Calls Kafka, again after errors that pass, and returns the answer.

        Args:
            call: Makes the request.
            topics: The topics that it concerns.
            patience: The seconds for which it is repeated.

        Raises:
            BrokerUnreachable: No broker answers in time.
            NotAuthorized: A permission is missing.
            TopicNotFound: One of the topics does not exist.
            kafka.errors.KafkaError: Kafka refuses for another reason.
        """
        from kafka.errors import (
            KafkaConnectionError,
            KafkaError,
            KafkaTimeoutError,
            UnknownBrokerIdError,
            UnknownTopicOrPartitionError,
        )

        # kafka-python raises UnknownBrokerIdError for a partition without a leader.
        may_pass = KafkaConnectionError, KafkaTimeoutError, UnknownBrokerIdError
        until = time.monotonic() + min(patience, self._patience)
        while True:
            try:
                return self.answer(call)
            except KafkaError as error:
                passing = error.retriable or isinstance(error, may_pass)
                if isinstance(error, UnknownTopicOrPartitionError):
                    self._check_exist(topics)
                if not passing:
                    refused = access.refused(error, self._options.kafka, topics)
                    if refused is not None:
                        raise refused from None
                    raise
                if time.monotonic() >= until or self._left() <= 0:
                    if self._left() > 0:
                        self.answer(lambda: access.look(self._config, self._options.kafka))
                    raise BrokerUnreachable(self.servers, str(error)) from error
                log.debug("retrying a request to Kafka: %s", error)
                time.sleep(min(0.2, self._left()))
                kafka_python_compat.forget_coordinators(self._admin)

    def _check_exist(self, names: Iterable[str]) -> None:
        """Raises `TopicNotFound` unless the topics exist; a broker may just not know them yet."""
        wanted = list(names)
        known = set(self.answer(self._admin.list_topics)) if wanted else set()
        for name in wanted:
            if name not in known:
                raise TopicNotFound(name, self.servers)


def _unknown_hosts(servers: str) -> str:
    """Returns which hosts have no address, if that is so of all; else nothing."""
    hosts = [server.strip().rpartition(":")[0].strip("[]") for server in servers.split(",")]
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            continue
        return ""
    return f"no address is known for {', '.join(hosts)}"
