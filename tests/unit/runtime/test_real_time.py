"""What a real-time slot makes of what it reads, and when a job runs in real time. Pure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assignors import KeyRange, key_hash
from assignors.ranges import offset_hash
from commits import OffsetAndEpoch, OffsetRanges
from coopconsume import Options
from coopconsume.filters import KeySet, RecordFilter
from coopconsume.group.owned import Failed
from coopconsume.kafka.librdkafka import consumer_config
from coopconsume.runtime.plan import Limits, deal
from coopconsume.runtime.plan.gain import Gain
from coopconsume.runtime.realtime.mode import STALLED, RealTimeMode
from coopconsume.runtime.realtime.run_job import finders_of_holes
from coopconsume.worker.channel.messages import decode_report, encode_report
from coopconsume.worker.channel.wire import Identity
from coopconsume.worker.realtime.fetch_messages import Portion
from coopconsume.worker.realtime.reader import SlotReader
from coopconsume.worker.report import (
    Failure,
    PartitionReport,
    Reads,
    SlotReport,
    SlotStats,
    pack_offsets,
)
from tests.partitions import make_partition

TP = ("t", 3)
HALVES = [((r.first, r.last),) for r in KeyRange().split(2)]


class Message:
    """A record as confluent-kafka returns it."""

    def __init__(self, offset, key, stamp=(1, 7), epoch=None):
        self.offset, self.key, self.leader_epoch = (lambda: offset), (lambda: key), (lambda: epoch)
        self.timestamp = lambda: stamp

    topic, partition = staticmethod(lambda: TP[0]), staticmethod(lambda: TP[1])
    value, headers = staticmethod(lambda: b"v"), staticmethod(lambda: [("h", b"1"), ("h", None)])


def reader(ranges=((0, 2**63 - 1),), start=0, *, holes=True, headers=False, only=None):
    """A slot's reader of one partition."""
    finds = frozenset({0}) if holes else frozenset()
    return SlotReader(
        (TP,), {0: start}, {0: tuple(ranges)}, finds, only or RecordFilter(), headers=headers
    )


def offsets(taken):
    """The offsets of rows."""
    return taken.rows.column(1).to_pylist()


LOGS = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([None, b"", b"a", b"b", b"c", b"d"])), max_size=30
)


@given(LOGS, st.integers(0, 5), st.lists(st.integers(1, 7), max_size=30))
def test_slots_share_the_records_and_find_every_hole(steps, after, cuts):
    """However reads are cut: each record has one slot, and each offset is a record or a hole."""
    log, end = {}, 5
    for step, key in steps:
        end += step
        log[end - 1] = key
    end += after
    seen, holes = {}, set()
    for number, ranges in enumerate(HALVES):
        one = reader(ranges, 5, holes=number == 0)
        records = [Message(o, key) for o, key in log.items()]
        for cut in [*cuts, len(records)]:
            now, records = records[:cut], records[cut:]
            taken = one.take(now, {} if records else {TP: end})
            for offset, hashed, key in zip(
                *(taken.rows.column(n).to_pylist() for n in (1, 2, 3)), strict=True
            ):
                assert offset not in seen
                seen[offset] = key
                assert hashed == (offset_hash(offset) if key is None else key_hash(key))
                assert ranges[0][0] <= hashed <= ranges[0][1]
            holes |= {o for first, last in taken.holes.get(0, []) for o in range(first, last + 1)}
            if now and records:
                assert taken.positions == {0: now[-1].offset() + 1}
        assert one.starts == {TP: end}
    assert seen == log
    assert holes == set(range(5, end)) - log.keys()


def test_a_record_that_comes_twice_counts_once():
    """As after a change of the leader; and an end behind the position changes nothing."""
    one = reader()
    assert offsets(one.take([Message(0, b"a"), Message(1, b"b")], {})) == [0, 1]
    taken = one.take([Message(1, b"b"), Message(2, b"a")], {TP: 1})
    assert offsets(taken) == [2]
    assert (taken.positions, taken.holes) == ({0: 3}, {})


def test_a_reader_notes_how_far_its_records_show_that_the_log_reached():
    """In which leader epoch: by records, as an end is behind markers of a later epoch, too."""
    one = reader()
    taken = one.take([Message(0, b"a", epoch=3), Message(2, b"b", epoch=5)], {TP: 4})
    assert (taken.positions, taken.reached) == ({0: 4}, {0: OffsetAndEpoch(3, 5)})
    assert one.take([], {TP: 6}).reached == {}
    assert one.take([Message(6, b"a")], {}).reached == {}, "the brokers do not say"
    portion = Portion(0, 7, 9, taken.rows.slice(0, 0), reached=OffsetAndEpoch(8, 6))
    assert one.take([], {}, [portion]).reached == {0: OffsetAndEpoch(8, 6)}


