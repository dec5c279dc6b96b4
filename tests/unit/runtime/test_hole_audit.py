"""Which offsets are looked at for holes, and what the filter dropped that needs no range."""

from __future__ import annotations

import queue

import pytest

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.group.owned import Owned
from coopconsume.runtime.events import HolesFound
from coopconsume.runtime.hole_search import HoleSearch
from coopconsume.runtime.read import audit
from coopconsume.runtime.read.audit import HoleAudit
from coopconsume.runtime.read.spans import Span
from tests.partitions import make_partition

TP = ("t", 0)


def owned(stable=0, committed=(), **more):
    """A partition. This member has its hash 0."""
    ranges = (KeyRange().split(2)[0],)
    return Owned(*TP, ranges, stable, OffsetRanges(committed), **more)


@pytest.mark.parametrize(("used", "then"), [(4, None), (5, Span(*TP, 20, 29))])
def test_above_an_open_offset_holes_are_looked_for_where_ranges_get_scarce(monkeypatch, used, then):
    """A parked record may stay for long, and each hole above it may cost a range."""
    monkeypatch.setattr(audit, "present_offsets", lambda *_: OffsetRanges([(0, 10)]))
    looks, place = HoleAudit(None, None), owned(range_count=used, max_ranges=10)
    first = looks.due(place, 0, 20)
    assert first == Span(*TP, 0, 19)
    assert looks.look(first) == OffsetRanges([(11, 19)])
    assert looks.due(place, 0, 30) == then
    if then is not None:
        assert looks.look(then) == OffsetRanges([(20, 29)])
        assert looks.due(place, 0, 30) is None
    assert looks.due(place, 40, 50) == Span(*TP, 40, 49)
    looks.forget(TP)
    assert looks.due(place, 0, 20) == first


def test_one_look_for_holes_runs_at_a_time(monkeypatch):
    """The next one begins once the loop has taken what the one before has found."""
    monkeypatch.setattr(audit, "present_offsets", lambda *_: OffsetRanges())
    found = queue.Queue()
    search = HoleSearch(None, None, found.put)
    partition = make_partition(slots=[(0, (KeyRange().split(2)[0],))], whole=False)
    partition.cursors[0].position = 10
    place = owned(max_ranges=10)
    search.look([partition], {TP: place})
    assert found.get(timeout=60) == HolesFound(0, OffsetRanges([(0, 9)]))
    partition.cursors[0].position = 20
    place.range_count = 5
    search.look([partition], {TP: place})
    search.ended()
    search.look([partition], {TP: place})
    assert found.get(timeout=60) == HolesFound(0, OffsetRanges([(10, 19)]))
    assert found.empty()
    search.close()
