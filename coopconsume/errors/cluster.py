"""What a Kafka cluster refuses, has not, or has lost."""

from __future__ import annotations

import shlex

from coopconsume.errors.base import CoopConsumeError, OffsetsError


class BrokerUnreachable(CoopConsumeError):
    """No broker of the cluster answers.

    Attributes:
        servers: The addresses tried.
        cause: What the client said.
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
            "kafka.security.protocol is what it expects there"
        )


class AuthenticationFailed(CoopConsumeError):
    """A cluster does not let this user in, or no TLS connection comes about.

    Attributes:
        servers: The addresses tried.
        mechanism: How it was tried: a SASL mechanism, or ``TLS``.
        user: Who tried, where the settings say so.
        cause: What the other side, or the client, said.
    """

    def __init__(self, servers: str, mechanism: str, user: str | None, cause: str) -> None:
        super().__init__(servers, mechanism, user, cause)
        self.servers = servers
        self.mechanism = mechanism
        self.user = user
        self.cause = cause

    @property
    def settings(self) -> tuple[str, ...]:
        """The options to look at."""
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
    """The user lacks a right in the cluster (an ACL).

    Attributes:
        operation: The operation that is not allowed, as ACLs name it, such as ``READ``.
        resource_type: ``TOPIC``, ``GROUP``, ``CLUSTER`` or ``TRANSACTIONAL_ID``.
        resource: Name of the resource; of several, with commas between them.
        user: Who lacks it, where the settings say so.
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
            f"{who} may not {self.operation} {kind} {self.resource!r}: give it that right, as by "
            f"kafka-acls --add --allow-principal {principal} "
            f"--operation {self.operation.title()} {' '.join(options)}"
        )


class TopicNotFound(CoopConsumeError):
    """A topic does not exist, or may not be seen by this user.

    Attributes:
        topic: The topic, or the pattern that matched none.
        servers: The cluster asked.
    """

    def __init__(self, topic: str, servers: str) -> None:
        super().__init__(topic, servers)
        self.topic = topic
        self.servers = servers

    def __str__(self) -> str:
        return f"no topic {self.topic!r} on {self.servers}: check its name, or create it"


class TopicReplaced(CoopConsumeError):
    """A topic was deleted and made again under the same name while it was consumed.

    Attributes:
        topic: The topic.
        known_id: Kafka's id of the topic that was consumed.
        found_id: That of the topic there is now.
    """

    def __init__(self, topic: str, known_id: str, found_id: str) -> None:
        super().__init__(topic, known_id, found_id)
        self.topic = topic
        self.known_id = known_id
        self.found_id = found_id

    def __str__(self) -> str:
        return (
            f"topic {self.topic!r} was deleted and made again (id {self.known_id}, now "
            f"{self.found_id}): start again, which begins with the new topic's first record, or "
            "set failOnDataLoss=false to go on with it"
        )


class DataLoss(OffsetsError):
    """Records were deleted from the topic before they were done, or cut off its end.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: First lost offset.
        last: Last lost offset.
    """

    def __str__(self) -> str:
        return (
            f"{self._offsets} were deleted by the broker before they were done, or lost by an "
            "unclean election: raise the topic's retention or min.insync.replicas, or set "
            "failOnDataLoss=false to report the loss and go on"
        )