def test_rows_have_the_columns_of_a_batch():
    """Headers if they are asked for; no time is -1, as in Spark."""
    taken = reader(headers=True).take([Message(4, b"k", (0, 0)), Message(5, None)], {})
    first, second = taken.rows.to_pylist()
    assert first == {
        "part": 0, "offset": 4, "key_hash": key_hash(b"k"), "key": b"k", "value": b"v",
        "timestamp": -1, "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
    }  # fmt: skip
    assert (second["key"], second["timestamp"]) == (None, 7)
    assert "headers" not in reader().take([Message(0, b"k")], {}).rows.schema.names


KEYS = [None, b"", b"a", b"ab", b"b", b"ba", b"c"]


@pytest.mark.parametrize(
    ("only", "passing"),
    [
        (RecordFilter(allow=KeySet((b"a", b"c"))), [b"a", b"c"]),
        (RecordFilter(allow=KeySet((b"c",), (b"a",))), [b"a", b"ab", b"c"]),
        (RecordFilter(deny=KeySet((b"b",), (b"a",))), [None, b"", b"ba", b"c"]),
        (RecordFilter(KeySet((), (b"a",)), KeySet((b"ab",))), [b"a"]),
        (RecordFilter(min_bytes=3), [b"ab", b"ba"]),
        (RecordFilter(max_bytes=1), [None, b""]),
        (RecordFilter(headers=(("h", b"1"),)), KEYS),
        (RecordFilter(headers=(("h", b"1"), ("g", b"1"))), []),
    ],
)
def test_a_slot_marks_what_does_not_pass(only, passing):
    """By the rules that Spark evaluates, see tests/spark/test_filters.py."""
    taken = reader(only=only).take([Message(n, key) for n, key in enumerate(KEYS)], {})
    rows = taken.rows.to_pylist()
    assert [row["key"] for row in rows if not row["filtered"]] == passing
    assert len(rows) == len(KEYS)


def test_a_report_says_over_the_wire_how_far_a_slot_has_read():
    """Every field of a partition survives."""
    failure = Failure(7, 70, b"k", 2, 1.5, "why", "trace")
    part = PartitionReport(
        pack_offsets(_array(1, 4)), None, [failure], [(9, 90)], pack_offsets(_array(2)),
        pack_offsets(_array(1, 7, 9)), 12, [(3, 3), (5, 6)], OffsetAndEpoch(10, 4), [failure],
    )  # fmt: skip
    report = SlotReport(
        5, 1, 8, 3, {0: part, 1: PartitionReport(position=4)},
        stats=SlotStats(reads=Reads(1, 2, 3)),
    )  # fmt: skip
    assert decode_report(encode_report(report), Identity("run", 5, 1, 8)) == report


def _array(*offsets):
    import pyarrow as pa

    return pa.array(offsets, pa.int64())


def test_a_slots_consumer_reads_as_the_options_say_and_commits_nothing():
    """Kafka's settings in librdkafka's words; a position that is gone is an error."""
    kafka = Options.parse(
        {
            "kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": "c",
            "kafka.fetch.max.wait.ms": 7, "kafka.client.rack": "r", "kafka.security.protocol":
            "SASL_SSL", "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.jaas.config":
            'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" '
            'password="p";',
        }
    ).kafka  # fmt: skip
    config = consumer_config(kafka)
    expected = {
        "bootstrap.servers": "a:1", "group.id": "g", "isolation.level": "read_committed",
        "fetch.wait.max.ms": "7", "client.rack": "r", "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p",
        "enable.auto.commit": False, "enable.auto.offset.store": False,
        "auto.offset.reset": "error", "enable.partition.eof": True,
    }  # fmt: skip
    assert {name: config[name] for name in expected} == expected


# -- when a job runs in real time


def partition(end=100, **more):
    """A partition of two slots that has not been read yet."""
    made = make_partition(
        0, *TP, stable=0, committed=OffsetRanges(),
        slots=deal((KeyRange(),), 2, 0, "key"), ordering="key", whole=True, **more,
    )  # fmt: skip
    made.ledger.end = end
    return made


MODE = RealTimeMode(max_pending=2, small_lag=100)


def why_not(partitions, now):
    """Why the first slot that may not begin must not."""
    return next(filter(None, (MODE.why_not(partitions, slot, now) for slot in (0, 1))), "")


def why_end(partitions, seen, now):
    """Why the first slot that must end must do so."""
    found = MODE.why_end(partitions, (0, 1), seen, now)
    return found[min(found)].why if found else ""


