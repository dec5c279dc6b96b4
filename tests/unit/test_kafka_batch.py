"""Records that are put into kafka-python's batch together are the bytes that it would have made."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.util import decode_varint

from coopconsume.fenced.kafka_batch import encode_records, varint
from coopconsume.fenced.log import Entry

HEADERS = st.lists(st.tuples(st.text(), st.binary(max_size=200)), max_size=4)
ENTRIES = st.builds(
    Entry, st.none() | st.binary(max_size=200), st.none() | st.binary(), HEADERS.map(tuple),
    st.integers(0, 2**45),
)  # fmt: skip


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_number_comes_back(number: int) -> None:
    """As kafka-python reads it."""
    assert decode_varint(varint(number)) == (number, len(varint(number)))


@given(st.lists(st.tuples(ENTRIES, HEADERS), min_size=2, max_size=200))
def test_records_are_what_kafka_python_would_have_written(
    records: list[tuple[Entry, list[tuple[str, bytes]]]],
) -> None:
    """Whatever is in them, to the byte."""
    theirs, ours = (DefaultRecordBatchBuilder(2, 0, False, 1, 2, 3, 1 << 20) for _ in range(2))
    for i, (entry, stamp) in enumerate(records):
        row = (i, entry.timestamp, entry.key, entry.value, [*stamp, *entry.headers])
        assert theirs.append(*row) is not None
        if i == 0:
            ours.append(*row)
    entries, stamps = zip(*records[1:], strict=True)
    start = records[0][0].timestamp or 0
    delays = [(entry.timestamp or 0) - start for entry in entries]
    assert ours._buffer + encode_records(entries, stamps, delays, 1) == theirs._buffer
