"""Errors of a Kafka cluster: connection, authentication, authorization, missing data."""

from __future__ import annotations

import shlex

from coopconsume.errors.base import CoopConsumeError, OffsetsError


class BrokerUnreachable(CoopConsumeError):
    """No broker of the cluster answers.

    Attributes:
        servers: The addresses of the brokers.
        cause: The error of the client.
    """

    retriable = True

    def __init__(self, servers: str, cause: str) -> None:
        super().__init__(servers, cause)
        self.servers = servers
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"no Kafka broker answers at {self.servers} ({self.cause}): "
            "check kafka.bootstrap.servers, that the broker is up, and that "
            "kafka.security.protocol is the one that the broker expects there"
        )


class AuthenticationFailed(CoopConsumeError):
    """Authentication failed, or a TLS connection could not be established.

    Attributes:
        servers: The addresses of the brokers.
        mechanism: The SASL mechanism, or ``TLS``.
        user: The user, if the settings name one.
        cause: The error of the broker or the client.
    """

    def __init__(self, servers: str, mechanism: str, user: str | None, cause: str) -> None:
        super().__init__(servers, mechanism, user, cause)
        self.servers = servers
        self.mechanism = mechanism
        self.user = user
        self.cause = cause

    @property
    def settings(self) -> tuple[str, ...]:
        """The options to check."""
        if self.mechanism == "TLS":
            return (
                "kafka.security.protocol", "kafka.ssl.truststore.*", "kafka.ssl.keystore.*",
                "kafka.ssl.endpoint.identification.algorithm",
            )  # fmt: skip
        return ("kafka.sasl.jaas.config", "kafka.sasl.mechanism", "kafka.security.protocol")

    def __str__(self) -> str:
        who = "this client" if self.user is None else f"user {self.user!r}"
        what = (
            f"no TLS connection with {self.servers}"
            if self.mechanism == "TLS"
            else f"{self.servers} refused {who} by {self.mechanism}"
        )
        return f"{what} ({self.cause}): check {', '.join(self.settings)}"


class NotAuthorized(CoopConsumeError):
    """The user lacks a permission in the cluster (an ACL).

    Attributes:
        operation: The ACL operation that is not allowed, such as ``READ``.
        resource_type: ``TOPIC``, ``GROUP``, ``CLUSTER`` or ``TRANSACTIONAL_ID``.
        resource: Name of the resource; several names are separated by commas.
        user: The user, if the settings name one.
    """

    def __init__(
        self, operation: str, resource_type: str, resource: str, user: str | None = None
    ) -> None:
        super().__init__(operation, resource_type, resource, user)
        self.operation = operation
        self.resource_type = resource_type
        self.resource = resource
        self.user = user

    def __str__(self) -> str:
        who = "this client" if self.user is None else f"user {self.user!r}"
        kind = self.resource_type.lower().replace("_", "-")
        names = [] if self.resource_type == "CLUSTER" else self.resource.split(",")
        options = [f"--{kind} {shlex.quote(name)}" for name in names] or [f"--{kind}"]
        principal = shlex.quote(f"User:{self.user or '…'}")
        return (
            f"{who} may not {self.operation} {kind} {self.resource!r}: grant it, for example by "
            f"kafka-acls --add --allow-principal {principal} "
            f"--operation {self.operation.title()} {' '.join(options)}"
        )


class TopicNotFound(CoopConsumeError):
    """A topic does not exist, or this user may not describe it.

    Attributes:
        topic: The topic, or the pattern that matches no topic.
        servers: The addresses of the brokers.
    """

    def __init__(self, topic: str, servers: str) -> None:
        super().__init__(topic, servers)
        self.topic = topic
        self.servers = servers

    def __str__(self) -> str:
        return f"no topic {self.topic!r} on {self.servers}: check its name, or create it"


class TopicReplaced(CoopConsumeError):
    """A topic was deleted and created again under the same name while it was consumed.

    Attributes:
        topic: The topic.
        known_id: Kafka's id of the consumed topic.
        found_id: Kafka's id of the topic that exists now.
    """

    def __init__(self, topic: str, known_id: str, found_id: str) -> None:
        super().__init__(topic, known_id, found_id)
        self.topic = topic
        self.known_id = known_id
        self.found_id = found_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and created again (id {self.known_id}, now "
            f"{self.found_id}): start the job again to consume the new topic from its first "
            "record, or set failOnDataLoss=false to continue with the new topic"
        )


class DataLoss(OffsetsError):
    """Records were deleted before they were processed, or truncated from the end of the log.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First lost offset.
        last: Last lost offset.
    """

    def __str__(self) -> str:
        return (
            f"{self._offsets} were deleted by the broker before they were processed, or lost by "
            "an unclean election: raise the topic's retention or min.insync.replicas, or set "
            "failOnDataLoss=false to report the loss and continue"
        )