def failed(offset, key=b"a", delay=10.0):
    """A record that is tried again later."""
    return Failure(offset, key_hash(key), key, 1, delay, "no")


def test_batches_catch_up_before_a_run():
    """A run begins with little left and nothing that only batches can do."""
    assert why_not([partition()], 0.0) == ""
    assert "records left" in why_not([partition(101)], 0.0)
    one = partition()
    planned = one.slots.plan((0, 1), 0.0, Limits(100, 10))
    assert "batch" in why_not([one], 0.0)
    for slot in planned:
        one.slots.reported(slot, PartitionReport(done=pack_offsets(_array(*range(100)))), 0.0)
    assert why_not([one], 0.0) == ""
    gap = partition()
    gap.cursors[0].todo = OffsetRanges([(3, 4)])
    assert "gaps" in why_not([gap], 0.0)
    doubt = partition()
    doubt.mark_in_doubt(KeyRange(), 5.0)
    assert "earlier owner" in why_not([doubt], 0.0)
    assert why_not([doubt], 5.0) == ""


def test_no_run_begins_beside_key_ranges_in_doubt():
    """They are dealt to slots once no earlier owner can be at work on them."""
    _, second = KeyRange().split(2)
    one = partition()
    one.leave([second])
    one.has_left(0.0)
    one.extend(Gain((second,), 0, OffsetRanges(), until=5.0))
    one.deal_again(2, 1.0)
    assert "earlier owner" in why_not([one], 1.0)
    one.deal_again(2, 5.0)
    assert "earlier owner" not in why_not([one], 5.0)


def test_a_failed_record_lets_a_run_begin_until_it_is_due():
    """What waits long is named to the slot as blocked; what is due soon is for a batch."""
    one = partition()
    one.restore([Failed(0, key_hash(b"a"), 1, 10.0, "no")])
    for share in one.cursors.values():
        share.todo = OffsetRanges()
    assert why_not([one], 0.0) == ""
    assert "tried again" in why_not([one], 9.5)
    (slot,) = [slot for slot, share in one.cursors.items() if share.waiting]
    work = one.slots.read_by(slot)
    assert work is not None
    assert work.blocked == {key_hash(b"a"): 0}
    assert MODE.why_end([one], (slot,), {}, 9.0) == {}
    assert not MODE.why_end([one], (slot,), {}, 10.0)[slot].is_failure
    assert "tried again" in MODE.why_end([one], (slot,), {}, 10.0)[slot].why


def live(**more):
    """The same partition, read by both slots."""
    one = partition(**more)
    for slot in one.cursors:
        one.slots.read_by(slot)
    return one


def read(*offsets, position, **more):
    """What a slot reports that has read on."""
    return PartitionReport(read=pack_offsets(_array(*offsets)), position=position, **more)


def test_a_slot_that_reads_on_extends_what_is_in_flight():
    """What it has read is in flight until it is done; what lies between is a hole."""
    one = live(end=0)
    one.slots.progressed(0, read(2, 5, position=7), 0.0)
    one.slots.progressed(1, read(0, 4, position=6), 0.0)
    assert (one.ledger.end, one.supply.position) == (7, 6)
    assert one.cursors[0].dispatched == OffsetRanges([(2, 2), (5, 5)])
    one.slots.progressed(1, read(position=7, done=pack_offsets(_array(0, 4))), 0.0)
    assert one.supply.holes() == OffsetRanges([(1, 1), (3, 3), (6, 6)])
    one.slots.amend(one.supply.holes())
    one.slots.progressed(0, PartitionReport(done=pack_offsets(_array(2, 5))), 0.0)
    assert one.ledger.first_open() == 7
    assert not one.cursors[0].todo


def test_what_a_lost_slot_had_read_is_to_do_again_and_the_rest_is_new():
    """From the position of its last report on, nothing is known."""
    one = live(end=0)
    one.slots.progressed(0, read(2, 5, position=7, done=pack_offsets(_array(2))), 0.0)
    one.slots.unknown(0)
    share = one.cursors[0]
    assert (share.todo, share.position) == (OffsetRanges([(5, 5)]), 7)
    assert not share.is_real_time
    one.slots.progressed(0, read(8, position=9), 0.0)  # Too late: another slot may have it.
    assert share.position == 7


def test_what_a_slot_left_is_to_do_again():
    """From the first record that it did not start."""
    one = live(end=0)
    one.slots.progressed(0, read(2, 5, position=7), 0.0)
    one.slots.reported(0, read(8, 9, position=12, done=pack_offsets(_array(2, 8)), resume=5), 0.0)
    share = one.cursors[0]
    assert (share.todo, share.position, share.dispatched) == (
        OffsetRanges([(5, 5), (9, 9)]), 12, None
    )  # fmt: skip


