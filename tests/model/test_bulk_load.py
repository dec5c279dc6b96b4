"""Bulk loads on a broker in memory that fails anywhere: by one after another, and by several."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from coopconsume.errors import (
    AppendOutcomeUnknown,
    InvalidOption,
    LogUnavailable,
    ProducerFenced,
)
from coopconsume.fenced import FencedWriter, Loaded, bulk_load
from coopconsume.fenced.stamp import decode
from tests.model.fenced_broker import OPTIONS, Broker, FakeEngine, Fate, writer_of
from tests.model.test_kafka_sink import values

FATES: list[Fate] = ["unanswered", "after a foreign one", "torn", "late"]


class Story:
    """A list, publishers of it, another writer's batches, and random faults."""

    def __init__(self, visibility: str, shared: bool, size: int, luck: list[int]) -> None:
        self.broker = Broker(self.fate, lambda: None)
        self.rows = [b"%d" % i for i in range(size)]
        self._luck = iter(luck)
        self._visibility, self._shared = visibility, shared
        self._depth = 0
        self._ids = itertools.count()

    def writer(self) -> FencedWriter:
        return writer_of(self.broker, visibility=self._visibility, shared=self._shared, timeout=30)

    def fate(self, name: str) -> Fate:
        """Mostly all goes well; else something fails, or somebody else writes in between."""
        drawn = next(self._luck, 0)
        if drawn in (1, 2) and self._depth < 2:
            self.publish(most=3 if drawn == 1 else 50, up_to=drawn * 7 + self._depth)
        elif drawn == 3:
            self.broker.deliver()
        elif drawn >= 6:
            return FATES[drawn - 6]
        return "done"

    def publish(self, most: int, up_to: int | None = None) -> None:
        """A publisher comes, and gets as far as it gets; without an end it stays to the end."""
        self._depth += 1
        while True:
            with suppress(ProducerFenced, LogUnavailable, AppendOutcomeUnknown):
                writer = self.writer().acquire()
                if up_to is not None and up_to % 2:
                    writer.append([b"another's"], batch_id=f"other:{next(self._ids)}")
                loaded = bulk_load(writer, iter(self.rows[:up_to]), "list", batch_records=most)
                assert loaded.count >= len(self.rows[:up_to])
                break
            if up_to is not None:
                break
        self._depth -= 1


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("visibility", ["read_committed", "filter"])
def test_each_record_of_a_list_is_there_once(visibility: str, shared: bool) -> None:
    """A publisher that starts again, with any batch size, during another's request."""

    @settings(max_examples=60, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(
        st.integers(0, 40), st.integers(1, 9),
        st.lists(st.sampled_from([0] * 12 + [1, 2, 3, 6, 7, 8, 9]), max_size=150),
    )  # fmt: skip
    def run(size: int, most: int, luck: list[int]) -> None:
        story = Story(visibility, shared, size, luck)
        story.publish(most)
        story.broker.deliver()
        found = [value for value in values(story.broker) if value != "another's"]
        assert found == [row.decode() for row in story.rows]

    run()


def test_a_list_is_read_once_and_no_further_than_a_batch() -> None:
    """Batches keep to the limits of number and size, and what is there is reported."""
    broker = Broker()
    options = OPTIONS | {"kafka.max.request.size": "5000"}
    read: list[int] = []

    def rows(stop_at: int | None = None):
        for i in range(30):
            if i == stop_at:
                raise RuntimeError("the source is away")
            read.append(i)
            yield (b"%d" % i, bytes(1200 if i < 20 else 10))

    writer = FencedWriter(options, "t", engine=FakeEngine(broker)).acquire()
    with pytest.raises(RuntimeError):
        bulk_load(writer, rows(stop_at=17), "list", batch_records=6)
    last = writer.last_batch("list:")
    assert last is not None
    assert (last.first_seq + last.count) % 3 == 0
    there = last.first_seq + last.count
    read.clear()
    assert bulk_load(writer, rows(), "list", batch_records=6) == Loaded(30, there)
    assert read == list(range(30))
    counts = [len(list(group)) for _, group in itertools.groupby(_batches(broker))]
    assert counts[:6] == [3] * 6
    assert max(counts) == 6
    assert bulk_load(writer, rows(), "list") == Loaded(30, 30)


def _batches(broker: Broker) -> list[str]:
    stamps = [decode(row.headers) for row in broker.visible()]
    return [s.batch for s in stamps if s is not None and s.kind == "data"]


def test_what_a_load_cannot_rest_on_is_refused() -> None:
    """Before anything is written."""
    broker = Broker()
    writer = writer_of(broker).acquire()
    for arguments in ({"name": "a:b"}, {"name": "a", "batch_records": 0}):
        with pytest.raises(InvalidOption):
            bulk_load(writer, [b"a"], **arguments)  # type: ignore[arg-type]
    writer.append([b"a"], batch_id="list:of-others")
    with pytest.raises(InvalidOption, match="list:of-others"):
        bulk_load(writer, [b"a"], "list")
    off = OPTIONS | {"check.expected.offsets": "false"}
    writer = FencedWriter(off, "t", engine=FakeEngine(broker)).acquire()
    with pytest.raises(InvalidOption, match=r"check\.expected\.offsets"):
        bulk_load(writer, [b"a"], "list")
    assert values(broker) == ["a"]
