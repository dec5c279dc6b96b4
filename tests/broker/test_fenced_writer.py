"""The fenced writer on a real broker: owners, expectations, repeats; in both visibilities."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coopconsume.errors import (
    LogUnavailable,
    OffsetMismatch,
    ProducerBusy,
    ProducerFenced,
    WriterNotOpen,
)
from coopconsume.fenced import Entry, Loaded, LogReader, audit, bulk_load
from tests.chaos.frame import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coopconsume.testing.local.broker import LocalKafka
    from tests.conftest import Produce, TopicFactory

pytestmark = pytest.mark.broker


def test_appends_follow_each_other(make: Any, topic: TopicFactory) -> None:
    """Numbers count records, and what was expected is what comes."""
    writer = make(topic()).acquire()
    assert (writer.epoch, writer.next_seq) == (1, 0)
    first = writer.append([b"a", b"b"], expected_seq=0)
    assert (first.first_seq, first.last_seq, first.count) == (0, 1, 2)
    second = writer.append([(b"k", b"c")], expected_offset=writer.next_offset)
    assert second.first_seq == 2
    third = writer.append([b"d", b"e"], expected_seq=[-1, 4])
    assert (third.first_seq, writer.next_seq) == (3, 5)


def test_a_wrong_expectation_changes_nothing(make: Any, topic: TopicFactory) -> None:
    """The error has both numbers, and the right ones still work."""
    writer = make(topic()).acquire()
    writer.append([b"a"])
    with pytest.raises(OffsetMismatch) as by_seq:
        writer.append([b"b"], expected_seq=7)
    assert (by_seq.value.expected, by_seq.value.actual, by_seq.value.by) == (7, 1, "sequence")
    with pytest.raises(OffsetMismatch) as by_offset:
        writer.append([b"b"], expected_offset=0)
    assert (by_offset.value.expected, by_offset.value.actual) == (0, writer.next_offset)
    assert by_offset.value.next_seq == 1
    assert writer.append([b"b"], expected_offset=by_offset.value.actual).first_seq == 1


def test_a_batch_is_there_once(make: Any, topic: TopicFactory) -> None:
    """Repeating by its id gives the first answer, by this writer and by the next one."""
    name = topic()
    writer = make(name).acquire()
    first = writer.append([b"a"], expected_seq=0, batch_id="one")
    writer.append([b"b"])
    assert writer.append([b"a"], expected_seq=0, batch_id="one") == first
    other = make(name).acquire()
    assert other.append([b"a"], expected_seq=0, batch_id="one") == first
    assert other.resolve("one") == first
    assert other.resolve("none") is None
    assert other.next_seq == 2


def test_an_owner_is_left_alone(make: Any, topic: TopicFactory) -> None:
    """`fence_owner=False` refuses a log that has an owner, and disturbs nobody."""
    name = topic()
    one = make(name, owner="one", fence_owner=False).acquire()
    one.append([b"a"])
    with pytest.raises(ProducerBusy, match="it is held by 'one'"):
        make(name, fence_owner=False).acquire()
    assert one.append([b"b"], expected_seq=1).epoch == 1
    two = make(name, fence_owner=True).acquire()
    assert two.append([b"c"], expected_seq=2).epoch == 2
    with pytest.raises(ProducerFenced):
        one.append([b"d"])


def test_the_last_to_come_owns_the_log(make: Any, topic: TopicFactory) -> None:
    """The one before is fenced permanently, and does not disturb its successor."""
    name = topic()
    one = make(name, owner="one").acquire()
    one.append([b"a"])
    two = make(name, owner="two").acquire()
    assert (two.epoch, two.next_seq) == (2, 1)
    with pytest.raises(ProducerFenced) as fenced:
        one.append([b"b"])
    assert (fenced.value.epoch, fenced.value.current, fenced.value.owner) == (1, 2, "two")
    with pytest.raises(ProducerFenced):
        one.acquire()
    assert not one.is_open
    assert two.append([b"c"], expected_seq=1).first_seq == 1
    assert one.resolve("none") is None


def test_a_writer_that_is_fenced_leaves_no_threads(make: Any, topic: TopicFactory) -> None:
    """Neither its producer's nor another client's, also if the error is kept; and no records."""
    name, before, errors = topic(), client_threads(), []
    owner = make(name).acquire()
    owner.append([b"a"])
    for _ in range(3):
        fenced, owner = owner, make(name).acquire()
        owner.append([b"a"])
        with pytest.raises(ProducerFenced) as error:
            fenced.append([b"b"] * 3)
        assert SystemError not in kinds(error.value)  # What was fatal is named.
        errors.append(error)
        fenced.close()
    owner.close()
    wait_until(lambda: client_threads() <= before, lambda: f"{client_threads()} of {before}")
    # confluent-kafka never frees these.
    kept = [one for one in gc.get_objects() if type(one) is SystemError]
    assert not any(one.__traceback__ for one in kept)


def kinds(error: BaseException | None) -> list[type]:
    """The types of an error and of those that it came from."""
    return [] if error is None else [type(error), *kinds(error.__cause__ or error.__context__)]


def client_threads() -> int:
    """How many threads of librdkafka this process has."""
    found = 0
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # It has just ended.
            found += (thread / "comm").read_text().startswith("rdk:")
    return found


def test_those_who_share_a_log_follow_each_other(make: Any, topic: TopicFactory) -> None:
    """Several writers without an owner; one that takes the log ends it for all of them."""
    name = topic()
    one, two = make(name, shared=True).acquire(), make(name, shared=True).acquire()
    first = one.append([b"a"])
    assert two.append([b"b", b"c"]).first_seq == first.last_seq + 1
    assert one.append([b"d"], expected_seq=3).first_seq == 3
    with pytest.raises(OffsetMismatch):
        two.append([b"e"], expected_seq=3)
    owner = make(name).acquire()
    assert (owner.epoch, owner.next_seq) == (1, 4)
    for writer in (one, two):
        with pytest.raises(ProducerFenced):
            writer.append([b"late"])
    assert owner.append([b"f"], expected_seq=4).first_seq == 4


def test_checks_can_be_switched_off(make: Any, topic: TopicFactory) -> None:
    """By writer or by topic, as KIP-27 has it: what is expected is then not looked at."""
    name = topic()
    off = {"check.expected.offsets": "false"}
    assert make(name, options=off).acquire().append([b"a"], expected_offset=99).first_seq == 0
    other = {"check.expected.offsets": "another,topic"}
    assert make(name, options=other).acquire().append([b"a"], expected_seq=99).first_seq == 1
    on = {"check.expected.offsets": f"another,{name}"}
    with pytest.raises(OffsetMismatch):
        make(name, options=on).acquire().append([b"a"], expected_seq=99)


def test_a_released_log_can_be_taken_again(make: Any, topic: TopicFactory) -> None:
    """A new epoch begins; a writer that is not open says so."""
    writer = make(topic())
    with pytest.raises(WriterNotOpen):
        writer.append([b"a"])
    writer.acquire().append([b"a"])
    writer.release()
    with pytest.raises(WriterNotOpen):
        writer.append([b"a"])
    with writer:
        assert (writer.epoch, writer.next_seq) == (2, 1)
        writer.checkpoint()
        assert writer.append([b"b"], expected_seq=1).first_seq == 1
    with pytest.raises(WriterNotOpen):
        writer.acquire()


def test_a_reader_has_what_counts(
    kafka: LocalKafka, make: Any, topic: TopicFactory, produce: Produce
) -> None:
    """In order, without foreign records; it goes on where it stopped, or begins in the middle."""
    name = topic()
    one = make(name).acquire()
    appended = one.append([(b"k", b"0"), Entry(b"1", b"k", [("mine", b"x")], 17)])
    produce(name, [(None, b"foreign")])
    two = make(name).acquire()
    two.append([b"2"])
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with LogReader(options, name) as reader:
        first = list(reader.read(stop=two.opened_at))
        assert [(r.seq, r.offset, r.epoch, r.value) for r in first] == [
            (0, appended.first_offset, 1, b"0"),
            (1, appended.last_offset, 1, b"1"),
        ]
        assert (first[1].headers, first[1].timestamp) == ((("mine", b"x"),), 17)
        assert first[1].batch_id == appended.batch_id
        assert [r.value for r in reader.read()] == [b"2"]
        two.append([b"3"])
        assert [(r.seq, r.value) for r in reader.read()] == [(3, b"3")]
        assert (reader.next_seq, reader.epoch) == (4, 2)
    with LogReader(options, name, start=appended.last_offset) as reader:
        assert [r.seq for r in reader.read()] == [2, 3]


def test_a_reader_that_is_closed_while_it_is_read_says_so(
    kafka: LocalKafka, make: Any, topic: TopicFactory
) -> None:
    """Whatever it has not fetched yet is not available any more."""
    name = topic()
    writer = make(name).acquire()
    for _ in range(4):
        writer.append([b"x"] * 6_000)
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with LogReader(options, name) as reader:
        records = reader.read()
        next(records)
        reader.close()
        with pytest.raises(LogUnavailable):
            list(records)


def test_a_list_is_loaded_once(kafka: LocalKafka, make: Any, topic: TopicFactory) -> None:
    """Started again after a failure, and by two publishers of the same list at once (KIP-27)."""
    name = topic()
    rows = [(b"k", b"%d" % i) for i in range(90)]

    def interrupted() -> Iterator[tuple[bytes, bytes]]:
        yield from rows[:50]
        raise RuntimeError("the source is away")

    with pytest.raises(RuntimeError):
        bulk_load(make(name).acquire(), interrupted(), "one", batch_records=20)
    owner = make(name).acquire()
    assert bulk_load(owner, iter(rows), "one", batch_records=30) == Loaded(90, 40)
    writers = [make(name, shared=True, timeout=100).acquire() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        loads = [
            pool.submit(bulk_load, writer, iter(rows), "two", batch_records=size)
            for writer, size in zip(writers, (20, 30), strict=True)
        ]
        assert [load.result(200).count for load in loads] == [90, 90]
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with LogReader(options, name) as reader:
        assert [(r.key, r.value) for r in reader.read()] == rows * 2
    assert audit(options, name)[1].ok


@pytest.mark.parametrize("name", ["kafka-python", "confluent-kafka", "another"])
def test_the_name_of_a_client_has_no_effect(
    kafka: LocalKafka, make: Any, topic: TopicFactory, name: str
) -> None:
    """One client writes and reads all logs; programs that name one go on, with a warning."""
    log = topic()
    with pytest.warns(DeprecationWarning, match="engine has no effect"):
        writer = make(log, engine=name)
    writer.acquire().append([b"a"])
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    with (
        pytest.warns(DeprecationWarning, match="engine has no effect"),
        LogReader(options, log, engine=name) as reader,
    ):
        assert [r.value for r in reader.read()] == [b"a"]
