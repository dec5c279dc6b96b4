"""Logs that lose their end, on a broker of its own whose segment is cut while it is dead."""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Any

import pytest

from commits import OffsetRanges, PartitionCommits, Pending
from coopconsume import LocalKafka
from coopconsume.errors import DataLoss
from coopconsume.group.membership import Membership
from coopconsume.kafka.identity import LOG_IDENTITIES
from coopconsume.options import Options
from tests.broker.member_process import ReportingWorker

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.broker
P0 = ("t", 0)
_HEAD = struct.Struct(">qi")  # of a record batch: its first offset, and the bytes that follow


def produce(broker: LocalKafka, count: int) -> list[int]:
    """Write records, each in a batch of its own."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)
    offsets = [producer.send("t", value=b"v", partition=0).get(60).offset for _ in range(count)]
    producer.close()
    return offsets


def cut(folder: Path, offset: int, topic: str = "t") -> None:
    """Take a segment's records from an offset on away, as if they had never been replicated."""
    (segment,) = folder.glob(f"**/{topic}-0/00000000000000000000.log")
    data, at = segment.read_bytes(), 0
    while _HEAD.unpack_from(data, at)[0] < offset:
        at += _HEAD.size + _HEAD.unpack_from(data, at)[1]
    segment.write_bytes(data[:at])


def member(broker: LocalKafka, folder: Path, group: str, **more: Any) -> Membership:
    """Somebody who claims the partition."""
    options = {
        "kafka.bootstrap.servers": broker.bootstrap_servers, "kafka.group.id": group,
        "commitTable": str(folder / "commits"),
    }  # fmt: skip
    found = Membership(Options.parse(options | more), 1, ReportingWorker())
    found.assign({P0: []}, takeover=True)
    return found


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker with a topic of twenty records."""
    with LocalKafka(data_dir=tmp_path / "kafka") as found:
        found.create_topic("t", 1)
        assert produce(found, 20)[-1] == 19
        yield found


@pytest.mark.slow
def test_new_records_under_old_offsets_are_not_considered_done(
    broker: LocalKafka, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Seen by a member at work, at its next start, and by one that goes on; each is exact."""
    done = {P0: OffsetRanges([(0, 2), (4, 19)])}
    live, next_start = (member(broker, tmp_path, name) for name in ("live", "next"))
    for one in (live, next_start):
        assert one.assignment is not None
        one.assignment.commit(done, pending={P0: [Pending(3, attempts=2)]})
    next_start.leave()
    read_under = LOG_IDENTITIES.read_group("g", {})
    live.cluster.ends([P0])
    assert LOG_IDENTITIES.read_group("g", {}) == read_under, "nothing has changed"

    broker.kill()
    cut(tmp_path / "kafka", 10)
    broker.restart()
    assert produce(broker, 3) == [10, 11, 12]

    caplog.set_level(logging.WARNING, "coopconsume")
    after = PartitionCommits(3, [(4, 9)])
    assignment = live.assignment
    assert assignment is not None
    assert live.cluster.ends([P0]) == {P0: 13}
    assert LOG_IDENTITIES.read_group("g", {}) != read_under, "Spark may still hold what was cut"
    assert assignment.logs.is_cut(live.cluster.log_ends([P0]))
    loss = assignment.logs.follow_cut()
    assert loss is not None
    assert (loss.first, loss.last) == (10, 19)
    assert live.store.state("live") == {P0: after}
    assert (assignment.owned[P0].stable, assignment.owned[P0].committed) == (3, after.ranges)
    assert not assignment.logs.is_cut(live.cluster.log_ends([P0]))
    assert assignment.logs.follow_cut() is None
    assert "offsets 10 to 19 of t-0" in caplog.text
    live.leave()
    # A renewal of the lease may come between the two.
    kinds = [one["kind"] for one in live.store.history("live") if one["kind"] != "commit"]
    assert kinds[-2:] == ["truncation", "release"]

    with pytest.raises(DataLoss) as caught:
        member(broker, tmp_path, "next")
    assert (caught.value.first, caught.value.last) == (10, 19)
    assert next_start.store.state("next")[P0].ranges.last == 19
    goes_on = member(broker, tmp_path, "next", failOnDataLoss="false")
    assert goes_on.store.state("next") == {P0: after}
    (waiting,) = goes_on.owned[P0].pending
    assert (waiting.offset, waiting.key_hash, waiting.attempts) == (3, 0, 2)

    # Cut once more, and grown beyond its old end before anybody looks.
    logs = goes_on.assignment.logs
    assert produce(broker, 12)[-1] == 24
    assert not logs.is_cut(goes_on.cluster.log_ends([P0]))
    broker.kill()
    cut(tmp_path / "kafka", 15)
    broker.restart()
    assert produce(broker, 15)[-1] == 29
    assert logs.is_cut(goes_on.cluster.log_ends([P0]))
    loss = logs.follow_cut()
    assert loss is not None
    assert (loss.first, loss.last) == (15, 24)
    assert not logs.is_cut(goes_on.cluster.log_ends([P0]))

    # The same while nobody has the partition: the leader epoch of the commits shows it.
    assert goes_on.assignment is not None
    goes_on.assignment.commit({P0: OffsetRanges([(3, 26), (28, 29)])})
    goes_on.assignment.primary.write()
    goes_on.leave()
    broker.kill()
    cut(tmp_path / "kafka", 22)
    broker.restart()
    assert produce(broker, 20)[-1] == 41
    with pytest.raises(DataLoss) as caught:
        member(broker, tmp_path, "next")
    assert (caught.value.first, caught.value.last) == (22, 29)
    again = member(broker, tmp_path, "next", failOnDataLoss="false")
    assert again.store.state("next") == {P0: PartitionCommits(22)}
    # Kafka's offset is still that of before the cut, and it is no other cut.
    assert again.cluster.primary()[P0].offset == 27
    assert again.assignment is not None
    again.assignment.commit({P0: OffsetRanges([(24, 25)])})
    next_one = member(broker, tmp_path, "next")
    assert next_one.store.state("next") == {P0: PartitionCommits(22, [(24, 25)])}
    again.leave()
    next_one.leave()

    # And above the stable offset alone.
    broker.kill()
    cut(tmp_path / "kafka", 25)
    broker.restart()
    assert produce(broker, 30)[-1] == 54
    with pytest.raises(DataLoss) as caught:
        member(broker, tmp_path, "next")
    assert (caught.value.first, caught.value.last) == (25, 25)
    last = member(broker, tmp_path, "next", failOnDataLoss="false")
    assert last.store.state("next") == {P0: PartitionCommits(22, [(24, 24)])}
    last.leave()
