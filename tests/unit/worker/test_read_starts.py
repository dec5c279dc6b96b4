"""Where slots begin to read: in which leader epoch, and what becomes of an error."""

from __future__ import annotations

import pyarrow as pa
import pytest

from commits import OffsetAndEpoch
from coopconsume.filters import RecordFilter
from coopconsume.kafka.identity import LogIdentity
from coopconsume.worker.realtime.errors import ReadFailed
from coopconsume.worker.realtime.fetch_messages import Fetch, Portion, decode_fetch, encode_fetch
from coopconsume.worker.realtime.fetch_server import ServerSpec
from coopconsume.worker.realtime.fetch_state import FetchState
from coopconsume.worker.realtime.host_link import with_path
from coopconsume.worker.realtime.host_source import HostSource
from coopconsume.worker.realtime.log_reach import LogReach, Start
from coopconsume.worker.realtime.reader import row_schema
from coopconsume.worker.realtime.source import KafkaSource
from coopconsume.worker.realtime.value_reader import ValueReader

FULL = ((0, 2**63 - 1),)


def test_a_position_has_the_epoch_in_which_it_was_reached() -> None:
    """Beyond that it has none: after an election the earlier epoch ends below it."""
    reach = LogReach({0: OffsetAndEpoch(20, 3)})
    assert reach.start(0, 20) == Start(20, 3)
    assert reach.start(0, 21) == reach.start(1, 21) == Start(21)
    reach.saw(0, None)
    reach.saw(0, OffsetAndEpoch(10, 2))
    assert reach.start(0, 10) == Start(10, 3)
    reach.saw(0, OffsetAndEpoch(30, 4))
    assert reach.start(0, 30) == Start(30, 4)
    assert reach.start(0, 31) == Start(31)


def test_a_slot_names_the_epoch_of_its_position_to_the_server() -> None:
    """By what it has read itself, and by what a server has read for it."""
    state = FetchState({0: 5, 1: 0}, {0: FULL, 1: FULL}, reached={0: OffsetAndEpoch(20, 3)})

    def epochs() -> dict[int, int | None]:
        asks = decode_fetch(encode_fetch(Fetch(state.asks(), 1, 1.0))).asks
        return {ask.part: ask.leader_epoch for ask in asks}

    assert epochs() == {0: 3, 1: None}
    state.answered(Portion(0, 5, 25))
    assert epochs() == {0: None, 1: None}
    assert state.start_of(0) == Start(25)
    state.answered(Portion(0, 25, 30, reached=OffsetAndEpoch(30, 4)))
    state.has_read(1, 8, OffsetAndEpoch(8, 7))
    assert epochs() == {0: 4, 1: 7}
    assert (state.start_of(0), state.start_of(1)) == (Start(30, 4), Start(8, 7))


def test_a_slot_that_gets_chunks_names_the_epoch_of_the_end_from_which_a_server_reads() -> None:
    """Its own next offset may be far below."""
    state = FetchState({0: 2**63}, {0: FULL}, {0: 50_000}, {0: OffsetAndEpoch(50_000, 3)})
    state.want(0, [(5, 9)])
    (ask,) = state.asks()
    assert (ask.begin, ask.leader_epoch) == (50_000, 3)


def test_a_consumer_takes_positions_with_and_without_an_epoch() -> None:
    """One without an epoch is not checked."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}
    places = [("t", 0), ("t", 1)]
    source = KafkaSource(settings, {}, {places[0]: Start(5, 3), places[1]: Start(7)})
    source.add(("t", 2), Start(9))
    found = {(one.partition, one.offset) for one in source._consumer.assignment()}
    source.close()
    assert found == {(0, 5), (1, 7), (2, 9)}


def test_a_consumer_that_cannot_be_opened_is_an_error_of_its_source() -> None:
    """The slot opens it at its first poll, and a value reader at its first portion."""

    def fails(_starts: object) -> KafkaSource:
        raise OSError(24, "Too many open files")

    source = HostSource(None, fails, (("t", 0),), FetchState({0: 5}, {0: FULL}))
    with pytest.raises(ReadFailed, match="cannot open its source: OSError"):
        source.poll(0.0, 1)
    schema = row_schema(headers=False, filters=False)
    row: list[list[object]] = [[0], [5], [1], [b"k"], [None], [0]]
    arrays = [pa.array(one, field.type) for one, field in zip(row, schema, strict=True)]
    values = ValueReader(fails, (("t", 0),))
    values.add([Portion(0, 5, 6, pa.RecordBatch.from_arrays(arrays, schema=schema))])
    with pytest.raises(ReadFailed, match="cannot open its source: OSError"):
        values.poll(0.0)


def test_a_server_of_another_log_has_another_path() -> None:
    """A server that outlives its run has records of its own log alone."""

    def path(*logs: LogIdentity) -> str:
        places = tuple(("t", partition) for partition in range(len(logs)))
        spec = ServerSpec("", b"s", "run", 1, {}, places, logs, False, RecordFilter())
        return with_path(spec).path

    one, other = LogIdentity("an id", 3), LogIdentity("another id", 3)
    assert path(one) == path(LogIdentity("an id", 3))
    assert len({path(one), path(other), path(LogIdentity("an id", 4)), path(one, one)}) == 4
