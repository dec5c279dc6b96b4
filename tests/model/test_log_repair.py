"""A log in which records are missing, before and after an operator accepts that."""

from __future__ import annotations

import pytest

from coopconsume.errors import LogCorrupt, ProducerFenced
from coopconsume.fenced import FencedWriter, repair
from coopconsume.fenced.stamp import Stamp, decode, encode
from tests.model.fenced_broker import OPTIONS, Broker, FakeEngine, Slot, reader_of, writer_of


def values(broker: Broker) -> list[bytes | None]:
    """All records of data that count."""
    return [record.value for record in reader_of(broker, timeout=2).read()]


def damaged(visibility: str) -> tuple[Broker, FencedWriter, list[int]]:
    """A log that has lost the records 3 and 6 of 8, its owner, and the offsets behind the gaps."""
    broker = Broker()
    owner = writer_of(broker, visibility=visibility, timeout=2).acquire()
    at = [owner.append([b"%d" % i], batch_id=f"b{i}").first_offset for i in range(8)]
    for lost in (3, 6):
        broker.slots[at[lost]] = Slot(None)
    return broker, owner, [at[4], at[7]]


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_a_log_with_lost_records_is_used_again_once_an_operator_accepts_the_loss(
    visibility: str,
) -> None:
    """A dry run lists the gaps; the repair fences the owner and keeps the other records."""
    broker, owner, gaps = damaged(visibility)
    where = OPTIONS, "t"
    with pytest.raises(LogCorrupt, match="log repair"):
        values(broker)
    with pytest.raises(LogCorrupt):
        writer_of(broker, visibility=visibility, timeout=2).acquire()
    end = len(broker.slots)
    listed = repair(*where, engine=FakeEngine(broker), timeout=2)  # type: ignore[arg-type]
    assert [gap.offset for gap in listed] == gaps
    assert len(broker.slots) == end
    repair(*where, apply=True, engine=FakeEngine(broker), timeout=2)  # type: ignore[arg-type]
    assert values(broker) == [b"%d" % i for i in range(8) if i not in {3, 6}]
    with pytest.raises(ProducerFenced):
        owner.refresh()
    following = writer_of(broker, visibility=visibility, timeout=2).acquire()
    assert following.append([b"8"], batch_id="b8").first_seq == 8
    assert following.append([b"5"], batch_id="b5").first_seq == 5
    assert following.append([b"6"], batch_id="b6").first_seq == 9  # its record is lost
    for lookup in ("b7", "b8"):
        assert following.resolve(lookup) is not None
    assert not repair(*where, apply=True, engine=FakeEngine(broker), timeout=2)  # type: ignore[arg-type]


def test_a_repair_does_not_repeat_sequence_numbers() -> None:
    """A forged batch of a lower number does not count."""
    broker = Broker()
    owner = writer_of(broker, timeout=2).acquire()
    for i in range(4):
        owner.append([b"%d" % i])
    stamp = decode(broker.visible()[-1].headers)
    assert stamp is not None

    def forge(seq: int, batch: str) -> int:
        at = len(broker.slots)
        copied = Stamp("read_committed", "data", 1, seq, 1, 0, batch, at, stamp.tag)
        broker.foreign()
        raw = broker.slots[at].raw
        assert raw is not None
        broker.slots[at] = Slot(raw._replace(headers=[encode(copied)], value=b"forged"))
        return at

    at = forge(1, "forged")
    with pytest.raises(LogCorrupt):
        values(broker)
    repair(OPTIONS, "t", apply=True, engine=FakeEngine(broker), timeout=2)  # type: ignore[arg-type]
    assert values(broker) == [b"0", b"1", b"2", b"3"]
    following = writer_of(broker, timeout=2).acquire()
    assert following.append([b"4"]).first_seq == 4
    assert following.next_offset > at
