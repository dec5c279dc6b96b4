"""The fetch server of a host: one process reads Kafka for all slots of a run on the host.

A slot starts it as a child process and holds the other end of its standard input. The server ends
when that end is closed, which is when the worker of that slot ends, or after some time without
slots. Slots connect by a Unix socket; both sides prove that they know the job's secret.

This module has the process, its sockets and its consumer; `record_cache` decides the answers.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from coopconsume.filters import RecordFilter
from coopconsume.kafka.identity import LogIdentity
from coopconsume.worker.channel.wire import (
    FRAME_BYTES,
    ChannelSession,
    DriverHandshake,
    Frame,
    ProtocolError,
    Splitter,
)
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.fetch_messages import (
    Evicted,
    FetchAnswer,
    Portion,
    decode_fetch,
    encode_answer,
)
from coopconsume.worker.realtime.log_reach import Start
from coopconsume.worker.realtime.reader import ReadPosition, SlotReader
from coopconsume.worker.realtime.record_cache import RecordCache
from coopconsume.worker.realtime.source import AHEAD, KafkaSource
from coopconsume.worker.report import FILTERED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import IO

    from commits.model import TopicPartition
    from coopconsume.worker.realtime.fetch_messages import Fetch
    from coopconsume.worker.realtime.reader import Taken

log = logging.getLogger(__name__)

#: Seconds after the last slot has connected in which more may connect (see `RecordCache`).
STARTING: Final = 10.0
#: Seconds without a slot after which the server ends.
LINGER: Final = 5.0
#: Seconds in which a slot must complete the handshake.
_PROVE: Final = 10.0
#: Seconds and records of one read.
_POLL: Final = 0.05
_MOST: Final = 5_000
#: Seconds for which an answer without records of the slot is delayed.
_OTHERS: Final = 0.05
#: Seconds after which the interpreter switches threads, so that reading does not delay answers.
_SWITCH: Final = 0.0005
_ALL: Final = ((0, 2**63 - 1),)


@dataclass(frozen=True)
class ServerSpec:
    """The parameters of a fetch server.

    Attributes:
        path: Of its socket.
        secret: Shared with the slots.
        run: Identifies the run of the job.
        limit: Bytes of records in memory.
        kafka: Settings by Kafka's names.
        places: (topic, partition) by index.
        logs: The logs of these: a server of other ones has another spec, and so another path.
        headers: Whether rows carry record headers.
        record_filter: Records that do not pass are marked, and kept without key and value.
        content: ``record``, or ``key``: records are kept without value and headers.
    """

    path: str
    secret: bytes = field(repr=False)
    run: str
    limit: int
    kafka: Mapping[str, str] = field(repr=False)
    places: tuple[TopicPartition, ...]
    logs: tuple[LogIdentity, ...]
    headers: bool
    record_filter: RecordFilter
    content: str = "record"

    def encode(self) -> bytes:
        """Returns it as bytes."""
        values = [
            self.path, self.secret.hex(), self.run, self.limit, dict(self.kafka),
            list(self.places), [[one.topic_id, one.leader_epoch] for one in self.logs],
            self.headers, self.record_filter.to_json(), self.content,
        ]  # fmt: skip
        return json.dumps(values).encode()

    @classmethod
    def decode(cls, data: bytes) -> ServerSpec:
        """The inverse of `encode`."""
        (path, secret, run, limit, kafka, places, logs, headers, record_filter, content) = (
            json.loads(data)
        )
        return cls(
            path, bytes.fromhex(secret), run, limit, kafka,
            tuple((topic, partition) for topic, partition in places),
            tuple(LogIdentity(*one) for one in logs), headers,
            RecordFilter.from_json(record_filter), content,
        )  # fmt: skip


@dataclass
class _Client:
    """The connection of a slot; a slot that connects again gets another number."""

    number: int
    sock: socket.socket
    handshake: DriverHandshake
    prove_by: float
    splitter: Splitter = field(default_factory=Splitter)
    session: ChannelSession | None = None
    unsent: bytearray = field(default_factory=bytearray)
    fetch: Fetch | None = None
    due: float = 0.0
    is_delayed: bool = False


class FetchServer:
    """Serves slots until it ends.

    Args:
        spec: Its parameters.
        listener: A socket that listens.
        parent: A stream that ends with the process that has started the server.
    """

    def __init__(self, spec: ServerSpec, listener: socket.socket, parent: IO[bytes]) -> None:
        self._spec = spec
        self._listener = listener
        self._parent = parent
        #: Guards what the reader's thread and this one share.
        self._lock = threading.Lock()
        self._cache = RecordCache(spec.limit)
        self._new: list[tuple[int, Start]] = []
        self._changed: set[int] = set()
        self._failed = ""
        self._broker_bytes = 0
        self._clients: dict[int, _Client] = {}
        self._number = 0
        self._started = time.monotonic()
        self._waker, self._woken = socket.socketpair()
        for one in (self._waker, self._woken, listener):
            one.setblocking(False)

    def serve(self) -> None:
        """Serves until the parent ends, slots stay away for `LINGER`, or Kafka cannot be read.

        Raises:
            ReadFailed: Kafka cannot be read.
        """
        threading.Thread(target=self._read, name="coopconsume-reader", daemon=True).start()
        used = time.monotonic()
        with selectors.DefaultSelector() as selector:
            for one in (self._listener, self._woken, self._parent):
                selector.register(one, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if self._clients:
                    used = now
                if now - used > LINGER or self._failed:
                    break
                self._cache.is_starting = now - self._started < STARTING
                for key, events in selector.select(self._patience(now)):
                    if key.fileobj is self._parent:
                        return
                    self._heard(selector, key, events)
                self._answer_all(selector)
        if self._failed:
            raise ReadFailed(self._failed)

    # -- the reader's thread

    def _read(self) -> None:
        try:
            self._read_on()
        except Exception as error:
            log.exception("the fetch server cannot read")
            self._failed = f"{type(error).__name__}: {error}"
        self._wake()

    def _read_on(self) -> None:
        spec, places = self._spec, self._spec.places
        logs = dict(zip(places, spec.logs, strict=True))
        source = KafkaSource(spec.kafka, logs, {}, min(AHEAD, max(1 << 20, spec.limit // 4)))
        reader = SlotReader(places, {}, {}, frozenset(), spec.record_filter, headers=spec.headers)
        counted = 0
        while True:
            with self._lock:
                new, self._new = self._new, []
                full = frozenset(places[part] for part in self._cache.full)
            for part, start in new:
                position = ReadPosition(part, start.offset, _ALL, finds_holes=True)
                reader.begin(places[part], position)
                source.add(places[part], start)
            source.pause(full)
            fetched = source.poll(_POLL, _MOST)
            self._broker_bytes += source.broker_bytes - counted
            counted = source.broker_bytes
            if fetched:
                self._keep(reader.take(fetched.records, fetched.ends))

    def _keep(self, taken: Taken) -> None:
        rows = taken.rows
        if self._spec.record_filter:
            rows = _without_dropped(rows)
        if self._spec.content == "key":
            rows = _without_values(rows)
        parts = rows.column("part")
        with self._lock:
            for part, following in taken.positions.items():
                found = rows
                if len(taken.positions) > 1:
                    found = rows.filter(pc.equal(parts, part))
                holes, reached = taken.holes.get(part, ()), taken.reached.get(part)
                self._cache.append(part, found, following, holes, reached)
                self._changed.add(part)
        self._wake()

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    # -- the sockets

    def _patience(self, now: float) -> float:
        dues = [
            client.due if client.fetch else client.prove_by
            for client in self._clients.values()
            if client.fetch or client.session is None
        ]
        return max(0.0, min(min(dues, default=now + 1.0) - now, 1.0))

    def _heard(
        self, selector: selectors.BaseSelector, key: selectors.SelectorKey, events: int
    ) -> None:
        if key.fileobj is self._woken:
            with suppress(BlockingIOError):
                while self._woken.recv(1 << 12):
                    pass
        elif key.fileobj is self._listener:
            with suppress(OSError):
                sock, _ = self._listener.accept()
                sock.setblocking(False)
                handshake = DriverHandshake(self._spec.secret, self._spec.run)
                self._number += 1
                client = _Client(self._number, sock, handshake, time.monotonic() + _PROVE)
                self._clients[sock.fileno()] = client
                selector.register(sock, selectors.EVENT_READ, client)
        else:
            client = key.data
            try:
                if events & selectors.EVENT_READ:
                    self._receive(client)
                self._flush(selector, client)
            except (OSError, ProtocolError) as error:
                self._drop(selector, client, error)

    def _receive(self, client: _Client) -> None:
        data = client.sock.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the slot has closed the connection")
        client.splitter.feed(data)
        for kind, payload in client.splitter.frames():
            if client.session is None:
                answer = client.handshake.answer(kind, payload)
                if isinstance(answer, ChannelSession):
                    client.session = answer
                    client.splitter.limit = FRAME_BYTES
                    self._started = time.monotonic()
                else:
                    client.unsent += answer
                continue
            opened = client.session.received.open(kind, payload)
            if kind != Frame.FETCH or client.fetch is not None:
                raise ProtocolError(f"a frame of type {kind}; a fetch was expected")
            client.fetch = decode_fetch(opened)
            client.due = time.monotonic() + client.fetch.max_wait
            self._begin(client.fetch)
            self._answer(client, client.session, client.fetch)

    def _begin(self, fetch: Fetch) -> None:
        """Begins to read the partitions that no slot has asked for before."""
        with self._lock:
            for ask in fetch.asks:
                if ask.part >= len(self._spec.places):
                    raise ProtocolError(f"a fetch of partition {ask.part}")
                if not self._cache.has(ask.part):
                    self._cache.begin(ask.part, ask.begin)
                    self._new.append((ask.part, Start(ask.begin, ask.leader_epoch)))

    def _answer_all(self, selector: selectors.BaseSelector) -> None:
        """Answers slots whose partitions have news, or whose time to wait is over."""
        with self._lock:
            changed, self._changed = self._changed, set()
        now = time.monotonic()
        for client in list(self._clients.values()):
            try:
                session, fetch = client.session, client.fetch
                if session is None:
                    _check_time(client, now)
                elif fetch and (now >= client.due or any(a.part in changed for a in fetch.asks)):
                    self._answer(client, session, fetch)
                    self._flush(selector, client)
            except (OSError, ProtocolError) as error:
                self._drop(selector, client, error)

    def _answer(self, client: _Client, session: ChannelSession, fetch: Fetch) -> None:
        """Answers a fetch, unless it should wait for records."""
        portions, evicted, size = [], [], 0
        with self._lock:
            for ask in fetch.asks:
                found = self._cache.fetch(client.number, ask, fetch.max_bytes - size)
                if isinstance(found, Portion):
                    portions.append(found)
                    size += found.rows.nbytes if found.rows is not None else 0
                elif isinstance(found, Evicted):
                    evicted.append(found)
                if size >= fetch.max_bytes:
                    break
        now = time.monotonic()
        if not (portions or evicted) and now < client.due:
            return
        is_news = evicted or any(one.rows is not None or one.next == one.first for one in portions)
        if not is_news and not client.is_delayed:
            client.is_delayed, client.due = True, min(client.due, now + _OTHERS)
            return
        if not is_news and now < client.due:
            return
        client.is_delayed = False
        broker_bytes, self._broker_bytes = self._broker_bytes, 0
        answer = FetchAnswer(tuple(portions), tuple(evicted), broker_bytes)
        client.unsent += session.sent.seal(Frame.FETCHED, encode_answer(answer))
        client.fetch = None

    def _flush(self, selector: selectors.BaseSelector, client: _Client) -> None:
        with suppress(BlockingIOError):
            while client.unsent:
                del client.unsent[: client.sock.send(client.unsent[: 1 << 18])]
        writes = selectors.EVENT_WRITE if client.unsent else 0
        selector.modify(client.sock, selectors.EVENT_READ | writes, client)

    def _drop(self, selector: selectors.BaseSelector, client: _Client, error: Exception) -> None:
        log.debug("a connection to the fetch server ends: %s", error)
        selector.unregister(client.sock)
        del self._clients[client.sock.fileno()]
        client.sock.close()
        if client.session is not None:
            with self._lock:
                self._cache.leave(client.number)


def _check_time(client: _Client, now: float) -> None:
    if now > client.prove_by:
        raise ProtocolError("no handshake in time")


def _without_dropped(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Empties records that do not pass the filter: slots need only their offsets."""
    marks = rows.column(FILTERED)
    if not pc.any(marks).as_py():
        return rows
    columns: list[Any] = []
    for name in rows.schema.names:
        column = rows.column(name)
        if name in ("key", "value", "headers"):
            column = pc.if_else(marks, pa.scalar(None, column.type), column)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def _without_values(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Removes values and headers: slots read those of their own records themselves."""
    columns = [
        pa.nulls(rows.num_rows, field.type) if field.name in ("value", "headers") else column
        for field, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=rows.schema)


def listen(path: str) -> socket.socket:
    """Returns a socket that listens at a path, for this user alone.

    Raises:
        OSError: It cannot be created there.
    """
    with suppress(FileNotFoundError):
        Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(mask)
    listener.listen(64)
    return listener


def main() -> None:
    """Runs a fetch server; its `ServerSpec` comes by standard input, with its length before it."""
    logging.basicConfig(format="fetch server: %(message)s")
    sys.setswitchinterval(_SWITCH)
    parent = sys.stdin.buffer
    spec = ServerSpec.decode(parent.read(int.from_bytes(parent.read(4), "big")))
    listener = listen(spec.path)
    gc.freeze()  # As in a slot.
    try:
        FetchServer(spec, listener, parent).serve()
    finally:
        with suppress(OSError):
            Path(spec.path).unlink()


if __name__ == "__main__":
    main()
