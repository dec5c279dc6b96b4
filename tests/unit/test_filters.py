"""Filters: what options mean, in words and in SQL; what a slot and a group make of them."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pyarrow as pa
import pytest

from assignors import KeyRange
from commits import MaxIndividualCommitsReached, OffsetRanges
from coopconsume.errors import AlreadyClosed, InvalidOption, PollWokenUp
from coopconsume.filters import MOST_KEYS, RecordFilter, varying_part, words_of
from coopconsume.group.owned import Failed
from coopconsume.options import Options
from coopconsume.runtime.plan import Limits, plan_batch
from coopconsume.runtime.plan.window import LARGEST_WINDOW, Window
from coopconsume.runtime.status.progress import Meter
from coopconsume.worker.report import (
    PartitionReport,
    PartitionWork,
    SlotEnd,
    SlotReport,
    SlotStats,
    pack_offsets,
    unpack_offsets,
)
from coopconsume.worker.reporter import SlotReporter
from coopconsume.worker.serial_runner import SerialRunner
from coopconsume.worker.slot import _until_halted
from coopconsume.worker.time_box import TimeBox
from tests.model.polling_world import Log, Member, in_memory
from tests.partitions import make_partition
from tests.unit.worker.slot_harness import WAYS, done, prepared, run

BASE = {"kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "somewhere"}


def filter_of(**options):
    """The filter of some options."""
    return Options.parse(BASE | options).record_filter


# -- options


def test_without_conditions_there_is_no_filter():
    """An encoding alone is no condition."""
    assert not filter_of()
    assert not filter_of(keyEncoding="hex")
    assert filter_of() == RecordFilter()
    assert (str(filter_of()), filter_of().sql()) == ("", "true")


def test_every_condition_is_in_words_and_in_sql(tmp_path):
    """Values, files and prefixes of keys make one list; all conditions have to hold."""
    (tmp_path / "keys").write_text("b\n\na\r\nwith, comma\n", encoding="utf-8")
    found = filter_of(
        allowKeys="c, a", allowKeysFile=str(tmp_path / "keys"), allowKeyPrefixes="x-",
        denyKeys='["d,e"]', minRecordBytes="3", maxRecordBytes=9,
        headerEquals="type=order, to='me'", where=" value IS NOT NULL ",
    )  # fmt: skip
    assert found.allow.keys == (b"a", b"b", b"c", b"with, comma")
    assert found.deny.keys == (b"d,e",)
    assert str(found) == (
        "allowKeys=a, b, c, 0x776974682c20636f6d6d61, x-*; denyKeys=0x642c65; minRecordBytes=3; "
        """maxRecordBytes=9; headerEquals={"to": "'me'", "type": "order"}; """
        "where=value IS NOT NULL"
    )
    sql = found.sql()
    for part in (
        "coalesce(key IN (X'61', X'62', X'63', X'776974682c20636f6d6d61') OR startswith(",
        "startswith(key, X'782d'), false)",
        "(NOT coalesce(key IN (X'642c65'), false))",
        "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) >= 3L",
        "coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0) <= 9L",
        "h.key = CAST(X'74797065' AS STRING) AND h.value = X'6f72646572'",
        "coalesce((value IS NOT NULL\n), false)",
    ):
        assert part in sql
    assert sql.count(" AND (") == 6


def test_a_line_of_a_key_file_ends_with_a_line_feed_alone(tmp_path):
    """A byte order mark is no part of a key; other separators of lines are."""
    (tmp_path / "keys").write_bytes("\ufeffa\u2028b\r\nc\x0bd\x85\re\r\r\n".encode())
    found = filter_of(denyKeysFile=str(tmp_path / "keys")).deny.keys
    assert found == ("a\u2028b".encode(), "c\x0bd\x85\re\r".encode())


def test_keys_are_written_as_text_hex_or_base64():
    """Keys that are no text have another encoding."""
    assert filter_of(denyKeys="ä").deny.keys == ("ä".encode(),)
    assert filter_of(denyKeys="00ff,0A", keyEncoding="hex").deny.keys == (b"\x00\xff", b"\n")
    assert filter_of(denyKeys="AP8=", keyEncoding="BASE64").deny.keys == (b"\x00\xff",)
    for encoding in ("hex", "base64"):
        with pytest.raises(InvalidOption, match=f"denyKeys = 'x!': give keys as {encoding}"):
            filter_of(denyKeys="x!", keyEncoding=encoding)


def test_what_cannot_be_meant_is_refused(tmp_path):
    """An empty file would let nothing pass, sizes exclude all records, lists are bounded."""
    (tmp_path / "keys").write_text("\n", encoding="utf-8")
    with pytest.raises(InvalidOption, match=r"allowKeysFile = .*a file that has keys"):
        filter_of(allowKeysFile=str(tmp_path / "keys"))
    (tmp_path / "keys").write_bytes(b"\xff")
    with pytest.raises(InvalidOption, match=r"allowKeysFile = .*UTF-8 file"):
        filter_of(allowKeysFile=str(tmp_path / "keys"))
    with pytest.raises(InvalidOption, match=r"minRecordBytes = 5: .*maxRecordBytes \(4\)"):
        filter_of(minRecordBytes=5, maxRecordBytes=4)
    many = [f"{n}" for n in range(MOST_KEYS)]
    assert len(filter_of(denyKeys=many).deny.keys) == MOST_KEYS
    with pytest.raises(InvalidOption, match="denyKeys = 10,001 of them: give at most 10,000"):
        filter_of(denyKeys=[*many, "more"])
    with pytest.raises(InvalidOption, match="denyKeyPrefixes = 101 of them: give at most 100"):
        filter_of(denyKeyPrefixes=many[:101])


def test_equal_filters_have_equal_words_and_others_have_not():
    """Members compare them. Long ones are named by size and digest."""
    assert str(filter_of(denyKeys="a,b")) == str(filter_of(denyKeys="b, a,a"))
    lists = [[f"{n}" for n in range(20)], [f"{n}" for n in range(1, 21)]]
    words = [str(filter_of(denyKeys=keys)) for keys in lists]
    words += [str(filter_of(allowKeys=keys)) for keys in lists]
    words += [str(filter_of(where=f"value = X'{n:02}'" + " OR false" * 80)) for n in (1, 2)]
    words += [
        str(filter_of(**{name: "a*", "keyEncoding": "text"})) for name in ("denyKeys", "allowKeys")
    ]
    words += [str(filter_of(denyKeyPrefixes="a")), str(filter_of(denyKeys="0x61"))]
    words += [str(filter_of(denyKeys="a"))]
    assert len(set(words)) == len(words)
    assert max(map(len, words)) < 100


def test_headers_are_read_where_a_condition_is_about_them():
    """Reading them costs time."""
    assert filter_of(headerEquals="a=b").needs_headers
    assert filter_of(where="exists(Headers, h -> h.key = 'a')").needs_headers
    assert filter_of(where="size(`headers`) > 0").needs_headers
    assert not filter_of(where="value = 'headers' -- headers").needs_headers


@pytest.mark.parametrize(
    ("where", "part"),
    [
        ("rand() > 0.5", "rand"),
        ("partition > 1 AND Uuid () = 'a'", "Uuid"),
        ("current_timestamp > timestamp", "current_timestamp"),
        ("current_date() > timestamp", "current_date"),
        ("timestamp'now' > timestamp", "'now'"),
        ('timestamp > date("Today")', '"Today"'),
        ("timestamp > CAST('yesterday' AS DATE)", "'yesterday'"),
        ("timestamp > 'tomorrow'::timestamp", "'tomorrow'"),
        ("timestamp > ' Today'", "' Today'"),
        ("timestamp BETWEEN 'yesterday' AND '2030-01-01'", "'yesterday'"),
        ("date_sub(r'today', 1) < timestamp", "r'today'"),
        ("timestamp > timestamp'now Europe/Berlin'", "'now Europe/Berlin'"),
        ("timestamp > 'now+01:00'", "'now+01:00'"),
        ("timestamp > CAST(('today') AS DATE)", "'today'"),
        ("unix_timestamp() > 5", "unix_timestamp"),
        ("key IN (SELECT k FROM t)", "SELECT"),
        ("/* no */ `now`() > timestamp", "`now`"),
        ("topic = '${spark.app.name}'", "${spark.app.name}"),
        ("partition > ${env:PARTITION}", "${env:PARTITION}"),
    ],
)
def test_what_may_change_between_two_reads_is_refused(where, part):
    """A record that passed once would not pass again after a crash."""
    assert varying_part(where) == part
    with pytest.raises(InvalidOption, match="where") as error:
        filter_of(where=where)
    assert f"it contains {part}" in str(error.value)


@pytest.mark.parametrize(
    "where",
    [
        "CAST(value AS STRING) = 'rand() now uuid()'",
        "CAST(value AS STRING) <> 'it''s now' -- rand()",
        'value = "current_date" /* uuid() */',
        "unix_timestamp(timestamp) > 5",
        "r'\\' = 'nowhere' OR topic IN ('to' || 'day', 'epoch', 'todays', 'not today')",
        "extract(YEAR FROM timestamp) > 2025",
    ],
)
def test_what_depends_on_the_record_alone_is_accepted(where):
    """Texts and comments are no functions."""
    assert varying_part(where) is None
    assert filter_of(where=where).where == where


def test_words_of_an_expression():
    """Names, quoted or not; no literals and no comments."""
    assert words_of("a.`b c` > 'd' -- e") == ["a", "b c"]


# -- in a slot


@pytest.mark.parametrize("way", WAYS)
def test_no_handler_sees_a_record_that_is_filtered(way):
    """It is settled apart from what handlers did, whatever its key waits for."""
    seen = []

    def handler(record):
        seen.append(record.offset)
        if record.offset == 1:
            raise RuntimeError

    rows = [(0, o, b"k") for o in range(6)] + [(1, o, b"j") for o in range(2)]
    filtered = {(0, 0), (0, 4), (1, 1)}
    report = run(handler, rows, way=way, filtered=filtered)
    assert sorted(seen) == [0, 1]
    settled = {p: unpack_offsets(report.partitions[p].filtered).to_pylist() for p in (0, 1)}
    assert settled == {0: [0, 4], 1: [1]}
    assert (done(report, 0), done(report, 1)) == ([], [0])
    assert sorted(o for o, _ in report.partitions[0].blocked) == [2, 3, 5]
    assert (report.stats.filtered, report.stats.handled, report.stats.failures) == (3, 2, 1)


def test_a_slot_of_filtered_records_alone_calls_nobody():
    """All of them are settled; what is not the slot's to start is left alone."""
    rows = [(0, o, b"k") for o in range(6)]
    work = {0: PartitionWork(((0, 1), (3, 9)))}
    report = run(lambda _: 1 / 0, rows, work=work, filtered={(0, o) for o in range(6)})
    assert unpack_offsets(report.partitions[0].filtered).to_pylist() == [0, 1, 3, 4, 5]
    assert (report.stats.handled, report.stats.filtered, report.partitions[0].resume) == (
        0,
        5,
        None,
    )


