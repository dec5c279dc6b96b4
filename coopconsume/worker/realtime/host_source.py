"""The source of a slot: the fetch server of its host, if there is one, and the brokers.

A partition is read from Kafka by the slot itself while there is no server, or while the server does
not have the next offset.
"""

from __future__ import annotations

import logging
import os
import queue
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from commits import OffsetAndEpoch
from coopconsume.worker.channel.wire import Identity
from coopconsume.worker.realtime.confirmed_reads import Fetched
from coopconsume.worker.realtime.errors import opening
from coopconsume.worker.realtime.fetch_messages import Fetch, FetchAnswer
from coopconsume.worker.realtime.fetch_server import ServerSpec
from coopconsume.worker.realtime.fetch_state import FetchState
from coopconsume.worker.realtime.host_link import Connected, HostLink, server_secret, with_path
from coopconsume.worker.realtime.reader import row_schema
from coopconsume.worker.realtime.source import KafkaSource
from coopconsume.worker.realtime.value_reader import ValueReader, value_settings
from coopconsume.worker.realtime.wanted import LAST
from coopconsume.worker.report import Reads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from commits.model import TopicPartition
    from coopconsume.worker.realtime.host_link import Lost
    from coopconsume.worker.realtime.log_reach import Start
    from coopconsume.worker.report import BatchSpec

log = logging.getLogger(__name__)

#: `Fetch.max_bytes` and `Fetch.max_wait`.
MAX_BYTES: Final = 1 << 20
MAX_WAIT: Final = 0.5
#: `Fetch.max_wait` of slots that get chunks: the next fetch asks for those that came meanwhile.
CHUNK_WAIT: Final = 0.1
#: Seconds for which a slot waits for the server as it starts.
START_TIME: Final = 3.0
#: Seconds of a poll of Kafka while an answer of the server may come.
_SLICE: Final = 0.005
#: Offsets of others that a slot's own consumer reads and drops; if there are more, it skips them.
_PASSED: Final = 1_000


