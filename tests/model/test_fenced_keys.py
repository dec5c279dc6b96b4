"""Appends that expect the last record of a key (`expected_key_seq`); see also the random model."""

from __future__ import annotations

import asyncio

import pytest

from coopconsume.errors import AppendRefused, OffsetMismatch
from coopconsume.fenced import ExclusiveProducer, MultiLogWriter, Write
from coopconsume.fenced.engine import EngineDoubt
from coopconsume.fenced.fold import KeyIndex
from tests.model.fenced_broker import OPTIONS, Broker, FakeEngine, writer_of
from tests.model.fenced_cluster import Cluster, ClusterEngine
from tests.model.memory_store import Memory, MemoryStore


@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
@pytest.mark.parametrize("remembered", [1, 1000])
def test_unrelated_keys_do_not_contend(
    visibility: str, remembered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each writer knows what it wrote to its own key, and nothing of what others write."""
    monkeypatch.setattr(KeyIndex, "remembered", remembered)
    broker = Broker()
    writers = [writer_of(broker, shared=True, visibility=visibility).acquire() for _ in range(3)]
    last: dict[bytes, int | None] = dict.fromkeys((b"a", b"b", b"c"))
    for turn in range(12):
        key = b"abc"[turn % 3 : turn % 3 + 1]
        done = writers[turn % 3].append(
            [(key, b"1"), (key, b"2")], expected_key_seq={key: last[key]}
        )
        last[key] = done.last_seq
    late = writer_of(broker, shared=True, visibility=visibility).acquire()
    for key, seq in last.items():
        with pytest.raises(OffsetMismatch) as caught:
            late.append([(key, b"3")], expected_key_seq={key: None})
        assert (caught.value.by, caught.value.key) == ("key", key)
        assert (caught.value.expected, caught.value.actual) == (None, seq)
        assert "no record" in str(caught.value)
    assert late.append([(b"a", b"3")], expected_key_seq=last[b"a"]).count == 1
    # Several keys, and keys that are only looked at.
    both = {b"b": last[b"b"], b"c": last[b"c"], b"new": None}
    late.append([(b"b", b"4"), (b"new", b"1")], expected_key_seq=both)
    with pytest.raises(OffsetMismatch):
        writers[0].append([(b"d", b"1")], expected_key_seq=both)


def test_appends_of_one_group_see_each_other() -> None:
    """Of two callers that create the same entity at once, one does, in one transaction."""
    broker = Broker()
    one = writer_of(broker).acquire()
    requests = [
        one._request([(key, b"1")], expected_key_seq={key: None}) for key in (b"a", b"a", b"b")
    ]
    for request in requests:
        one._groups._waiting.append(request)
    one._groups.settle_waiting()
    assert requests[0].result().first_seq == 0
    with pytest.raises(OffsetMismatch) as caught:
        requests[1].result()
    assert (caught.value.key, caught.value.actual) == (b"a", 0)
    assert requests[2].result().first_seq == 1


def test_a_key_survives_doubts_and_new_owners() -> None:
    """A lost answer, and another owner in between: what counts is what is in the log."""
    broker = Broker()
    one = writer_of(broker, session="s").acquire()
    first = one.append([(b"k", b"1")], expected_key_seq={b"k": None})
    lost = iter([True])
    broker.fate = lambda name: "unanswered" if name == "commit" and next(lost, False) else "done"
    second = one.append([(b"k", b"2")], expected_key_seq=first.last_seq)
    two = writer_of(broker).acquire()
    third = two.append([(b"k", b"3")], expected_key_seq=second.last_seq)
    assert third.first_seq == 2
    # By its id an append is answered again, whatever it expected.
    again = two.append([(b"x", b"y")], batch_id="once", expected_key_seq={b"x": None})
    assert two.append([(b"x", b"y")], batch_id="once", expected_key_seq={b"x": None}) == again


def test_reading_the_keys_goes_on_where_it_stopped() -> None:
    """A log too long for one call is read by several."""
    broker = Broker()
    one = writer_of(broker).acquire()
    for number in range(200):
        one.append([(b"k%d" % number, b"x")])
    two = writer_of(broker).acquire()

    class Over:
        left, seconds, is_over = 1.0, 1.0, True

    calls = 0
    while True:
        calls += 1
        try:
            found = two._session.last_seqs([b"k7"], Over())  # type: ignore[arg-type]
        except EngineDoubt:
            assert calls < 1000
        else:
            break
    assert found == {b"k7": 7}
    assert calls > 2


def test_several_logs_at_once_by_key() -> None:
    """Each log has its keys; one that is not as expected refuses all."""
    logs = [("a", 0), ("b", 0)]
    cluster = Cluster(logs)
    with MultiLogWriter(OPTIONS, logs, engine=ClusterEngine(cluster)) as several:  # type: ignore[arg-type]
        entity = Write([(b"k", b"1")], expected_key_seq={b"k": None})
        several.append(dict.fromkeys(logs, entity))
        with pytest.raises(OffsetMismatch, match="key b'k'"):
            several.append({logs[0]: Write([b"x"]), logs[1]: entity})
        several.append({log: Write([(b"k", b"2")], expected_key_seq=0) for log in logs})
        assert [several.next_seq(*log) for log in logs] == [2, 2]


def test_an_exclusive_producer_appends_by_key_and_from_coroutines() -> None:
    """It takes the arguments of a writer, in both ways to call it."""
    broker = Broker()
    store = MemoryStore(Memory())
    producer = ExclusiveProducer(OPTIONS, "t", store=store, engine=FakeEngine(broker), lease=0)  # type: ignore[arg-type]

    async def run() -> list[int]:
        calls = [
            producer.append_async(
                [(b"%d" % i, b"x")], expected_key_seq={b"%d" % i: None}, timeout=50
            )
            for i in range(20)
        ]
        return [done.first_seq for done in await asyncio.gather(*calls)]

    with producer:
        assert sorted(asyncio.run(run())) == list(range(20))
        assert producer.append([b"y"], timeout=5).first_seq == 20
        with pytest.raises(AppendRefused, match="timeout"):
            producer.append([b"y"], timeout=0)
        with pytest.raises(TypeError):
            producer.append([b"y"], expected=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("given", [7, {"k": 1}, {b"k": -1}])
def test_expectations_of_keys_that_make_no_sense_are_refused(given: object) -> None:
    """With what to give instead."""
    broker = Broker()
    with pytest.raises(AppendRefused, match="expected_key_seq"):
        writer_of(broker).acquire().append([(b"a", b"1"), (b"b", b"1")], expected_key_seq=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("record", [("k", b"v"), (b"k", "v"), (b"k", 7), (bytearray(b"k"), b"v")])
def test_keys_and_values_that_are_no_bytes_are_refused(record: object) -> None:
    """Clients encode them in different ways, or fail in the middle of the transaction."""
    writer = writer_of(Broker()).acquire()
    with pytest.raises(AppendRefused, match="are bytes or None, not"):
        writer.append([b"a", record])  # type: ignore[list-item]
    with pytest.raises(AppendRefused, match="batch_id 7"):
        writer.append([b"a"], batch_id=7)  # type: ignore[arg-type]
    assert writer.append([b"a"]).first_seq == 0
