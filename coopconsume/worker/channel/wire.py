"""Frames, handshake and session keys of the channel. It uses no sockets and no clock.

A frame is a length, a protocol version, a type, a payload and, after the handshake, a MAC. The
MAC covers the direction, the number of the frame and its contents. So a frame that was changed,
replayed, dropped or reflected is refused.

The handshake authenticates both sides with three frames. `HELLO` names the slot and carries its
nonce. `CHALLENGE` carries the driver's nonce and proof. `PROOF` carries the slot's proof. Proofs
and session keys are HMACs with the job's secret, of all that both sides have sent and of the role
of the side that proves.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Role = Literal[b"driver", b"slot"]

VERSION = 2
#: Bytes of a frame's contents before the handshake, and after it.
HANDSHAKE_BYTES = 1 << 10
FRAME_BYTES = 32 << 20
NONCE_BYTES = 32
MAC_BYTES = hashlib.sha256().digest_size
#: Instead of a batch: the connection is only to end with the run of the job.
NO_BATCH = -1

_LENGTH = struct.Struct(">I")
_HEAD = struct.Struct(">BB")
_SLOT = struct.Struct(">qqq?")
_NUMBER = struct.Struct(">Q")
_RANGE = struct.Struct(">Iqq")


class Frame(IntEnum):
    """Types of frames.

    1 to 15 are the handshake. 16 to 31 come from the driver, 32 to 47 from a slot. From 48 on they
    are exchanged by a slot and the fetch server of its host, which has the driver's role.
    """

    HELLO = 1
    CHALLENGE = 2
    PROOF = 3
    #: How long the slot's lease still holds, and when its process ends without another one.
    LEASE = 16
    #: The slot starts no more records.
    STOP = 17
    #: Acknowledges progressive reports.
    TAKEN = 18
    #: The slot gives back the records that it has not started.
    RELIEVE = 19
    #: A real-time slot reads no more records, and handles those that it has read.
    DRAIN = 20
    #: The slot starts no more records of some key ranges.
    WITHHOLD = 21
    #: A real-time slot of a job with chunks reads and handles some more offsets.
    CHUNKS = 22
    #: The slot asks for a lease.
    ASK = 32
    #: A progressive report.
    PROGRESS = 33
    #: The handler call of the slot that has run for longest.
    CALL = 34
    #: A slot asks the fetch server for records; the answer.
    FETCH = 48
    FETCHED = 49


class ProtocolError(Exception):
    """What the other side sent is not of this protocol, or it does not know the secret."""


@dataclass(frozen=True)
class Identity:
    """The slot and the batch of a connection.

    Attributes:
        run: Identifies the run of the job.
        batch: Number of the batch; `NO_BATCH`: of none.
        slot: Number of the slot.
        pid: Of the worker process, for people.
        is_locked: Whether its host knows that it runs, see `coopconsume.worker.host_locks`.
    """

    run: str
    batch: int
    slot: int
    pid: int = 0
    is_locked: bool = False

    def encode(self) -> bytes:
        """Returns it as bytes; two identities never have the same."""
        return _SLOT.pack(self.batch, self.slot, self.pid, self.is_locked) + self.run.encode()

    @classmethod
    def decode(cls, data: bytes) -> Identity:
        """The inverse of `encode`.

        Raises:
            ProtocolError: The bytes are no identity.
        """
        try:
            numbers = _SLOT.unpack_from(data)
            return cls(data[_SLOT.size :].decode(), *numbers)
        except (struct.error, UnicodeDecodeError) as error:
            raise ProtocolError(f"no identity of a slot: {error}") from None


def frame(kind: Frame, payload: bytes, mac: bytes = b"") -> bytes:
    """Returns a frame as it goes over the wire."""
    size = _HEAD.size + len(payload) + len(mac)
    return b"".join((_LENGTH.pack(size), _HEAD.pack(VERSION, kind), payload, mac))


class Splitter:
    """Splits a stream of bytes into frames.

    Attributes:
        limit: Bytes that a frame may have.
    """

    def __init__(self, limit: int = HANDSHAKE_BYTES) -> None:
        self.limit = limit
        self._held = bytearray()

    def feed(self, data: bytes) -> None:
        """Takes in the next bytes."""
        self._held += data

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yields the complete frames as (type, payload with MAC).

        Raises:
            ProtocolError: A frame is too long or too short, or of another version. The length is
                checked as soon as it has arrived.
        """
        while len(self._held) >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._held)
            if not _HEAD.size <= size <= self.limit:
                raise ProtocolError(f"a frame of {size} bytes; at most {self.limit} are allowed")
            end = _LENGTH.size + size
            if len(self._held) < end:
                return
            version, kind = _HEAD.unpack_from(self._held, _LENGTH.size)
            payload = bytes(memoryview(self._held)[_LENGTH.size + _HEAD.size : end])
            del self._held[:end]
            if version != VERSION:
                raise ProtocolError(f"a frame of version {version}; expected {VERSION}")
            yield kind, payload