def test_progressive_reports_have_what_is_filtered_once():
    """What a progressive report had is not in the final one."""
    runner, batches = prepared(
        lambda _: None, [(0, o, b"k") for o in range(6)], filtered={(0, o) for o in (1, 4)},
        batch_rows=3,
    )  # fmt: skip
    outcome = runner._outcome(3)
    outcome.drop_filtered(batches[0])
    time_box = TimeBox(runner._spec, SimpleNamespace())
    reporter = SlotReporter(outcome, SerialRunner(lambda _: None, outcome, time_box))
    first = reporter.take_report(1)
    assert (first.stats.filtered, unpack_offsets(first.partitions[0].filtered).to_pylist()) == (
        1,
        [1],
    )
    outcome.drop_filtered(batches[1])
    last = outcome.close(SlotEnd())
    assert (last.stats.filtered, unpack_offsets(last.partitions[0].filtered).to_pylist()) == (
        1,
        [4],
    )


def test_the_time_of_a_slot_begins_with_its_first_rows():
    """Also if they are all filtered: others wait for the slot no longer than for any other."""
    rows = [(0, o, b"k") for o in range(4)]
    runner, batches = prepared(lambda _: None, rows, filtered={(0, 0), (0, 1)}, batch_rows=2)
    time_box = TimeBox(runner._spec, SimpleNamespace())
    has_begun = []

    def arriving():
        for batch in batches:
            yield batch
            has_begun.append(time_box.started > 0)

    (passed,) = _until_halted(arriving(), runner._outcome(3), time_box)
    time_box.end()
    assert (has_begun, passed.num_rows) == ([True, True], 2)