def test_records_behind_a_failed_one_count_for_the_limit():
    """They are named while the slot works, so that a limit sees them."""
    one = live(end=0)
    hashed = key_hash(b"a")
    one.slots.progressed(0, read(2, 5, position=7, failed=[failed(2)], blocked=[(5, hashed)]), 0.0)
    assert (one.supply.pending, one.supply.held_back) == (1, 2)
    assert one.cursors[0].dispatched == OffsetRanges()
    assert "wait" in why_end([one], {}, 0.0)


def test_a_slot_reads_no_more_of_a_partition_with_80_percent_of_its_ranges():
    """Batches go on with its gaps, and it reads again once fewer ranges are left."""
    one = live(end=0, max_ranges=10)
    one.slots.progressed(0, read(*range(15), position=15), 0.0)
    one.slots.progressed(1, read(position=15), 0.0)
    one.slots.progressed(0, PartitionReport(done=pack_offsets(_array(*range(1, 14, 2)))), 0.0)
    assert why_end([one], {}, 0.0) == ""
    one.slots.progressed(0, PartitionReport(done=pack_offsets(_array(14))), 0.0)
    assert one.ledger.ranges == 7
    one.slots.progressed(0, read(16, position=17, done=pack_offsets(_array(16))), 0.0)
    assert one.ledger.ranges == 8
    assert set(MODE.why_end([one], (0, 1), {}, 0.0)) == {0, 1}
    assert why_end([one], {}, 0.0) == "t-3 is at its limit of ranges, maxNumRanges"
    assert why_not([one], 0.0) == "t-3 is at its limit of ranges, maxNumRanges"
    assert 16 in one.ledger.to_commit, "what it has read and done is committed"
    one.slots.progressed(0, PartitionReport(done=pack_offsets(_array(2))), 0.0)
    assert why_end([one], {}, 0.0) == ""


def test_a_slot_that_does_not_read_ends_the_run():
    """There are records, it has none in flight, and its position stays."""
    one, seen = live(end=5), {}
    assert why_end([one], seen, 0.0) == ""
    assert why_end([one], seen, STALLED) == ""
    one.slots.progressed(0, read(position=5), 0.0)
    assert why_end([one], seen, STALLED + 1) == "slot 1 does not read t-3"
    assert MODE.why_end([one], (1,), seen, STALLED + 1)[1].is_failure
    one.slots.progressed(1, read(position=5), 0.0)
    assert why_end([one], seen, 3 * STALLED) == ""


def test_slots_begin_and_end_by_themselves():
    """What one of them has left, or cannot do, is nothing to the others."""
    one = live(end=0)
    one.slots.unknown(1)
    one.ledger.end = 101
    one.slots.progressed(0, read(3, position=101), 0.0)
    one.slots.progressed(0, PartitionReport(done=pack_offsets(_array(3))), 0.0)
    assert MODE.why_end([one], (0,), {}, 0.0) == {}
    assert "more than 100 records left" in MODE.why_not([one], 1, 0.0)
    planned = one.slots.plan((1,), 0.0, Limits(200, 10))
    assert set(planned) == {1}
    assert "in a batch" in RealTimeMode(2).why_not([one], 1, 0.0)
    key = next(k for k in (b"a", b"b", b"c", b"d") if one.cursors[1].has(key_hash(k)))
    done = pack_offsets(_array(4, 5))
    one.slots.reported(1, PartitionReport(done=done, failed=[failed(6, key)]), 0.0)
    assert MODE.why_not([one], 1, 0.0) == ""
    assert one.slots.read_by(1) is not None
    assert MODE.why_end([one], (0, 1), {}, 9.0) == {}
    assert list(MODE.why_end([one], (0, 1), {}, 10.0)) == [1]


def test_a_slot_begins_with_few_ranges_above_its_position():
    """While it was lost, others went on: it gets what is done there."""
    one = live(end=0)
    one.slots.unknown(1)
    one.slots.progressed(0, read(*range(0, 30_000, 2), position=30_000), 0.0)
    one.slots.progressed(0, PartitionReport(done=pack_offsets(_array(*range(0, 30_000, 2)))), 0.0)
    mode = RealTimeMode(max_pending=2, small_lag=30_000)
    one.cursors[1].position = 11_000
    assert "too many ranges" not in mode.why_not([one], 1, 0.0)
    one.cursors[1].position = 9_000
    assert "too many ranges" in mode.why_not([one], 1, 0.0)


