"""How a consumer of a queue acknowledges a record."""

from __future__ import annotations

from enum import StrEnum


class AcknowledgeType(StrEnum):
    """What becomes of a record; the names are those of Kafka's share groups (KIP-932, KIP-1222).

    Attributes:
        ACCEPT: The record is done.
        RELEASE: Any consumer may get the record again.
        REJECT: The record becomes a dead letter. Without ``deadLetter`` it is released.
        RENEW: The consumer holds the record for another full duration.
    """

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    RENEW = "renew"


ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW = AcknowledgeType.REJECT, AcknowledgeType.RENEW