def test_the_rows_of_a_report_include_what_is_filtered():
    """The bytes of a window are those of all its offsets."""
    rows = [(0, o, b"k") for o in range(6)]
    for way in WAYS:
        report = run(lambda _: None, rows, way=way, filtered={(0, o) for o in range(4)})
        assert (report.stats.rows, report.stats.handled) == (6, 2)


# -- in the loop


def packed(*offsets):
    """Offsets as reports have them."""
    return pack_offsets(pa.array(offsets, pa.int64()))


def test_filtered_records_are_done_and_counted_until_they_are_committed():
    """They move the stable offset like others; a pending one is not tried again."""
    partition = make_partition(
        0, "t", 0, stable=0, committed=OffsetRanges(), slots=[(0, (KeyRange(),))], ordering="key",
        whole=True,
    )  # fmt: skip
    partition.ledger.end = 5
    partition.restore([Failed(1, 7, 2, 0.0, "an earlier filter let it pass")])
    assert plan_batch([partition], [0], 0.0, Limits(100, 100))
    report = PartitionReport(packed(0, 3), filtered=packed(1, 2, 4))
    partition.slots.reported(0, report, 0.0)
    assert partition.ledger.first_open() == 5
    assert partition.ledger.to_commit == OffsetRanges([(0, 4)])
    assert partition.ledger.filtered_to_commit == OffsetRanges([(1, 2), (4, 4)])
    assert (partition.supply.pending, partition.lanes.failed.attempts) == (0, {})
    partition.commit_answered(OffsetRanges([(0, 3)]), 4, OffsetRanges())
    assert partition.ledger.filtered_to_commit == OffsetRanges([(4, 4)])


