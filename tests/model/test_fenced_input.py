"""Consume, transform and append: the input offsets are committed with the records, or not."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.errors import AppendRefused, CoopConsumeError, OffsetMismatch
from coopconsume.fenced import Consumed
from coopconsume.kafka import call_limit
from tests.examples import examples
from tests.model.fenced_broker import Broker, Fate, writer_of

INPUT = ("in", 0)


@settings(max_examples=examples(200), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_each_input_record_is_appended_once(seed: int, rounds: int) -> None:
    """A loop that goes on from the committed offset, and whose process may be another each time."""
    now = [0.0]
    luck = random.Random(seed)
    fates: list[Fate] = ["lost", "unanswered", "late"]
    broker = Broker()

    def sleep(seconds: float) -> None:
        now[0] += max(seconds, 0.01)

    with pytest.MonkeyPatch.context() as patch:
        clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
        patch.setattr(call_limit, "time", clock)
        for _ in range(rounds):
            writer = writer_of(broker, timeout=2)
            broker.fate = lambda _: luck.choice(fates) if luck.randrange(12) == 0 else "done"
            try:
                writer.acquire()
                for _ in range(3):
                    at = broker.committed.get(INPUT, 0)
                    writer.append([b"%d" % at], consumed=Consumed("g", {INPUT: at + 1}))
            except CoopConsumeError:
                continue
        broker.deliver()
        for identity in broker.ids.values():
            broker.end(identity, commit=False)
    values = [int(raw.value or b"") for raw in broker.visible() if raw.key is None]
    assert values == list(range(broker.committed.get(INPUT, 0)))


def test_an_append_that_is_refused_commits_no_offsets() -> None:
    """Nor does a filtered log, which has no transactions."""
    broker = Broker()
    writer = writer_of(broker).acquire()
    with pytest.raises(OffsetMismatch):
        writer.append([b"a"], expected_seq=7, consumed=Consumed("g", {INPUT: 1}))
    assert broker.committed == {}
    filtered = writer_of(broker, visibility="filter")
    with pytest.raises(AppendRefused, match="filtered"):
        filtered.append([b"a"], consumed=Consumed("g", {INPUT: 1}))
