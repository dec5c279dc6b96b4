"""Retention removes what readers, owners and former owners have not read yet."""

from __future__ import annotations

import pytest

from coopconsume.errors import AppendOutcomeUnknown, LogTruncated, LogUnavailable, ProducerFenced
from tests.model.fenced_broker import VISIBILITIES, Broker, Fate, reader_of, writer_of

pytestmark = pytest.mark.usefixtures("clock")


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_reader_learns_which_records_are_gone(visibility: str) -> None:
    """With both offsets, each time; a new reader begins where the log begins now."""
    broker = Broker()
    writer = writer_of(broker, visibility=visibility, timeout=2).acquire()
    reader = reader_of(broker)
    writer.append([b"a"])
    assert [record.value for record in reader.read()] == [b"a"]
    position = reader.position
    for i in range(5):
        writer.append([b"%d" % i])
    broker.retain(position + 3)
    for _ in range(2):
        with pytest.raises(LogTruncated) as caught:
            list(reader.read())
        assert (caught.value.expected, caught.value.start) == (position, position + 3)
    early = reader_of(broker, start=position)
    with pytest.raises(LogTruncated):
        list(early.read())
    later = reader_of(broker, start=position + 3)
    assert [record.value for record in later.read()][-1] == b"4"


@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("left", [1, 3, 0])
def test_a_former_owner_behind_retention_is_fenced(
    visibility: str, left: int, clock: list[float]
) -> None:
    """Whatever is left of its successor's records, also if only a data record has the epoch."""
    broker = Broker()
    old = writer_of(broker, visibility=visibility, timeout=2).acquire()
    new = writer_of(broker, visibility=visibility, timeout=2).acquire()
    for i in range(4):
        new.append([b"%d" % i])
    broker.retain(len(broker.slots) - left)
    clock[0] += 3600
    with pytest.raises(ProducerFenced):
        old.append([b"late"])
    assert new.append([b"next"]).first_seq == 4


@pytest.mark.parametrize("visibility", VISIBILITIES)
def test_a_writer_that_shares_the_log_goes_on_behind_retention(visibility: str) -> None:
    """The last records show where the log goes on."""
    broker = Broker()
    slow, fast = (
        writer_of(broker, visibility=visibility, timeout=2, shared=True).acquire() for _ in range(2)
    )
    slow.append([b"a"])
    for i in range(80):
        fast.append([b"%d" % i])
    broker.retain(len(broker.slots) - 20)
    assert slow.append([b"b"]).first_seq == 81


@pytest.mark.parametrize("visibility", VISIBILITIES)
@pytest.mark.parametrize("is_gone", [True, False])
def test_a_batch_that_retention_may_have_removed_is_not_appended_again(
    visibility: str, is_gone: bool
) -> None:
    """Its answer was lost, others wrote much more, and retention passed it, or nearly so."""
    broker = Broker()
    slow, fast = (
        writer_of(broker, visibility=visibility, timeout=2, shared=True).acquire() for _ in range(2)
    )
    slow.append([b"a"])
    sent = "append" if visibility == "filter" else "commit"
    lost: dict[str, Fate] = {sent: "unanswered", "metadata": "lost"}
    broker.fate = lambda name: lost.get(name, "done")
    with pytest.raises(AppendOutcomeUnknown):
        slow.append([b"b"], batch_id="b1")
    broker.fate = lambda _: "done"
    place = next(raw.offset for raw in broker.visible() if raw.value == b"b")
    for i in range(200):
        fast.append([b"%d" % i])
    slow._session.begin_at(-1)  # as if it had to look for the state at the end of the log
    broker.retain(place + is_gone)
    if is_gone:
        for _ in range(2):
            with pytest.raises(AppendOutcomeUnknown, match="retention"):
                slow.append([b"b"], batch_id="b1")
        with pytest.raises(AppendOutcomeUnknown, match="retention"):
            slow.resolve("b1")
    else:
        assert slow.append([b"b"], batch_id="b1").first_offset == place
    assert len([raw for raw in broker.visible() if raw.value == b"b"]) == 1
    assert slow.append([b"c"]).first_seq == 202


def test_batch_ids_are_read_while_retention_goes_on() -> None:
    """A restart of the reading, and not an error for ever."""
    broker = Broker()
    writer = writer_of(broker, timeout=2).acquire()
    for i in range(10):
        writer.append([b"%d" % i], batch_id=f"b{i}", is_new=True)
    reads = iter([True])

    def fate(name: str) -> Fate:
        if name == "read" and next(reads, False):
            broker.retain(8)
        return "done"

    broker.fate = fate
    with pytest.raises(LogUnavailable):
        writer.append([b"new"], batch_id="new")
    writer.append([b"new"], batch_id="new")
    broker.fate = lambda _: "done"
    assert len([raw for raw in broker.visible() if raw.value == b"new"]) == 1
