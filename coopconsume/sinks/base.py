"""What sinks have in common: what they are asked to write, and the words that name them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from coopconsume.report import DeadLetter

#: How a topic is told from a path, where either may be given.
TOPIC_PREFIX = "kafka:"

#: Where a row comes from, and the commit that it stands or falls with.
ORIGIN = pa.schema(
    [
        ("_topic", pa.string()), ("_topic_id", pa.string()), ("_partition", pa.int32()),
        ("_offset", pa.int64()), ("_commit", pa.string()),
    ]
)  # fmt: skip


class DeadLetterSink(Protocol):
    """Where records go that are given up; called before the commit that makes them so."""

    #: The Kafka topic it needs, if it is one.
    topic: str | None

    def append(
        self, letters: Sequence[DeadLetter], topic_ids: Mapping[str, str], commit_id: str
    ) -> None:
        """Write dead letters; once it returns they are safe.

        Args:
            letters: The records, and why they were given up.
            topic_ids: Kafka's ids of their topics.
            commit_id: The commit that they stand or fall with.
        """

    def close(self) -> None:
        """Let go of connections; harmless when repeated."""