def test_a_quiet_partition_of_a_run_is_passed_over():
    """Until its slots read on."""
    one = live(end=0)
    for slot in one.cursors:
        one.slots.progressed(slot, read(position=0), 0.0)
    one.update_quiet(0.0)
    assert one.ledger.is_quiet
    one.slots.progressed(0, read(0, position=1), 0.0)
    assert not one.ledger.is_quiet
    one.update_quiet(0.0)
    assert not one.ledger.is_quiet


def test_holes_of_a_shared_partition_come_from_the_owner_of_hash_0():
    """Others cannot know them: they do not see the others' records as done."""
    one = live(end=0)
    one.ledger.is_whole = False
    one.slots.progressed(0, replace(read(2, position=7), holes=[(0, 1), (4, 4)]), 0.0)
    assert one.ledger.holes_to_commit == OffsetRanges([(0, 1), (4, 4)])


LEAVES = key_hash(b"a")


def test_what_a_slot_has_read_of_keys_that_are_given_up_is_forgotten():
    """It is their next owner's: no hole, nothing to do, and nothing that ends the run."""
    one = live(end=0)
    (slot,) = (slot for slot, share in one.cursors.items() if share.has(LEAVES))
    other = 1 - slot
    one.slots.progressed(slot, read(2, 5, 6, position=8), 0.0)
    one.slots.progressed(other, read(4, position=8, done=pack_offsets(_array(4))), 0.0)
    one.slots.progressed(slot, PartitionReport(failed=[failed(2, delay=0.0)]), 0.0)
    one.leave([KeyRange(LEAVES, LEAVES)])
    one.slots.progressed(slot, PartitionReport(blocked=[(5, LEAVES)]), 1.0)
    assert one.cursors[slot].dispatched == one.cursors[slot].todo == OffsetRanges([(6, 6)])
    assert not one.supply.holes()
    assert why_end([one], {}, 1.0) == ""
    one.dealer.withheld(slot, {})
    assert not one.dealer.leaves(1.0)
    one.has_left(1.0)
    one.slots.progressed(
        slot, PartitionReport(done=pack_offsets(_array(6)), blocked=[(7, LEAVES)]), 1.0
    )
    assert one.cursors[slot].dispatched == one.cursors[slot].todo == OffsetRanges()
    assert not one.supply.holes()
    assert why_end([one], {}, 1.0) == ""


def test_a_slot_without_key_ranges_of_a_partition_does_not_end_the_run():
    """Nor is it read for it by the next one."""
    one, seen = live(end=5), {}
    first, second = (share.ranges for share in one.cursors.values())
    one.leave(second)
    one.has_left(0.0)
    one.slots.progressed(0, read(position=5), 0.0)
    assert why_end([one], seen, 0.0) == why_end([one], seen, STALLED + 1) == ""
    assert (one.slots.read_by(1), one.cursors[0].ranges) == (None, first)


def test_key_ranges_that_come_end_the_run_once_they_may_start():
    """Those of a new partition, and more of one that slots read."""
    one = live(end=0)
    _, second = KeyRange().split(2)
    one.leave([second])
    one.has_left(0.0)
    one.extend(Gain((second,), 0, OffsetRanges(), until=5.0))
    assert why_end([one], {}, 4.0) == ""
    assert "no slot has" in why_end([one], {}, 5.0)
    new = partition(0)
    assert "no slot reads" in why_end([new], {}, 0.0)
    for share in new.cursors.values():
        share.barred_until = 5.0
    assert why_end([new], {}, 4.0) == ""
    assert "no slot reads" in why_end([new], {}, 5.0)


def test_the_slot_with_hash_0_reports_holes_until_it_ends_or_gives_it_up():
    """Afterwards the log is looked at for them."""
    one = live(end=0)
    assert finders_of_holes([one], (0, 1)) == {0: {0}}
    assert one.real_time_from == 0
    one.slots.progressed(0, replace(read(2, position=7), holes=[(0, 1)]), 0.0)
    assert one.ledger.holes_to_commit == OffsetRanges([(0, 1)])
    one.slots.reported(0, read(position=7, done=pack_offsets(_array(2))), 0.0)
    assert one.real_time_from is None
    gone = live(end=0)
    finders_of_holes([gone], (0, 1))
    gone.leave([KeyRange(0, 0)])
    gone.has_left(0.0)
    assert gone.real_time_from is None
    gone.slots.progressed(0, replace(read(2, position=7), holes=[(0, 1)]), 0.0)
    assert not gone.ledger.holes_to_commit, "their next owner finds them"
    gone.leave([KeyRange(1, 10)])
    assert finders_of_holes([gone], (0, 1)) == {}
