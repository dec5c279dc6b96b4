"""The messages of Kafka's group protocol between members: the bytes of `user_data`.

Layout: a magic byte, a byte for the kind (``S`` subscription, ``A`` assignment, ``R`` refusal), a
byte for the version, then JSON compressed by zlib, whose checksum detects damage. The JSON groups
shares by topic, a whole partition as its number and a part as ``[partition, first, last]``:

    {"orders": [0, 1, [2, 0, 4611686018427387903]]}

Kafka keeps the data of all members in one record, so size counts: a thousand whole partitions
of one topic take about 2 kB.

A reader accepts its own version and older ones, and ignores unknown fields. A field that old
members do not need can therefore be added without a new version. A leader answers each member in
the version of that member's subscription, so a newer leader works with older members. A leader
refuses a member whose subscription it cannot read; the other members continue.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from assignors.errors import AssignorError, ProtocolMismatch
from assignors.ranges import KeyRange
from assignors.shares import Share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAGIC = 0xC7
VERSION = 1
"""Protocol version of this library."""

_HEADER = 3
_MAX_JSON = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Subscription:
    """The message that a member sends to the leader when it joins.

    Attributes:
        terms: What all members agree on, as text by its name: ``store`` is the id of its commit
            store, ``cluster`` that of the Kafka cluster. The others depend on the version of the
            library; a member that does not say one leaves it out.
        slots: How many tasks it runs in parallel, from 1.
        allow_key_share: Whether it may get parts of partitions.
        owned: Its shares before it joined.
        epoch: Number of the epoch in force in the commit log when it joined; 0 without one.
        nonce: Nonce of that epoch.
        life_ms: The longest time that one of its batches may run, in milliseconds.
        attempt: How often this process has requested a different assignment. Kafka returns the
            old assignment to a follower that joins with unchanged data.
        seen: Number of partitions and Kafka's id, as text, of subscribed topics that the last
            assignment omitted, in whole or in part.
        continues: Whether it still works on `owned`, and joins without having handed it over.
    """

    terms: Mapping[str, str]
    slots: int = 1
    allow_key_share: bool = False
    owned: tuple[Share, ...] = ()
    epoch: int = 0
    nonce: str = ""
    life_ms: int = 0
    attempt: int = 0
    seen: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    continues: bool = False

    def to_bytes(self) -> bytes:
        """Return the subscription as `user_data`."""
        return _pack(
            "S",
            {
                **self.terms,
                "slots": self.slots,
                "share": self.allow_key_share,
                "owned": _pack_shares(self.owned),
                "epoch": self.epoch,
                "nonce": self.nonce,
                "life_ms": self.life_ms,
                "attempt": self.attempt,
                "seen": dict(self.seen),
                **({"held": True} if self.continues else {}),
            },
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Subscription:
        """Read a subscription from `user_data`.

        Raises:
            ProtocolMismatch: If the data is foreign, damaged or of a newer version.
        """
        unpacked = _unpack("subscription", "S", data)
        fields = _Fields("subscription", unpacked)
        return cls(
            # A term that this version does not know is kept, and compared by nobody.
            terms={name: said for name, said in unpacked.items() if _is_term(name, said)}
            | {name: fields.text(name) for name in ("store", "cluster")},
            slots=fields.number("slots", least=1),
            allow_key_share=fields.flag("share"),
            owned=fields.shares("owned"),
            epoch=fields.number("epoch"),
            nonce=fields.text("nonce"),
            life_ms=fields.number("life_ms"),
            attempt=fields.number("attempt", default=0),
            seen=fields.seen("seen"),
            continues=fields.flag("held", default=False),
        )


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The leader's answer to a member.

    Attributes:
        member: Kafka's id of the member that the assignment is for. A static member that
            rejoins under a new id receives the assignment of its old id.
        shares: The member's shares.
        epoch: Number of the epoch that the leader opened for this assignment, from 1.
        nonce: Nonce of that epoch.
        topic_ids: Kafka's id of every topic of the assignment, as text.
        moving: What of the shares the member is to release as soon as it can.
    """

    member: str
    shares: tuple[Share, ...]
    epoch: int
    nonce: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    moving: tuple[Share, ...] = ()

    def to_bytes(self, version: int | None = None) -> bytes:
        """Return the assignment as `user_data`.

        Args:
            version: The protocol version of the receiving member, from 1; by default this
                library's.
        """
        return _pack(
            "A",
            {
                "member": self.member,
                "shares": _pack_shares(self.shares),
                "epoch": self.epoch,
                "nonce": self.nonce,
                "topic_ids": dict(self.topic_ids),
                **({"moving": _pack_shares(self.moving)} if self.moving else {}),
            },
            version,
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> MemberAssignment:
        """Read an assignment from `user_data`.

        Raises:
            ProtocolMismatch: If the data is foreign, damaged or of a newer version.
        """
        fields = _Fields("assignment", _unpack("assignment", "A", data))
        return cls(
            member=fields.text("member"),
            shares=fields.shares("shares"),
            epoch=fields.number("epoch", least=1),
            nonce=fields.text("nonce"),
            topic_ids=fields.texts("topic_ids"),
            moving=fields.shares("moving", default={}),
        )


@dataclass(frozen=True, slots=True)
class Refusal:
    """The leader's answer to a member that cannot be in the group.

    Attributes:
        reason: What is wrong and what to do.
    """

    reason: str

    def to_bytes(self) -> bytes:
        """Return the refusal as `user_data`, in a version that every member can read."""
        return _pack("R", {"reason": self.reason}, 1)


def version_of(data: bytes) -> int:
    """Return the protocol version of `user_data` that was read without an error."""
    return data[_HEADER - 1]


def read_answer(data: bytes) -> MemberAssignment | Refusal:
    """Read the leader's answer from `user_data`.

    Raises:
        ProtocolMismatch: If the data is foreign, damaged or of a newer version.
    """
    if data[:2] == bytes((MAGIC, ord("R"))):
        return Refusal(_Fields("refusal", _unpack("refusal", "R", data)).text("reason"))
    return MemberAssignment.from_bytes(data)


def _pack(kind: str, fields: dict[str, Any], version: int | None = None) -> bytes:
    text = json.dumps(fields, separators=(",", ":"), sort_keys=True)
    return bytes((MAGIC, ord(kind), version or VERSION)) + zlib.compress(text.encode(), 6)


def _unpack(what: str, kind: str, data: bytes) -> Mapping[str, Any]:
    if len(data) < _HEADER or data[0] != MAGIC:
        raise ProtocolMismatch(
            what,
            f"{len(data)} bytes beginning with {data[:_HEADER].hex() or 'nothing'}",
            f"this library's data, beginning with {MAGIC:02x}",
            "A consumer of another kind is in the group: stop it, or use another group id",
        )
    if data[1] != ord(kind):
        raise ProtocolMismatch(
            what,
            f"data of the kind {chr(data[1])!r}",
            f"the kind {kind!r}",
            "This is a fault of the member that sent it: update it",
        )
    if not 1 <= data[2] <= VERSION:
        raise ProtocolMismatch(
            what,
            f"version {data[2]} of the protocol",
            f"version 1 to {VERSION}",
            "Run the same version of the library in every member of the group",
        )
    try:
        inflate = zlib.decompressobj()
        text = inflate.decompress(data[_HEADER:], _MAX_JSON)
        fields = json.loads(text)
        whole = inflate.eof and not inflate.unused_data
    except (zlib.error, ValueError, RecursionError) as error:
        raise _damaged(what, str(error)) from error
    if not whole or not isinstance(fields, dict):
        raise _damaged(what, f"{len(data)} bytes with a cut or foreign body")
    return fields


def _is_term(name: str, said: object) -> bool:
    return isinstance(said, str) and name != "nonce"


def _damaged(what: str, found: str) -> ProtocolMismatch:
    return ProtocolMismatch(
        what, f"damaged data ({found})", "a whole body", "Let the member that sent it join again"
    )


def _pack_shares(shares: Iterable[Share]) -> dict[str, list[Any]]:
    packed: dict[str, list[Any]] = {}
    for share in sorted(shares):
        part = share.key_range
        packed.setdefault(share.topic, []).append(
            share.partition if part.is_full else [share.partition, part.first, part.last]
        )
    return packed


class _Fields:
    """Reads typed fields; a missing field or one of another type raises `ProtocolMismatch`."""

    def __init__(self, what: str, fields: Mapping[str, Any]) -> None:
        self._what = what
        self._fields = fields

    def text(self, name: str, default: str | None = None) -> str:
        value = self._fields.get(name, default)
        if not isinstance(value, str):
            raise self._mismatch(name, value, "text")
        return value

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        value = self._fields.get(name, default)
        if not isinstance(value, bool):
            raise self._mismatch(name, value, "true or false")
        return value

    def number(self, name: str, least: int = 0, default: int | None = None) -> int:
        value = self._fields.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self._mismatch(name, value, f"a whole number from {least}")
        return value

    def texts(self, name: str) -> dict[str, str]:
        value = self._fields.get(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._mismatch(name, value, "texts by topic")
        return value

    def shares(
        self, name: str, default: Mapping[str, list[Any]] | None = None
    ) -> tuple[Share, ...]:
        value = self._fields.get(name, default)
        if not isinstance(value, dict) or not all(isinstance(v, list) for v in value.values()):
            raise self._mismatch(name, value, "lists of shares by topic")
        return tuple(
            self._share(name, topic, packed) for topic, shares in value.items() for packed in shares
        )

    def seen(self, name: str) -> dict[str, tuple[int, str]]:
        value = self._fields.get(name, {})  # members of earlier versions report nothing
        if not isinstance(value, dict):
            raise self._mismatch(name, value, "partitions and id by topic")
        found = {}
        for topic, entry in value.items():
            match entry:
                case [int(count), str(topic_id)] if count > 0:
                    found[topic] = (count, topic_id)
                case _:
                    raise self._mismatch(name, entry, "a number of partitions and an id")
        return found

    def _share(self, name: str, topic: str, packed: object) -> Share:
        partition, *ends = packed if isinstance(packed, list) and packed else (packed,)
        if isinstance(partition, int) and not isinstance(partition, bool) and partition >= 0:
            try:
                return Share(topic, partition, KeyRange(*ends))
            except (AssignorError, TypeError):
                pass
        raise self._mismatch(name, packed, "a partition, or a partition with first and last hash")

    def _mismatch(self, name: str, value: object, expected: str) -> ProtocolMismatch:
        return ProtocolMismatch(
            self._what,
            f"{value!r} as {name!r}",
            expected,
            "This is a fault of the member that sent it: update it",
        )
