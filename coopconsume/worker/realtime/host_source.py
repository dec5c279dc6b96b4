"""The source of a slot whose host has a fetch server.

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

from coopconsume.worker.channel.wire import Identity
from coopconsume.worker.realtime.fetch_messages import Fetch, FetchAnswer
from coopconsume.worker.realtime.fetch_server import ServerSpec
from coopconsume.worker.realtime.fetch_state import FetchState
from coopconsume.worker.realtime.host_link import Connected, HostLink, server_secret, with_path
from coopconsume.worker.realtime.reader import row_schema
from coopconsume.worker.realtime.source import Fetched, KafkaSource
from coopconsume.worker.realtime.value_reader import ValueReader, value_settings
from coopconsume.worker.report import Reads

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from commits.model import TopicPartition
    from coopconsume.worker.realtime.host_link import Lost
    from coopconsume.worker.realtime.source import Source
    from coopconsume.worker.realtime.spec import Ranges
    from coopconsume.worker.report import BatchSpec

log = logging.getLogger(__name__)

#: `Fetch.max_bytes` and `Fetch.max_wait`.
MAX_BYTES: Final = 1 << 20
MAX_WAIT: Final = 0.5
#: Seconds for which a slot waits for the server as it starts.
START_TIME: Final = 3.0
#: Seconds of a poll of Kafka while an answer of the server may come.
_SLICE: Final = 0.005


class HostSource:
    """Asks the fetch server of the host, and reads from Kafka what that does not have.

    Args:
        link: The connection to the server.
        open_own: Opens the slot's own consumer, given the first offset of each partition.
        places: (topic, partition) by index.
        starts: The first offset to read, by partition.
        ranges: The slot's key ranges, by index of the partition.
        start_time: Seconds for which it waits for the server at first.
        values: Reads the values of the server's records; None: the server has them.
    """

    def __init__(
        self,
        link: HostLink,
        open_own: Callable[[Mapping[TopicPartition, int]], KafkaSource],
        places: tuple[TopicPartition, ...],
        starts: Mapping[TopicPartition, int],
        ranges: Mapping[int, Ranges],
        start_time: float = START_TIME,
        values: ValueReader | None = None,
    ) -> None:
        self._link = link
        self._open_own = open_own
        self._places = places
        self._index = {place: part for part, place in enumerate(places) if place in starts}
        firsts = {part: starts[place] for place, part in self._index.items()}
        self.state = FetchState(firsts, ranges)
        self._own: KafkaSource | None = None
        self._own_parts: set[int] = set()
        self._is_connected = self._is_asking = False
        self._wait_until: float | None = time.monotonic() + start_time
        self._server_bytes = 0
        self._values = values

    @property
    def reads(self) -> Reads:
        """What it has read, see `Source`."""
        own = self._own.broker_bytes if self._own else 0
        own += self._values.broker_bytes if self._values else 0
        return Reads(self.state.hits, self.state.misses, self._server_bytes + own)

    def poll(self, timeout: float, most: int) -> Fetched:
        """Returns the next records, see `Source`."""
        until = time.monotonic() + timeout
        while True:
            if self._values is not None and self._values.is_busy:
                # Nothing else is read meanwhile: it would overtake these records.
                return Fetched(portions=self._values.poll(timeout))
            if self._wait_until is not None and time.monotonic() > self._wait_until:
                log.info("the fetch server of this host is not there yet; reading without it")
                self._lose()
            fetched = self._read_own(until, most)
            left = 0.0 if fetched or self._own_parts else max(0.0, until - time.monotonic())
            try:
                event = self._link.events.get(block=left > 0, timeout=left or None)
            except queue.Empty:
                event = None
            if event is not None:
                self._heard(event, fetched)
            self._ask()
            if fetched or time.monotonic() >= until:
                return fetched

    def close(self) -> None:
        """Closes the connection and the slot's own consumers."""
        self._link.close()
        if self._values is not None:
            self._values.close()
        if self._own is not None:
            self._own.close()

    def _ask(self) -> None:
        if self._is_connected and not self._is_asking:
            asks = self.state.asks()
            if asks:
                self._is_asking = True
                self._link.send(Fetch(asks, MAX_BYTES, MAX_WAIT))

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
        if wanted.keys() != self._own_parts:
            starts = {self._places[part]: offset for part, offset in wanted.items()}
            if self._own is None:
                self._own = self._open_own(starts)
            else:
                self._own.assign(starts)
            self._own_parts = set(wanted)
        if self._own is None or not wanted:
            return Fetched()
        slice_of = _SLICE if self._is_connected else max(0.0, until - time.monotonic())
        fetched = self._own.poll(slice_of, most)
        for record in fetched.records:
            topic, partition, offset = record.topic(), record.partition(), record.offset()
            assert topic is not None
            assert partition is not None
            assert offset is not None
            self.state.has_read(self._index[topic, partition], offset + 1)
        for place, end in fetched.ends.items():
            self.state.has_read(self._index[place], end)
        return fetched


def open_source(spec: BatchSpec, slot: int, starts: Mapping[TopicPartition, int]) -> Source:
    """Opens the source of a slot: the fetch server of its host, if the run has one.

    Args:
        spec: The run.
        slot: Number of the slot.
        starts: The first offset to read, by partition.
    """
    realtime = spec.realtime
    assert realtime is not None
    open_own = partial(KafkaSource, realtime.kafka)
    if not realtime.cache_bytes or len(spec.slots) == 1 or spec.channel is None:
        return open_own(starts)
    server = ServerSpec(
        "", server_secret(spec.channel.secret), spec.run, realtime.cache_bytes,
        realtime.kafka, spec.partitions, spec.headers, realtime.record_filter,
        realtime.cache_content,
    )  # fmt: skip
    try:
        server = with_path(server)
    except OSError as error:
        log.warning("slot %d reads without a fetch server: %s", slot, error)
        return open_own(starts)
    schema = row_schema(headers=spec.headers, filters=bool(realtime.record_filter))
    link = HostLink(server, Identity(spec.run, spec.batch, slot, os.getpid()), schema)
    values = None
    if realtime.cache_content == "key":
        values = ValueReader(
            partial(KafkaSource, value_settings(realtime.kafka), ahead=1), spec.partitions
        )
    return HostSource(
        link, open_own, spec.partitions, starts, realtime.key_ranges[slot], values=values
    )
