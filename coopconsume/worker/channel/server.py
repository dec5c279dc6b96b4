"""The driver's side of the channel: one listener and one thread for all slots of a job."""

from __future__ import annotations

import logging
import math
import selectors
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from coopconsume.worker.channel.lease import Grants
from coopconsume.worker.channel.messages import decode_report
from coopconsume.worker.channel.wire import (
    ASK,
    CALL,
    FRAME_BYTES,
    LEASE,
    NO_BATCH,
    ChannelSession,
    DriverHandshake,
    Frame,
    ProtocolError,
    Splitter,
)
from coopconsume.worker.process_timer import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from coopconsume.worker.channel.lease import At
    from coopconsume.worker.channel.spec import ChannelSpec
    from coopconsume.worker.channel.wire import Identity
    from coopconsume.worker.host_locks import DriverLock
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Seconds in which a client must complete the handshake.
HANDSHAKE_TIME = 5.0
#: Connections before the end of their handshake, at most; a further one closes another one.
STRANGERS = 128
#: Seconds that workers have to close their handlers at the end of a run.
ENDING = 2.0
#: Unread bytes with which a slot still gets a message; with more its connection is closed.
UNREAD_BYTES = 64 << 10
#: Bytes read from a connection, and connections accepted, in one turn.
_READ_BYTES = 256 << 10
_ACCEPTS = 64
#: Seconds for which no connection is accepted once the process has no file handles left.
_REST = 0.2


class _Connection:
    """The connection of a client; of a slot once the handshake is complete."""

    def __init__(self, sock: socket.socket, handshake: DriverHandshake, deadline: float) -> None:
        self.sock = sock
        self.handshake = handshake
        self.deadline = deadline
        self.splitter = Splitter()
        self.session: ChannelSession | None = None
        self.unsent = bytearray()
        #: The stamp of a request for a lease that is not answered yet.
        self.asked: int | None = None
        self.is_asked_to_stop = False
        self.is_dropped = False

    @property
    def at(self) -> At | None:
        if self.session is None:
            return None
        return self.session.identity.batch, self.session.identity.slot


