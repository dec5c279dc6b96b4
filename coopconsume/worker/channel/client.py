"""The slot's side of the channel: requests leases, obeys the driver, sends progressive reports.

It runs in one thread beside the handlers. Task-side code: the standard library and pyarrow.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from coopconsume.worker.channel.lease import Lease, Life
from coopconsume.worker.channel.messages import decode_chunks, encode_report
from coopconsume.worker.channel.wire import (
    ASK,
    CALL,
    FRAME_BYTES,
    HANDSHAKE_BYTES,
    LEASE,
    TAKEN,
    ChannelSession,
    Frame,
    Identity,
    ProtocolError,
    SlotHandshake,
    Splitter,
    decode_withhold,
)
from coopconsume.worker.crash_journal import Deadline
from coopconsume.worker.process_timer import clock as timer_clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from coopconsume.worker.channel.spec import ChannelSpec
    from coopconsume.worker.realtime.slot_reading import SlotReading
    from coopconsume.worker.report import PartitionWork, SlotReport
    from coopconsume.worker.reporter import SlotReporter
    from coopconsume.worker.time_box import TimeBox

log = logging.getLogger(__name__)

#: Seconds in which a slot connects, authenticates and gets its first lease.
CONNECT_TIME = 10.0
#: Seconds until a slot connects again if its connection was closed before the handshake ended.
_RETRY = 0.1
#: Seconds until a slot that has lost its connection connects again, and that this may take.
_AGAIN = 0.5
#: Leases without a word after which a connection that seems open is considered lost.
_SILENT = 2
#: Seconds after which a running handler call is reported to the driver, and how often the slot
#: looks for one in that time.
SLOW_CALL = 1.0
_LOOKS = 5
#: Unacknowledged progressive reports, and their bytes, at which no further one is made: a driver of
#: many slots gets fewer reports, each of more records, and none waits for long.
UNACKNOWLEDGED = 4
UNACKNOWLEDGED_BYTES = 8 << 20
#: Seconds for which what is settled goes into the report that `SlotChannel.report_soon` asks for.
_GATHERED = 0.002
#: Bytes of a frame beside its payload, at most.
_FRAME_EXTRA = 64


class SlotChannel:
    """The connection of a slot, for one batch.

    It starts to connect at once, in a thread of its own, while Spark still reads the rows. A slot
    that has lost its connection starts nothing more. It connects again, as what it runs may go on
    while its driver is there: what it has reported since comes with its final report.

    Args:
        spec: Of the channel.
        run: Identifies the run of the job.
        batch: Number of the batch.
        slot: Number of the slot.
        clock: Seconds, monotonic.
        is_locked: Whether the host knows that the task runs.
    """

    def __init__(
        self,
        spec: ChannelSpec,
        run: str,
        batch: int,
        slot: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_locked: bool = False,
    ) -> None:
        self._spec = spec
        self._identity = Identity(run, batch, slot, os.getpid(), is_locked)
        self._clock = clock
        self._lease = Lease(spec.lease)
        self._life = Life()
        #: Guards what the task's thread and the channel's thread share.
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._error = ""
        #: The error of the library's own code that has ended the channel.
        self.failure: Exception | None = None
        self._halted: tuple[str, float] | None = None
        #: Those of the slot, once it has records.
        self._reporter: SlotReporter | None = None
        self._time_box: TimeBox | None = None
        self._reading: SlotReading | None = None
        self._is_drained = False
        #: Chunks that came before `begin`.
        self._early: list[dict[int, PartitionWork]] = []
        self._named: tuple[int, int] | None = None
        self._cut_at = self._look_at = 0.0
        self._is_closed = False
        self._closing = threading.Event()
        self._seq = 0
        self._unacknowledged: list[tuple[SlotReport, int]] = []
        self._unsent = bytearray()
        #: Whether `report_soon` was called. Not guarded: a runner holds its own lock then.
        self._is_report_wanted = False
        self._is_too_long = False
        #: Whether what is done is left to the final report: reports come in their order.
        self._reports_at_end = False
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="coopconsume-channel", daemon=True)
        self._thread.start()

    def wait(self) -> str:
        """Waits until the slot may start records, is stopped, or has no channel.

        Returns:
            Why it has no channel; empty if it has one.
        """
        if not self._ready.wait(
            2 * CONNECT_TIME
        ):  # Resolving a host name has no time limit of its own.
            self._lost("it cannot be reached in time")
        return self._error

    def begin(
        self, reporter: SlotReporter, time_box: TimeBox, reading: SlotReading | None = None
    ) -> None:
        """Obeys the driver and sends progressive reports from now on: the slot has records.

        Args:
            reporter: Makes the reports, and gives records back. Called in the channel's thread.
            time_box: Is halted, once at most, in any thread.
            reading: Of a real-time slot: makes its reports, and gets what came before. Called in
                the channel's thread, or at once.
        """
        with self._lock:
            self._reporter, self._time_box, self._reading = reporter, time_box, reading
            self._cut_at = self._clock() + self._spec.report_every
            halted = self._halted
            self._python_runs()
            self._keep_alive()
            if reading is not None:
                for work in self._early:
                    reading.hand_out(work)
                if self._is_drained:
                    reading.drain()
        if halted is not None:
            time_box.halt(*halted)
        self._wake()

    def report_soon(self) -> None:
        """Has a progressive report made in a moment. Called in any thread, with any lock held."""
        self._is_report_wanted = True
        self._wake()

    def may_start(self, now: float) -> bool:
        """Whether the lease holds at an instant of the monotonic clock."""
        return self._lease.holds(now)

    def close(self) -> list[SlotReport]:
        """Ends the connection; returns the progressive reports that were not acknowledged."""
        with self._lock:
            self._is_closed = True
            left = [report for report, _ in self._unacknowledged]
        self._closing.set()
        self._wake()
        self._thread.join(1.0)
        return left

    # -- the channel's thread

    def _wake(self) -> None:
        with suppress(OSError):
            self._waker.send(b"\0")

    def _run(self) -> None:
        try:
            self._stay_connected()
        except Exception as error:  # a defect here must not let a slot run without leases
            log.exception("the channel of slot %d has failed", self._identity.slot)
            self.failure = error
            self._lost(f"{type(error).__name__}: {error}")
        finally:
            self._waker.close()
            self._woken.close()

    def _stay_connected(self) -> None:
        """Connects, and connects again when a connection is lost; the first one must succeed."""
        within = CONNECT_TIME
        while not self._is_closed:
            try:
                self._connect_and_talk(time.monotonic() + within)
            except (OSError, ProtocolError) as error:
                self._lost(f"{type(error).__name__}: {error}")
            if self._error:
                return
            within, self._reports_at_end = _AGAIN, True
            self._unsent.clear()
            self._python_runs()
            self._closing.wait(_AGAIN)

    def _connect_and_talk(self, deadline: float) -> None:
        sock, session = self._connect(deadline)
        with sock:
            self._talk(sock, session, deadline)

    def _python_runs(self) -> None:
        """Notes for the crash journal that no handler keeps the interpreter lock."""
        time_box = self._time_box
        if time_box is not None and time_box.fail_stop is not None:
            time_box.fail_stop.python_runs()

    def _keep_alive(self) -> None:
        """Sets the timer that ends the process forward."""
        time_box = self._time_box
        if time_box is not None and time_box.fail_stop is not None:
            time_box.fail_stop.end_at(Deadline.LEASE, self._life.until)

    def _lost(self, why: str) -> None:
        if not self._ready.is_set():
            where = f"{self._spec.host}:{self._spec.port}"
            self._error = f"no channel to the driver at {where}: {why}"
            self._ready.set()
        self._halt("connection", self._clock())

    def _connect(self, deadline: float) -> tuple[socket.socket, ChannelSession]:
        """Connects, and both sides authenticate.

        Raises:
            OSError, ProtocolError: The driver cannot be reached, or is not authenticated.
        """
        while True:
            try:
                return self._try_to_connect(deadline)
            except ConnectionRefusedError:
                raise
            except ConnectionError:
                # The driver closes unauthenticated connections if its port is flooded.
                if self._is_closed or time.monotonic() + _RETRY >= deadline:
                    raise
                time.sleep(_RETRY)

    def _try_to_connect(self, deadline: float) -> tuple[socket.socket, ChannelSession]:
        address = (self._spec.host, self._spec.port)
        sock = socket.create_connection(address, timeout=max(0.001, deadline - time.monotonic()))
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = authenticated(sock, self._spec.secret, self._identity, deadline)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
        return sock, session

    def _talk(self, sock: socket.socket, session: ChannelSession, deadline: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            self._talk_by(selector, sock, session, deadline)

    def _talk_by(
        self,
        selector: selectors.BaseSelector,
        sock: socket.socket,
        session: ChannelSession,
        deadline: float,
    ) -> None:
        splitter, heard_at = Splitter(FRAME_BYTES), self._clock()
        while not self._is_closed:
            now = self._clock()
            if self._lease.is_lost(now) and now - heard_at > _SILENT * self._spec.lease:
                raise ConnectionAbortedError("nothing is heard of the driver")
            self._python_runs()
            stamp = self._lease.ask(now)
            if stamp is not None:
                self._life.asked(stamp, timer_clock())
                self._unsent += session.sent.seal(Frame.ASK, ASK.pack(stamp))
            if self._lease.is_lost(now):
                self._halt("lease", self._lease.until)
            self._name_oldest_call(session, now)
            self._cut(session, now)
            self._flush(sock)
            if not self._ready.is_set() and time.monotonic() >= deadline:
                raise ProtocolError(f"no lease within {CONNECT_TIME:g} s")
            writes = selectors.EVENT_WRITE if self._unsent else 0
            selector.modify(sock, selectors.EVENT_READ | writes)
            for key, events in selector.select(self._next_step_in(self._clock(), deadline)):
                if key.fileobj is self._woken:
                    self._woken.recv(1 << 10)
                elif events & selectors.EVENT_READ:
                    splitter.feed(received(sock, 1 << 16))
                    heard_at = self._clock()
                    for kind, sealed in splitter.frames():
                        self._heard(kind, session.received.open(kind, sealed))

    def _next_step_in(self, now: float, deadline: float) -> float:
        waits = [self._lease.next_step_in(now)]
        if not self._ready.is_set():
            waits.append(max(0.0, deadline - time.monotonic()))
        if self._reporter is not None:
            waits.append(max(0.0, self._cut_at - now))
        return min(waits)

    def _heard(self, kind: int, payload: bytes) -> None:
        if kind == Frame.LEASE:
            stamp, seconds, life = LEASE.unpack(payload)
            self._life.granted(stamp, life)
            self._keep_alive()
            if self._lease.granted(stamp, seconds, self._clock()):
                self._ready.set()
        elif kind == Frame.STOP:
            self._halt("stop", self._clock())
            self._ready.set()
        elif kind in (Frame.RELIEVE, Frame.WITHHOLD):
            self._give_back(kind, payload)
        elif kind == Frame.DRAIN:
            self._drain()
        elif kind == Frame.CHUNKS:
            self._take_chunks(decode_chunks(payload))
        elif kind == Frame.TAKEN:
            self._taken(*TAKEN.unpack(payload))
        else:
            raise ProtocolError(f"the driver sent a frame of type {kind}")

    def _give_back(self, kind: int, payload: bytes) -> None:
        """Has the slot give back what it has not started: all of it, or some key ranges."""
        if self._reporter is None:
            return  # It has no records yet.
        if kind == Frame.RELIEVE:
            self._reporter.want_relief()
        else:
            self._reporter.withhold(*decode_withhold(payload))
        self._cut_at = self._clock()

    def _taken(self, seq: int, report_in: float) -> None:
        now = self._clock()
        with self._lock:
            self._unacknowledged = [one for one in self._unacknowledged if one[0].seq > seq]
            if seq == self._seq and self._cut_at > now:
                self._cut_at = now + report_in

    def _take_chunks(self, work: dict[int, PartitionWork]) -> None:
        with self._lock:
            if self._reading is None:
                self._early.append(work)
            else:
                self._reading.hand_out(work)

    def _drain(self) -> None:
        with self._lock:
            self._is_drained = True
            if self._reading is not None:  # Else it has no records yet.
                self._reading.drain()

    def _halt(self, why: str, since: float) -> None:
        with self._lock:
            if self._halted is not None or self._is_closed:
                return
            self._halted = (why, since)
            time_box = self._time_box
        if time_box is not None:
            time_box.halt(why, since)

    def _name_oldest_call(self, session: ChannelSession, now: float) -> None:
        """Reports the handler call that has run for longest, once it is long or another one."""
        if self._is_closed or self._reporter is None or now < max(self._cut_at, self._look_at):
            return
        self._look_at = now + SLOW_CALL / _LOOKS
        found = self._reporter.oldest_call(now)
        if found is not None and found[2] < SLOW_CALL:
            found = None
        named = found[:2] if found is not None else None
        if named != self._named:
            self._named = named
            payload = b"" if found is None else CALL.pack(*found)
            self._unsent += session.sent.seal(Frame.CALL, payload)

    def _cut(self, session: ChannelSession, now: float) -> None:
        """Sends a progressive report if it is due."""
        with self._lock:
            if self._is_report_wanted:
                self._is_report_wanted = False
                self._cut_at = min(self._cut_at, now + _GATHERED)
            if self._is_closed or self._reporter is None or now < self._cut_at:
                return
            self._cut_at = now + self._spec.report_every
            if self._is_too_long or self._reports_at_end or self._has_to_wait:
                return
            try:
                report = (self._reading or self._reporter).take_report(self._seq + 1)
                if report is None:
                    return
                self._seq += 1
                self._unacknowledged.append((report, 0))
                payload = encode_report(report)
            except Exception as error:
                # Noted with the lock: a final report that did not know it would name records as
                # read that are in no report, and they would count as holes.
                self.failure = error
                raise
            self._unacknowledged[-1] = (report, len(payload))
        if len(payload) + _FRAME_EXTRA > FRAME_BYTES:
            # The driver accepts reports in order, so all others come with the final report.
            self._is_too_long = True
            return
        self._unsent += session.sent.seal(Frame.PROGRESS, payload)

    @property
    def _has_to_wait(self) -> bool:
        waiting = [size for _, size in self._unacknowledged]
        return len(waiting) >= UNACKNOWLEDGED or sum(waiting) > UNACKNOWLEDGED_BYTES

    def _flush(self, sock: socket.socket) -> None:
        with suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: sock.send(self._unsent[: 1 << 18])]


def authenticated(
    sock: socket.socket, secret: bytes, identity: Identity, deadline: float
) -> ChannelSession:
    """Has both sides of a connection authenticate; returns the slot's side.

    Args:
        sock: The connection.
        secret: Shared with the other side.
        identity: Of the slot.
        deadline: When that must have happened, on the monotonic clock.

    Raises:
        OSError, ProtocolError: The other side does not answer in time, or does not know the secret.
    """
    handshake, splitter = SlotHandshake(secret, identity), Splitter()
    sock.sendall(handshake.hello())
    while (answer := next(splitter.frames(), None)) is None:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        splitter.feed(received(sock, HANDSHAKE_BYTES))
    proof, session = handshake.answer(*answer)
    sock.sendall(proof)
    return session


def received(sock: socket.socket, most: int) -> bytes:
    """Returns the next bytes.

    Raises:
        ConnectionError: The other side has closed the connection.
    """
    data = sock.recv(most)
    if not data:
        raise ConnectionResetError("the other side has closed the connection")
    return data