class Sealer:
    """Signs the frames of one direction, or verifies them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def _mac(self, kind: int, payload: bytes) -> bytes:
        mac = hmac.new(self._key, _NUMBER.pack(self._number) + _HEAD.pack(VERSION, kind), "sha256")
        mac.update(payload)
        self._number += 1
        return mac.digest()

    def seal(self, kind: Frame, payload: bytes = b"") -> bytes:
        """Returns the next frame."""
        return frame(kind, payload, self._mac(kind, payload))

    def open(self, kind: int, sealed: bytes) -> bytes:
        """Returns the payload of the next frame.

        Raises:
            ProtocolError: Its MAC is wrong.
        """
        if len(sealed) < MAC_BYTES:
            raise ProtocolError("a frame without a MAC")
        payload = sealed[:-MAC_BYTES]
        if not hmac.compare_digest(sealed[-MAC_BYTES:], self._mac(kind, payload)):
            raise ProtocolError("a frame with a wrong MAC")
        return payload


@dataclass(frozen=True)
class ChannelSession:
    """One side of an authenticated connection.

    Attributes:
        identity: The slot.
        sent: Signs what this side sends.
        received: Verifies what it receives.
    """

    identity: Identity
    sent: Sealer
    received: Sealer


def _prove(secret: bytes, purpose: bytes, said: bytes) -> bytes:
    return hmac.new(secret, b"coopconsume channel " + purpose + b"\0" + said, "sha256").digest()


def _session(secret: bytes, said: bytes, identity: Identity, role: Role) -> ChannelSession:
    keys = {of: Sealer(_prove(secret, of + b" key", said)) for of in (b"driver", b"slot")}
    other = b"slot" if role == b"driver" else b"driver"
    return ChannelSession(identity, keys[role], keys[other])


class SlotHandshake:
    """The slot's part of a handshake."""

    def __init__(self, secret: bytes, identity: Identity) -> None:
        self._secret = secret
        self._identity = identity
        self._hello = secrets.token_bytes(NONCE_BYTES) + identity.encode()

    def hello(self) -> bytes:
        """Returns the first frame."""
        return frame(Frame.HELLO, self._hello)

    def answer(self, kind: int, payload: bytes) -> tuple[bytes, ChannelSession]:
        """Returns the last frame, and the session, if the driver has proved itself.

        Raises:
            ProtocolError: It has not.
        """
        if kind != Frame.CHALLENGE or len(payload) != NONCE_BYTES + MAC_BYTES:
            raise ProtocolError("the driver's part of the handshake was expected")
        said = self._hello + payload[:NONCE_BYTES]
        if not hmac.compare_digest(
            payload[NONCE_BYTES:], _prove(self._secret, b"driver proof", said)
        ):
            raise ProtocolError("the listener does not know the job's secret")
        proof = frame(Frame.PROOF, _prove(self._secret, b"slot proof", said))
        return proof, _session(self._secret, said, self._identity, b"slot")


class DriverHandshake:
    """The driver's part of a handshake."""

    def __init__(self, secret: bytes, run: str) -> None:
        self._secret = secret
        self._run = run
        self._identity: Identity | None = None
        self._said = b""

    @property
    def has_identity(self) -> bool:
        """Whether the client has named a slot of this run."""
        return self._identity is not None

    def answer(self, kind: int, payload: bytes) -> bytes | ChannelSession:
        """Returns the driver's frame after `HELLO`, and the session after `PROOF`.

        Raises:
            ProtocolError: The frame is not the expected one, names another run, or proves nothing.
        """
        if self._identity is None:
            return self._challenge(kind, payload)
        proof = _prove(self._secret, b"slot proof", self._said)
        if kind != Frame.PROOF or not hmac.compare_digest(payload, proof):
            raise ProtocolError("the client does not know the job's secret")
        return _session(self._secret, self._said, self._identity, b"driver")

    def _challenge(self, kind: int, payload: bytes) -> bytes:
        if kind != Frame.HELLO:
            raise ProtocolError(f"a frame of type {kind}; a handshake was expected")
        identity = Identity.decode(payload[NONCE_BYTES:])
        if identity.run != self._run:
            raise ProtocolError("a slot of another run")
        self._identity = identity
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._said = payload + nonce
        return frame(Frame.CHALLENGE, nonce + _prove(self._secret, b"driver proof", self._said))


class Payload:
    """The payload of a type of frames: numbers of fixed sizes.

    Args:
        form: As of `struct`.
    """

    def __init__(self, form: str) -> None:
        self._struct = struct.Struct(form)

    def pack(self, *numbers: float) -> bytes:
        """Returns the payload."""
        return self._struct.pack(*numbers)

    def unpack(self, payload: bytes) -> tuple[Any, ...]:
        """Returns the numbers of a payload.

        Raises:
            ProtocolError: It has another size.
        """
        if len(payload) != self._struct.size:
            raise ProtocolError(f"{len(payload)} bytes; {self._struct.size} were expected")
        return self._struct.unpack(payload)


#: The time of the request, in ns on the slot's own clock.
ASK = Payload(">Q")
#: The time of the request; from then on, for how many seconds the lease holds, and after how many
#: the process of the slot ends.
LEASE = Payload(">Qdd")
#: The number up to which progressive reports are acknowledged, and the seconds until the next
#: report is wanted.
TAKEN = Payload(">Qd")
#: Partition, offset and seconds; an empty payload: no call takes long.
CALL = Payload(">qqd")


def encode_withhold(number: int, ranges: Mapping[int, Iterable[tuple[int, int]]]) -> bytes:
    """Returns the payload of `WITHHOLD`: the driver's number, (first, last) hashes by partition."""
    each = [_RANGE.pack(part, *one) for part, some in ranges.items() for one in some]
    return b"".join((_NUMBER.pack(number), *each))


def decode_withhold(payload: bytes) -> tuple[int, dict[int, list[tuple[int, int]]]]:
    """The inverse of `encode_withhold`."""
    if len(payload) < _NUMBER.size or (len(payload) - _NUMBER.size) % _RANGE.size:
        raise ProtocolError(f"{len(payload)} bytes; a number and key ranges were expected")
    ranges: dict[int, list[tuple[int, int]]] = {}
    for part, first, last in _RANGE.iter_unpack(payload[_NUMBER.size :]):
        ranges.setdefault(part, []).append((first, last))
    return int(_NUMBER.unpack_from(payload)[0]), ranges