def test_progress_counts_what_is_filtered():
    """Beside handler calls."""
    meter = Meter({"id": "i", "runId": "r", "name": "n", "groupId": "g", "clientId": "c"}, 1)
    meter.reported(SlotReport(0, 0, stats=SlotStats(handled=2, filtered=3)), [])
    meter.progressed(5, (0.0, 0.0), [])
    (event,) = meter.recent
    assert (event["numInputRows"], event["numFilteredRows"]) == (2, 3)
    assert (event["totals"]["handled"], event["totals"]["filtered"]) == (2, 3)


def test_a_window_is_as_long_as_its_handled_records_take():
    """Of slow records behind a filter a batch reads as many more as are filtered."""
    options = Options.parse(BASE | {"subscribe": "t", "batchTime": 10})

    def batch(**found):
        return SimpleNamespace(plan=SimpleNamespace(fraction=1.0, span=10**6), **found)

    window = Window(options, 2)
    window.completed(batch(handled=100, filtered=9_900, rate=0.0, timed_out=True))
    assert window.offsets == 20_000
    window.completed(batch(handled=100, filtered=0, rate=0.0, timed_out=True))
    assert window.offsets == 200
    window.completed(batch(handled=0, filtered=200, rate=0.0, timed_out=False))
    assert window.offsets == 200 * 64, "a batch of filtered records alone has no rate"
    for _ in range(3):
        window.completed(batch(handled=0, filtered=200, rate=0.0, timed_out=False))
    assert window.offsets == LARGEST_WINDOW
    window.completed(batch(handled=0, filtered=0, rate=0.0, timed_out=False))
    assert window.offsets == LARGEST_WINDOW


# -- in polls


@pytest.fixture
def polling():
    """A log of 20 records and a member that polls it; every second record is filtered."""
    records = {0: dict.fromkeys(range(20), b"k")}
    log = Log(records, {0: (0, 1)}, limit=4)
    log.filtered = frozenset((0, offset) for offset in range(0, 20, 2))
    member = Member(log)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(log, lambda: member):
            stack.enter_context(patch)
        member.begin({0: [KeyRange()]})
        yield log, member


def test_what_is_filtered_is_committed_with_what_the_user_names(polling):
    """However many ranges that makes; of what the user names, what joins these fits."""
    log, member = polling
    member.poll(20)
    assert (
        member.poller.commit(member, {("t", 0): OffsetRanges([(11, 11)])})["t", 0].committed == 11
    )
    assert log.commits[0].ranges == OffsetRanges.from_offsets([*range(2, 20, 2), 11])
    with pytest.raises(MaxIndividualCommitsReached):
        log.commits[0].copy(max_ranges=log.limit).commit([(21, 21)])
    assert log.commits[0].stable_offset == 1
    member.poller.commit(member, None)
    assert log.commits[0].stable_offset == 20


@pytest.mark.parametrize(("end", "error"), [("wake", PollWokenUp), ("close", AlreadyClosed)])
def test_a_poll_of_filtered_records_ends_with_its_window(polling, end, error):
    """Neither `wakeup` nor `close` waits until a record passes."""
    log, member = polling
    log.filtered = frozenset((0, offset) for offset in range(20))
    member.poller._options.max_offsets_per_trigger = 2
    present, windows = log.present, []

    def read(*window):
        windows.append(window)
        if len(windows) == 3:
            getattr(member.poller.session.calls, end)()
        return present(*window)

    log.present = read
    with pytest.raises(error):
        member.poller.poll(member, 60.0)
    assert (len(windows), log.commits[0].stable_offset) == (3, 6)