class ChannelServer:
    """Listens for the slots of a job, grants leases, stops slots and takes progressive reports.

    All methods may be called from any thread, and none of them waits for a slot.

    Args:
        spec: The channel that it opens, without its workers. Its port is to listen on; 0: any
            free one.
        bind: Address to listen on.
        run: Identifies this run of the job; slots of other runs are refused.
        on_report: Called with each progressive report, in the server's thread.
        on_call: Called with batch, slot, and partition, offset and seconds of the oldest handler
            call of the slot if that takes long, else None; in that thread.
        driver_lock: Of the driver; it is withdrawn before a slot gets a lease whose host does not
            know that it runs.
        lives_until: Called with batch and slot, in that thread: until when the process of the slot
            may live, on `coopconsume.worker.process_timer.clock`; infinity: for ever.

    Raises:
        OSError: The address or port cannot be used.
    """

    def __init__(
        self,
        spec: ChannelSpec,
        bind: str,
        run: str,
        on_report: Callable[[SlotReport], None],
        *,
        on_call: Callable[[int, int, tuple[int, int, float] | None], None] = lambda *_: None,
        lives_until: Callable[[At], float] = lambda _: math.inf,
        driver_lock: DriverLock | None = None,
    ) -> None:
        self._run = run
        self._on_report = on_report
        self._on_call = on_call
        self._lives_until = lives_until
        self._driver_lock = driver_lock
        self._listener = listen(bind, spec.port)
        self._spec = replace(
            spec,
            host=plain_host(spec.host),
            port=self._listener.getsockname()[1],
            workers=None if driver_lock is None else driver_lock.workers,
        )
        self._lock = threading.Lock()
        self._grants = Grants(spec.lease)
        #: Messages to slots; those to slots without a connection are dropped.
        self._unsent: deque[tuple[At, Frame, bytes]] = deque()
        self._ended: deque[int] = deque()
        self._slots: dict[At, _Connection] = {}
        #: Slots that had their connection. The same process may connect again, another one may not.
        self._known: dict[At, Identity] = {}
        #: Until when the processes of slots live, by the last answer to each.
        self._lives: dict[At, float] = {}
        self._strangers: dict[_Connection, None] = {}
        #: Of workers that wait for the end of the run.
        self._watchers: set[_Connection] = set()
        self._is_closing = False
        self._has_closed = threading.Event()
        self._accept_at = 0.0
        self._selector = selectors.DefaultSelector()
        self._waker, self._woken = socket.socketpair()
        for sock in (self._waker, self._woken):
            sock.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._thread = threading.Thread(
            target=self._run_thread, name="coopconsume-channel", daemon=True
        )
        self._thread.start()

    def spec(self) -> ChannelSpec:
        """Returns what slots need to connect."""
        return self._spec

    @property
    def connected(self) -> set[At]:
        """The (batch, slot) whose connection is open."""
        with self._lock:
            return set(self._slots)

    def has_met(self, at: At) -> bool:
        """Returns whether a slot of a batch that has not ended has connected and had a lease."""
        with self._lock:
            return self._has_met(at)

    def _has_met(self, at: At) -> bool:
        return at in self._known and self._grants.has_granted(at)

    def was_deserted(self, at: At) -> bool:
        """Returns whether the process of a slot has ended, as it heard nothing for too long."""
        with self._lock:
            return self._lives.get(at, math.inf) <= clock()

    @property
    def is_open(self) -> bool:
        """Whether slots can connect and get leases."""
        return self._thread.is_alive() and not self._is_closing

    def renew(self, slots: Iterable[At], since: float | None = None) -> None:
        """Renews the leases of slots, also of those that connect later.

        Args:
            slots: As (batch, slot).
            since: When the lease begins: the last instant at which the epoch was certainly in
                force, on `coopconsume.worker.process_timer.clock`; None: now.
        """
        with self._lock:
            self._grants.renew(slots, clock() if since is None else since)
        self._wake()

    def stop(self, slots: Collection[At]) -> set[At]:
        """Has slots start no more records, also those that connect later.

        Returns:
            Those that cannot have started any: they have not connected, or had no lease.
        """
        with self._lock:
            self._grants.stop(slots)
            unmet = {at for at in slots if not self._has_met(at)}
        self._wake()
        return unmet

    def send(self, at: At, kind: Frame, payload: bytes = b"") -> None:
        """Sends a message to a slot, if it is connected.

        Args:
            at: As (batch, slot).
            kind: `RELIEVE`, `WITHHOLD`, `DRAIN`, `CHUNKS` or `TAKEN`, see `Frame`.
            payload: What belongs to it, see `coopconsume.worker.channel.wire`.
        """
        self._unsent.append((at, kind, payload))
        self._wake()

    def forget(self, batch: int) -> None:
        """Closes the connections of a batch that has ended."""
        self._ended.append(batch)
        self._wake()

    def close(self) -> None:
        """Closes the listener and all connections; harmless when repeated."""
        self._is_closing = True
        self._wake()
        if threading.current_thread() is not self._thread:
            self._has_closed.wait(10.0)

    def wait_for_workers(self) -> None:
        """Waits, after `close`, until workers have closed their handlers; for `ENDING` at most."""
        self._thread.join(ENDING)

    # -- the server's thread

    def _wake(self) -> None:
        with suppress(OSError):  # It is awake, or closed.
            self._waker.send(b"\0")

    def _run_thread(self) -> None:
        try:
            while not self._is_closing:
                self._turn()
        except Exception:
            log.exception("the channel to the slots has failed: their leases end")
        finally:
            for connection in [*self._strangers, *self._slots.values()]:
                self._drop(connection)
            for sock in (self._listener, self._woken):
                with suppress(KeyError):
                    self._selector.unregister(sock)
                sock.close()
            self._waker.close()
            self._has_closed.set()
            self._end_watchers(time.monotonic() + ENDING)
            self._selector.close()

    def _end_watchers(self, deadline: float) -> None:
        """Says to workers that the run has ended, and waits until they have closed handlers."""
        for connection in self._watchers:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_WR)
        while self._watchers and (left := deadline - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                self._drop(key.data)  # It sends nothing before its end.
        for connection in list(self._watchers):
            self._drop(connection)

    def _turn(self) -> None:
        for key, events in self._selector.select(self._patience()):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._woken:
                with suppress(OSError):
                    self._woken.recv(1 << 16)
            else:
                self._serve(key.data, events)
        now = time.monotonic()
        for stranger in [one for one in self._strangers if one.deadline <= now]:
            self._drop(stranger)
        if self._accept_at and now >= self._accept_at:
            self._accept_at = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        self._obey(clock())

    def _patience(self) -> float | None:
        times = [one.deadline for one in self._strangers][:1]
        times += [self._accept_at] if self._accept_at else []
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self) -> None:
        for _ in range(_ACCEPTS):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                log.warning("the channel takes no connections for a moment: %s", error)
                self._selector.unregister(self._listener)
                self._accept_at = time.monotonic() + _REST
                return
            sock.setblocking(False)
            with suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self._strangers) >= STRANGERS:
                self._drop(self._least_wanted())
            deadline = time.monotonic() + HANDSHAKE_TIME
            connection = _Connection(sock, DriverHandshake(self._spec.secret, self._run), deadline)
            self._strangers[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)

    def _least_wanted(self) -> _Connection:
        """Returns the oldest stranger; one that has not named this run comes first."""
        unnamed = (one for one in self._strangers if not one.handshake.has_identity)
        return next(unnamed, next(iter(self._strangers)))

    def _serve(self, connection: _Connection, events: int) -> None:
        if connection.is_dropped:
            return  # In this turn.
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                self._read(connection)
        except (OSError, ProtocolError) as error:
            who = connection.at or "a client without proof"
            log.debug("the connection of %s is closed: %s", who, error)
            self._drop(connection)

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(
                connection.splitter.limit if connection.session is None else _READ_BYTES
            )
        except BlockingIOError:
            return
        if not data:
            raise ProtocolError("the other side has closed it")
        connection.splitter.feed(data)
        for kind, payload in connection.splitter.frames():
            if connection.session is None:
                self._shake(connection, kind, payload)
            else:
                self._heard(connection, connection.session, kind, payload)

    def _shake(self, connection: _Connection, kind: int, payload: bytes) -> None:
        answer = connection.handshake.answer(kind, payload)
        if isinstance(answer, bytes):
            self._send(connection, answer)
            return
        if answer.identity.batch == NO_BATCH:
            connection.session = answer
            self._strangers.pop(connection)
            self._watchers.add(connection)
            return
        at = (answer.identity.batch, answer.identity.slot)
        if self._known.get(at, answer.identity) != answer.identity:
            raise ProtocolError(f"slot {at[1]} of batch {at[0]} had its connection")
        if (earlier := self._slots.get(at)) is not None:
            self._drop(earlier)
        if self._driver_lock is not None and not answer.identity.is_locked:
            self._driver_lock.withdraw()
        connection.session = answer
        connection.splitter.limit = FRAME_BYTES
        self._strangers.pop(connection)
        with self._lock:
            self._known[at] = answer.identity
            self._slots[at] = connection

    def _heard(
        self, connection: _Connection, session: ChannelSession, kind: int, sealed: bytes
    ) -> None:
        payload = session.received.open(kind, sealed)
        if connection in self._watchers:
            raise ProtocolError("a worker that only waits for the end sent a frame")
        if kind == Frame.ASK:
            (connection.asked,) = ASK.unpack(payload)
        elif kind == Frame.PROGRESS:
            self._on_report(decode_report(payload, session.identity))
        elif kind == Frame.CALL:
            call = CALL.unpack(payload) if payload else None
            self._on_call(session.identity.batch, session.identity.slot, call)
        else:
            raise ProtocolError(f"a slot sent a frame of type {kind}")

    def _obey(self, now: float) -> None:
        """Sends the messages and leases that are due."""
        while self._ended:
            batch = self._ended.popleft()
            for at, connection in list(self._slots.items()):
                if at[0] == batch:
                    self._drop(connection)
            with self._lock:
                self._grants.forget(batch)
                self._known = {at: who for at, who in self._known.items() if at[0] != batch}
                self._lives = {at: until for at, until in self._lives.items() if at[0] != batch}
        while self._unsent:
            at, kind, payload = self._unsent.popleft()
            if (reader := self._slots.get(at)) is not None:
                self._send_frame(reader, kind, payload)
        for at, connection in list(self._slots.items()):
            with self._lock:
                is_stopped, left = self._grants.is_stopped(at), self._grants.left(at, now)
            if is_stopped and not connection.is_asked_to_stop:
                connection.is_asked_to_stop = True
                self._send_frame(connection, Frame.STOP)
            elif connection.asked is not None:
                self._answer(connection, at, connection.asked, left)

    def _answer(self, connection: _Connection, at: At, stamp: int, left: float) -> None:
        """Answers the request of a slot for its lease, if there is anything to grant.

        The process of a slot that starts nothing more may live on: its handlers are to end.
        """
        until, now = self._lives_until(at), clock()
        if until > now and (left > 0 or self._grants.has_granted(at)):
            connection.asked = None
            with self._lock:
                self._lives[at] = until
            self._send_frame(connection, Frame.LEASE, LEASE.pack(stamp, left, until - now))

    def _send_frame(self, connection: _Connection, kind: Frame, payload: bytes = b"") -> None:
        assert connection.session is not None
        try:
            self._send(connection, connection.session.sent.seal(kind, payload))
        except (OSError, ProtocolError) as error:
            log.debug("the connection of %s is closed: %s", connection.at, error)
            self._drop(connection)

    def _send(self, connection: _Connection, data: bytes) -> None:
        self._flush(connection)
        # The message itself may be longer: it names key ranges of many partitions.
        if len(connection.unsent) > UNREAD_BYTES:
            raise ProtocolError("it does not read")
        connection.unsent += data
        self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        with suppress(BlockingIOError):
            while connection.unsent:
                del connection.unsent[: connection.sock.send(connection.unsent)]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unsent else 0)
        self._selector.modify(connection.sock, events, connection)

    def _drop(self, connection: _Connection) -> None:
        connection.is_dropped = True
        self._strangers.pop(connection, None)
        self._watchers.discard(connection)
        with suppress(KeyError, ValueError):
            self._selector.unregister(connection.sock)
        connection.sock.close()
        at = connection.at
        if at is not None and self._slots.get(at) is connection:
            with self._lock:
                del self._slots[at]


def plain_host(host: str) -> str:
    """Returns an address without the brackets in which Spark writes those of IPv6."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def listen(bind: str, port: int) -> socket.socket:
    """Returns a socket that listens, of the family of the address."""
    family, kind, proto, _, address = socket.getaddrinfo(
        plain_host(bind) or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(256)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
