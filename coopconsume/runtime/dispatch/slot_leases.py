"""Renews the leases of slots, and passes the driver's messages to them."""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from commits import CommitLogUnavailable, FencedMember
from coopconsume.classic import driver_address
from coopconsume.group.settings import lease_of, life_of
from coopconsume.runtime.dispatch.report_times import ReportTimes
from coopconsume.worker.channel.server import ChannelServer
from coopconsume.worker.channel.spec import ChannelSpec
from coopconsume.worker.channel.wire import TAKEN, Frame

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from pyspark.sql import SparkSession

    from coopconsume.group.epoch_assignment import EpochAssignment
    from coopconsume.options import Options
    from coopconsume.runtime.commit.pace import CommitTime
    from coopconsume.worker.channel.lease import At
    from coopconsume.worker.host_locks import DriverLock
    from coopconsume.worker.report import SlotReport

log = logging.getLogger(__name__)

#: Reads of the commit log, and renewals, in the time of one lease.
_LOOKS: Final = 4
#: Seconds without a turn of the loop after which leases are not renewed.
_LOOP_STUCK: Final = 10.0
#: Seconds; a lease ends this much earlier than the next owner assumes, because the worker of a
#: handler that exceeds its time takes a moment to end.
_ENDING: Final = 0.1
#: Slots in a row that cannot connect, after which batches have no channel.
_FAILURES: Final = 3
_LOST: Final = (
    "a running batch does not stop before its end, its results are committed as its slots end, and "
    "after a crash the next owner waits for batchTime + handlerTimeout and some seconds more"
)
_REMEDY: Final = (
    "let workers connect to the driver: see spark.driver.host, spark.driver.bindAddress and the "
    "option channelPort"
)


def lease_seconds(spark: SparkSession, options: Options) -> float | None:
    """Returns how long a lease of a slot lasts; None where slots have none, as on Spark Connect."""
    if driver_address(spark) is None:
        return None
    return lease_of(options)


