"""A log read some records at a time: as if record by record, and on from wherever one stopped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from coopconsume.errors import LogCorrupt
from coopconsume.fenced import LogReader, LogRecord
from coopconsume.fenced.fold import Fold, SequenceGap
from coopconsume.fenced.log import Raw, Rows
from coopconsume.fenced.stamp import Stamp, decode
from tests.unit.fenced.test_fenced_log import Log, Shelf

SEEDS = st.integers(0, 10**9)
SPANS = st.lists(st.integers(1, 7), min_size=1, max_size=9)


def reader(log: Log, spans: Sequence[int]) -> LogReader:
    """A reader of a log that comes in pieces."""
    return LogReader(
        {"kafka.bootstrap.servers": "a:1"}, "t", engine=Shelf(log.rows, log.end, spans)
    )


def one_by_one(rows: Sequence[Raw]) -> tuple[list[tuple[int, int]], SequenceGap | None]:
    """Offsets and numbers of the records of data that count, and where records are missing."""
    fold, found = Fold(), []
    for row in rows:
        try:
            _, verdict = fold.take(Rows.of([row]), 0)
        except SequenceGap as gap:
            return found, gap
        if verdict == "counted" and fold.stamp is not None and fold.stamp.kind == "data":
            first = fold.stamp.seq
            found += [(row.offset, seq) for seq, row in enumerate(fold.rows, first)]
    return found, None


@given(SEEDS, SPANS, st.sampled_from(["read_committed", "filter"]), st.data())
def test_any_pieces_say_what_single_records_say(
    seed: int, spans: list[int], visibility: str, data: st.DataObject
) -> None:
    """Also where a record is missing, comes twice, or has another one's headers."""
    log = Log(seed, visibility)
    places = st.integers(0, len(log.rows) - 1)
    at, other = data.draw(places), data.draw(places)
    fault = data.draw(st.sampled_from(["none", "missing", "headers", "bytes", "moved"]))
    row, strange = log.rows[at], log.rows[other].headers
    if fault == "missing":
        del log.rows[at]
    elif fault == "headers":
        log.rows[at] = row._replace(headers=strange)
    elif fault == "bytes":
        (name, value), (_, other_value) = row.headers[0], strange[0]
        first, last = sorted(data.draw(st.tuples(st.integers(0, 50), st.integers(0, 50))))
        mixed = value[:first] + other_value[first:last] + value[last:]
        log.rows[at] = row._replace(headers=[(name, mixed)])
    elif fault == "moved":
        log.rows[at] = row._replace(offset=row.offset + 1)
        log.rows[at + 1 :] = [r._replace(offset=r.offset + 1) for r in log.rows[at + 1 :]]
        log.end += 1
    wanted, gap = one_by_one(log.rows)
    found: list[LogRecord] = []
    problem = None
    try:
        for record in reader(log, spans).read():
            found.append(record)  # noqa: PERF402 - also those before an error
    except LogCorrupt as error:
        problem = error
    assert (problem is None) == (gap is None)
    if problem is not None and gap is not None:
        assert (problem.offset, problem.problem) == (gap.offset, gap.problem)
    assert [(r.offset, r.seq) for r in found] == wanted
    heads: dict[str, Stamp] = {}
    stamps = {row.offset: decode(row.headers) for row in log.rows if row.offset in dict(wanted)}
    for record in found:
        stamp = stamps[record.offset]
        assert stamp is not None
        head = heads.setdefault(record.batch_id, stamp)
        assert stamp == replace(head, seq=record.seq, i=record.offset - head.expected)


@given(SEEDS, SPANS, st.lists(st.integers(0, 5), max_size=8), st.data())
def test_reading_goes_on_where_it_was_left(
    seed: int, spans: list[int], counts: list[int], data: st.DataObject
) -> None:
    """In the middle of a batch, too, and up to whichever offset."""
    log = Log(seed)
    whole = list(reader(log, [100]).read())
    mine = reader(log, spans)
    found: list[LogRecord] = []
    for count in counts:
        stop = data.draw(st.integers(0, log.end))
        taken = list(zip(range(count), mine.read(stop), strict=False))
        found += [record for _, record in taken]
        assert all(record.offset < stop for _, record in taken)
        assert found == whole[: len(found)]
        left = whole[len(found) : len(found) + 1]
        assert mine.position <= min([r.offset for r in left] or [log.end])
    assert found + list(mine.read()) == whole
    assert mine.position == log.end


@given(SPANS, st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.binary())), min_size=1))
def test_each_record_has_its_own_headers(
    spans: list[int], headers: list[list[tuple[str, bytes]]]
) -> None:
    """Whether the others of its batch have any or not."""
    log = Log(0)
    head = Stamp("filter", "data", log.epoch, log.seq, len(headers), 0, "mine", log.end, log.tag)
    log.write(head)
    for at, mine in zip(range(-len(headers), 0), headers, strict=True):
        log.rows[at] = log.rows[at]._replace(headers=[*log.rows[at].headers, *mine])
    found = [record for record in reader(log, spans).read() if record.batch_id == "mine"]
    assert [record.headers for record in found] == list(map(tuple, headers))
