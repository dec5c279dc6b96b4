"""The offsets of a group in ``__consumer_offsets``, and the mark of those that are ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commits import Epoch


@dataclass(frozen=True)
class Primary:
    """The group's offset in ``__consumer_offsets`` and its writer.

    Attributes:
        offset: Kafka's committed offset, the next one to read.
        ours: Whether this library wrote it.
        topic_id: Id of the topic it was written for; empty if not ours.
        outputs: The topic whose transactions commit it; empty without transactions.
        replicas: The identities of a queue's replicas, in their order; empty without a queue.
    """

    offset: int
    ours: bool
    topic_id: str
    outputs: str = ""
    replicas: tuple[str, ...] = ()

    @classmethod
    def read(cls, offset: int, metadata: str | None) -> Primary:
        """Decodes an offset and its metadata."""
        mark = _read_mark(metadata)
        topic_id, outputs = mark.get("topic_id", ""), mark.get("outputs", "")
        return cls(offset, bool(mark), topic_id, outputs, tuple(map(str, mark.get("replicas", ()))))


def primary_mark(
    topic_id: str, epoch: Epoch | None, outputs: str = "", replicas: Sequence[str] = ()
) -> str:
    """Returns the metadata that marks a primary offset as written by this library.

    Args:
        topic_id: Id of the topic.
        epoch: The epoch of the writer; None for an operator.
        outputs: The topic whose transactions commit it.
        replicas: The identities of a queue's replicas.
    """
    number, nonce = (epoch.number, epoch.nonce) if epoch else (0, "")
    mark = {"coopconsume": 1, "topic_id": topic_id, "epoch": number, "nonce": nonce}
    if outputs:
        mark["outputs"] = outputs
    if replicas:
        mark["replicas"] = replicas
    return json.dumps(mark, separators=(",", ":"))


def _read_mark(metadata: str | None) -> dict[str, Any]:
    """Returns the mark of this library; empty for offsets of others."""
    try:
        # confluent-kafka ends metadata with the NUL of C's texts.
        mark = json.loads((metadata or "").removesuffix("\0"))
    except ValueError:
        return {}
    return mark if isinstance(mark, dict) and "coopconsume" in mark else {}
