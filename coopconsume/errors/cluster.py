"""Errors of a Kafka cluster: connection, authentication, authorization, missing data."""

from __future__ import annotations

import shlex

from coopconsume.errors.base import DeclaredError, OffsetsError


class BrokerUnreachable(DeclaredError):
    """No broker of the cluster answers.

    Attributes:
        servers: The addresses of the brokers.
        cause: The error of the client.
    """

    retriable = True
    message = (
        "no Kafka broker answers at {servers} ({cause}): check kafka.bootstrap.servers, that the "
        "broker is up, and that kafka.security.protocol is the one that the broker expects there"
    )

    servers: str
    cause: str


class AuthenticationFailed(DeclaredError):
    """Authentication failed, or a TLS connection could not be established.

    Attributes:
        servers: The addresses of the brokers.
        mechanism: The SASL mechanism, or ``TLS``.
        user: The user, if the settings name one.
        cause: The error of the broker or the client.
    """

    servers: str
    mechanism: str
    user: str | None
    cause: str

    @property
    def settings(self) -> tuple[str, ...]:
        """The options to check."""
        if self.mechanism == "TLS":
            return (
                "kafka.security.protocol",
                "kafka.ssl.truststore.*",
                "kafka.ssl.keystore.*",
                "kafka.ssl.endpoint.identification.algorithm",
            )
        return ("kafka.sasl.jaas.config", "kafka.sasl.mechanism", "kafka.security.protocol")

    def __str__(self) -> str:
        who = "this client" if self.user is None else f"user {self.user!r}"
        what = (
            f"no TLS connection with {self.servers}"
            if self.mechanism == "TLS"
            else f"{self.servers} refused {who} by {self.mechanism}"
        )
        return f"{what} ({self.cause}): check {', '.join(self.settings)}"


class NotAuthorized(DeclaredError):
    """The user lacks a permission in the cluster (an ACL).

    Attributes:
        operation: The ACL operation that is not allowed, such as ``READ``.
        resource_type: ``TOPIC``, ``GROUP``, ``CLUSTER`` or ``TRANSACTIONAL_ID``.
        resource: Name of the resource; several names are separated by commas.
        user: The user, if the settings name one.
    """

    operation: str
    resource_type: str
    resource: str
    user: str | None = None

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


class TopicNotFound(DeclaredError):
    """A topic does not exist, or this user may not describe it.

    Attributes:
        topic: The topic, or the pattern that matches no topic.
        servers: The addresses of the brokers.
        closest: The most similar name of a topic that exists; None if no name is similar, or if
            it was not looked for.
    """

    message = "no topic {topic!r} on {servers}: {_remedy}"

    topic: str
    servers: str
    closest: str | None = None

    @property
    def _remedy(self) -> str:
        if self.closest is None:
            return "check its name, or create it"
        return f"did you mean {self.closest!r}?"


class TopicReplaced(DeclaredError):
    """A topic was deleted and created again under the same name while it was consumed.

    Attributes:
        topic: The topic.
        known_id: Kafka's id of the consumed topic.
        found_id: Kafka's id of the topic that exists now.
    """

    message = (
        "topic {topic!r} was deleted and created again (id {known_id}, now {found_id}): start the "
        "job again to consume the new topic from its first record, or set failOnDataLoss=false to "
        "continue with the new topic"
    )

    topic: str
    known_id: str
    found_id: str


class DataLoss(OffsetsError):
    """Records were deleted before they were processed, or truncated from the end of the log.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First lost offset.
        last: Last lost offset.
    """

    message = (
        "{_offsets} were deleted by the broker before they were processed, or lost by an unclean "
        "election: raise the topic's retention or min.insync.replicas, or set failOnDataLoss=false "
        "to report the loss and continue"
    )