class SlotLeases:
    """Renews the leases of slots while the commit log says that the epoch is in force.

    A thread of its own reads the commit log and renews the leases, so that slots go on while the
    loop waits for Kafka. A lease counts from the read of the log. So even if this process is
    frozen, a slot starts no record later than one lease after the epoch was in force.

    The processes of slots live on for as long as the epoch is in force, as either the log or Kafka
    says; see `EpochProof.in_force_at`.

    Args:
        spark: The session.
        options: Of the consumer.
        run_id: Of this run of the job.
        on_report: Called with each progressive report, in another thread.
        on_call: Called with the longest-running handler calls of slots; see `ChannelServer`.
        driver_lock: Of the driver: it is withdrawn before a batch has no channel.
        real_time: Whether slots report as often as real-time slots do.

    Attributes:
        lease: Seconds of a lease; None: slots have no leases.
        error: Why slots have no channel; empty if they have one.
    """

    def __init__(
        self,
        spark: SparkSession,
        options: Options,
        run_id: str,
        on_report: Callable[[SlotReport], None],
        on_call: Callable[[int, int, tuple[int, int, float] | None], None],
        *,
        driver_lock: DriverLock | None = None,
        real_time: bool = False,
    ) -> None:
        self._driver_lock = driver_lock
        self.lease = lease_seconds(spark, options)
        self.error = ""
        self._server: ChannelServer | None = None
        #: The assignment, when each slot gets its first lease, and when `renew` was called.
        self._renewed: tuple[EpochAssignment | None, Mapping[At, float], float] = (
            None,
            {},
            -math.inf,
        )
        #: Slots that were given up, and their assignments, which give them their time.
        self._given_up: Mapping[At, EpochAssignment] = {}
        self._life = life_of(options, self.lease or 0.0)
        self._report_times = ReportTimes(options.commit_interval, real_time=real_time)
        #: Guards ``_renewed``, and that the server renews no other leases.
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._is_closing = False
        self._failures = 0
        self._has_worked = False
        address = driver_address(spark)
        if self.lease is None or address is None:
            self.give_up("slots cannot reach a driver on Spark Connect", "use a classic session")
            return
        bind, host = address
        spec = ChannelSpec(
            host=host,
            port=options.channel_port,
            secret=secrets.token_bytes(32),
            lease=self.lease,
            report_every=self._report_times.every,
        )
        try:
            self._server = ChannelServer(
                spec,
                bind,
                run_id,
                on_report,
                on_call=on_call,
                lives_until=self.lives_until,
                driver_lock=driver_lock,
            )
        except OSError as error:
            self.give_up(f"no channel to slots on {bind}, port {options.channel_port}: {error}")
            return
        threading.Thread(target=self._run, name="coopconsume-leases", daemon=True).start()

    @property
    def spec(self) -> ChannelSpec | None:
        """How the slots of a new batch connect; None: they have no channel."""
        return None if self._server is None or self.error else self._server.spec()

    def give_up(self, why: str, remedy: str = _REMEDY) -> None:
        """Gives new batches no channel from now on."""
        if self.error:
            return
        if self._driver_lock is not None:
            self._driver_lock.withdraw()
        self.error, self.lease = why, None
        log.warning("%s. The job goes on without a channel: %s; %s", why, _LOST, remedy)

    def slot_ended(self, channel_error: str) -> None:
        """Notes whether a slot that has ended had its channel; if not, there is an error."""
        self._failures = self._failures + 1 if channel_error else 0
        if channel_error and (self._failures >= _FAILURES or not self._has_worked):
            self.give_up(channel_error)
        self._has_worked = self._has_worked or not channel_error

    def renew(
        self,
        assignment: EpochAssignment | None,
        slots: Mapping[At, float],
        given_up: Mapping[At, EpochAssignment] = MappingProxyType({}),
    ) -> None:
        """Renews the leases of these slots only, while the epoch of an assignment is in force.

        Args:
            assignment: The assignment; None: no slot works.
            slots: When each slot gets its first lease, on the monotonic clock.
            given_up: Slots of earlier assignments that were asked to end, and have their time.
        """
        with self._lock:
            self._given_up = given_up
            before, self._renewed = self._renewed, (assignment, slots, time.monotonic())
        if self._renewed[:2] != before[:2]:
            self._changed.set()

    def lives_until(self, at: At) -> float:
        """Returns until when the process of a slot may live, on the clock of its timer."""
        assignment, slots, _ = self._renewed
        if at not in slots or assignment is None:
            assignment = self._given_up.get(at)
        if assignment is None:
            return -math.inf
        if not assignment.fails_stop:
            return math.inf
        return assignment.proof.in_force_at - _ENDING + self._life

    def was_deserted(self, at: At) -> bool:
        """Returns whether a slot of a running batch was ended by its timer, see `ChannelServer`."""
        return self._server is not None and self._server.was_deserted(at)

    def stop(self, slots: Collection[At]) -> set[At]:
        """Has slots start no more records; returns those that cannot have started any."""
        if self._server is None:
            return set()
        return self._server.stop(slots)

    def has_met(self, at: At) -> bool:
        """Returns whether a slot of a running batch may have started, see `ChannelServer`."""
        return self._server is not None and self._server.has_met(at)

    def send(self, at: At, kind: Frame, payload: bytes = b"") -> None:
        """Sends a message to a slot, see `ChannelServer.send`."""
        if self._server is not None:
            self._server.send(at, kind, payload)

    def taken(self, report: SlotReport, next_commit: CommitTime) -> None:
        """Acknowledges a progressive report to its slot, and says when the next one is wanted.

        Args:
            report: The report.
            next_commit: When that begins.
        """
        if self._server is not None:
            report_in = self._report_times.next_in(next_commit)
            at = (report.batch, report.slot)
            self._server.send(at, Frame.TAKEN, TAKEN.pack(report.seq, report_in))

    def ended(self, batch: int) -> None:
        """Closes the connections of a batch that has ended; none of its slots gets a lease."""
        if self._server is None:
            return
        with self._lock:
            assignment, slots, renewed_at = self._renewed
            left = {at: begins for at, begins in slots.items() if at[0] != batch}
            self._renewed = assignment, left, renewed_at
            self._given_up = {at: one for at, one in self._given_up.items() if at[0] != batch}
            self._server.forget(batch)

    def close(self) -> None:
        """Ends all leases; harmless when repeated."""
        self._is_closing = True
        self._changed.set()
        if self._server is not None:
            self._server.close()

    def wait_for_workers(self) -> None:
        """Waits for a moment, after `close`, until workers have closed their handlers."""
        if self._server is not None:
            self._server.wait_for_workers()

    # -- in a thread of its own

    def _run(self) -> None:
        assert self.lease is not None
        pause = self.lease / _LOOKS
        while not self._is_closing:
            self._changed.clear()
            (assignment, slots, renewed_at), now = self._renewed, time.monotonic()
            begun = {at for at, begins in slots.items() if begins <= now}
            if assignment is not None and begun:
                is_stuck = now - renewed_at >= _LOOP_STUCK
                self._renew(assignment, set() if is_stuck else begun, pause)
            later = [begins - time.monotonic() for at, begins in slots.items() if at not in begun]
            self._changed.wait(max(0.0, min([pause, *later])))

    def _renew(self, assignment: EpochAssignment, slots: set[At], within: float) -> None:
        """Looks at the log, as slots live by it, too, and renews the leases of some."""
        assert self._server is not None
        try:
            since = assignment.proof.check(within)
        except (CommitLogUnavailable, FencedMember) as error:
            log.debug("leases are not renewed: %s", error)  # The loop finds out for itself.
        except Exception:
            log.exception("leases are not renewed")
        else:
            with self._lock:  # A batch may have ended while the log was looked at.
                self._server.renew(slots & self._renewed[1].keys(), since - _ENDING)