class HostSource:
    """Asks the fetch server of the host, and reads from Kafka what that does not have.

    Args:
        link: The connection to the server; None: the slot reads without one.
        open_own: Opens the slot's own consumer, given where each partition is read from.
        places: (topic, partition) by index.
        state: Where the next records of each of the slot's partitions come from.
        max_wait: `Fetch.max_wait`.
        start_time: Seconds for which it waits for the server at first.
        values: Reads the values of the server's records; None: the server has them.
    """

    def __init__(
        self,
        link: HostLink | None,
        open_own: Callable[[Mapping[TopicPartition, Start]], KafkaSource],
        places: tuple[TopicPartition, ...],
        state: FetchState,
        max_wait: float = MAX_WAIT,
        start_time: float = START_TIME,
        values: ValueReader | None = None,
    ) -> None:
        self._link = link
        self._open_own = open_own
        self._places = places
        self._index = {place: part for part, place in enumerate(places)}
        self.state = state
        self._max_wait = max_wait
        self._own: KafkaSource | None = None
        #: The partitions of the slot's own consumer, and the offset that it reads next of each.
        self._own_next: dict[int, int] = {}
        self._is_connected = self._is_asking = False
        self._wait_until: float | None = time.monotonic() + start_time
        self._server_bytes = 0
        self._values = values
        if link is None:
            self._lose()

    @property
    def reads(self) -> Reads:
        """Counts of what it has read since it was opened."""
        own = self._own.broker_bytes if self._own else 0
        own += self._values.broker_bytes if self._values else 0
        return Reads(self.state.hits, self.state.misses, self._server_bytes + own)

    def want(self, part: int, pairs: Iterable[tuple[int, int]]) -> None:
        """Adds offsets to read.

        Args:
            part: Index of the partition.
            pairs: The first and last offset of each range.
        """
        self.state.want(part, pairs)

    def poll(self, timeout: float, most: int) -> Fetched:
        """Returns the next records, see `KafkaSource.poll`."""
        until = time.monotonic() + timeout
        while True:
            if self._values is not None and self._values.is_busy:
                # Nothing else is read meanwhile: it would overtake these records.
                return Fetched(portions=self._values.poll(timeout))
            if self._wait_until is not None and time.monotonic() > self._wait_until:
                log.info("the fetch server of this host is not there yet; reading without it")
                self._lose()
            fetched = self._read_own(until, most)
            left = 0.0 if fetched or self.state.own else max(0.0, until - time.monotonic())
            event = self._next_event(left)
            if event is not None:
                self._heard(event, fetched)
            self._ask()
            if fetched or time.monotonic() >= until:
                return fetched

    def close(self) -> None:
        """Closes the connection and the slot's own consumers."""
        if self._link is not None:
            self._link.close()
        if self._values is not None:
            self._values.close()
        if self._own is not None:
            self._own.close()

    def _next_event(self, timeout: float) -> Connected | FetchAnswer | Lost | None:
        """Returns what came from the server; waits at most so many seconds for it."""
        if self._link is None:
            time.sleep(timeout)
            return None
        try:
            return self._link.events.get(block=timeout > 0, timeout=timeout or None)
        except queue.Empty:
            return None

    def _ask(self) -> None:
        if self._link is not None and self._is_connected and not self._is_asking:
            asks = self.state.asks()
            if asks:
                self._is_asking = True
                self._link.send(Fetch(asks, MAX_BYTES, self._max_wait))

    def _heard(self, event: Connected | FetchAnswer | Lost, fetched: Fetched) -> None:
        if isinstance(event, FetchAnswer):
            self._is_asking = False
            self._server_bytes += event.broker_bytes
            for evicted in event.evicted:
                self.state.missed(evicted)
            portions = [one for one in event.portions if self.state.answered(one)]
            if self._values is None:
                fetched.portions = portions
            else:
                self._values.add(portions)
        elif isinstance(event, Connected):
            self._is_connected, self._is_asking, self._wait_until = True, False, None
        else:
            self._lose()

    def _lose(self) -> None:
        self._is_connected = self._is_asking = False
        self._wait_until = None
        self.state.lost()

    def _read_own(self, until: float, most: int) -> Fetched:
        """Polls the partitions that the slot reads itself, after it has assigned them."""
        wanted = self.state.own
        if not wanted:
            return Fetched()
        own = self._assign(wanted)
        own.pause(frozenset(self._places[part] for part in self._own_next.keys() - wanted.keys()))
        # Not beyond what is wanted: what others do not handle may still come to this slot.
        left = min(self.state.last_of(part) + 1 - self._own_next[part] for part in wanted)
        slice_of = _SLICE if self._is_connected else max(0.0, until - time.monotonic())
        fetched = self._wanted_of(own.poll(slice_of, max(1, min(most, left))), wanted)
        for (topic, partition), last in {
            (r.topic(), r.partition()): r for r in fetched.records
        }.items():
            assert topic is not None
            assert partition is not None
            offset, epoch = last.offset(), last.leader_epoch()
            assert offset is not None
            reached = None if epoch is None or epoch < 0 else OffsetAndEpoch(offset + 1, epoch)
            self._has_read(self._index[topic, partition], offset + 1, reached)
        for place, end in fetched.ends.items():
            self._has_read(self._index[place], end)
        return fetched

    def _wanted_of(self, fetched: Fetched, wanted: Mapping[int, int]) -> Fetched:
        """Returns what was fetched, without partitions that were paused meanwhile.

        Such a partition is assigned again before the slot reads it itself: its next offset may be
        lower by now.
        """
        places = {self._places[part] for part in wanted}
        strays = {(r.topic(), r.partition()) for r in fetched.records} | fetched.ends.keys()
        if strays <= places:
            return fetched
        for part in self._own_next.keys() - wanted.keys():
            self._own_next[part] = LAST
        fetched.records = [r for r in fetched.records if (r.topic(), r.partition()) in places]
        fetched.ends = {place: end for place, end in fetched.ends.items() if place in places}
        return fetched

    def _has_read(self, part: int, following: int, reached: OffsetAndEpoch | None = None) -> None:
        self._own_next[part] = max(self._own_next[part], following)
        self.state.has_read(part, following, reached)

    def _assign(self, wanted: Mapping[int, int]) -> KafkaSource:
        """Returns the slot's own consumer, which stands at or before the next offsets."""
        starts = {part: self.state.start_of(part) for part in wanted}
        following = self._own_next
        if self._own is None or any(
            part not in following or not 0 <= start.offset - following[part] <= _PASSED
            for part, start in starts.items()
        ):
            self._own_next = {part: start.offset for part, start in starts.items()}
            places = {self._places[part]: start for part, start in starts.items()}
            if self._own is None:
                with opening():
                    self._own = self._open_own(places)
            else:
                self._own.assign(places)
        return self._own


def open_source(spec: BatchSpec, slot: int, starts: Mapping[TopicPartition, int]) -> HostSource:
    """Opens the source of a slot: the fetch server of its host, if the run has one.

    Args:
        spec: The run.
        slot: Number of the slot.
        starts: The first offset to read, by partition; `NOTHING`: the slot reads the chunks that it
            gets.
    """
    realtime = spec.realtime
    assert realtime is not None
    logs = dict(zip(spec.partitions, realtime.logs, strict=True))
    firsts = {part: starts[at] for part, at in enumerate(spec.partitions) if at in starts}
    source = partial(
        HostSource,
        open_own=partial(KafkaSource, realtime.kafka, logs),
        places=spec.partitions,
        state=FetchState(firsts, realtime.key_ranges[slot], realtime.ends, realtime.reached),
        max_wait=MAX_WAIT if realtime.ends is None else CHUNK_WAIT,
    )
    if not realtime.cache_bytes or spec.channel is None:
        return source(None)
    server = ServerSpec(
        path="",
        secret=server_secret(spec.channel.secret),
        run=spec.run,
        limit=realtime.cache_bytes,
        kafka=realtime.kafka,
        places=spec.partitions,
        logs=realtime.logs,
        headers=spec.headers,
        record_filter=realtime.record_filter,
        content=realtime.cache_content,
    )
    try:
        server = with_path(server)
    except OSError as error:
        log.warning("slot %d reads without a fetch server: %s", slot, error)
        return source(None)
    schema = row_schema(headers=spec.headers, filters=bool(realtime.record_filter))
    link = HostLink(server, Identity(spec.run, spec.batch, slot, os.getpid()), schema)
    values = None
    if realtime.cache_content == "key":
        values = ValueReader(
            partial(KafkaSource, value_settings(realtime.kafka), logs, ahead=1), spec.partitions
        )
    return source(link, values=values)
