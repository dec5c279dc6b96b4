"""Polled records that come again: their keys wait, and nothing else; each record comes once."""

from __future__ import annotations

import copy
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import KeyRange
from commits import OffsetRanges
from coopconsume.group.owned import Failed, Owned
from coopconsume.record import with_added
from coopconsume.runtime.poll.positions import PollPosition, next_rows
from coopconsume.runtime.poll.retry_buffer import RetryBuffer

TP = ("t", 0)


def owned(stable: int = 0, committed=(), pending=()) -> Owned:
    """A whole partition with committed and pending offsets."""
    return Owned("t", 0, (KeyRange(),), stable, OffsetRanges(committed), list(pending))


def test_a_log_that_begins_at_any_offset_ends_the_wait_of_what_is_gone():
    """However many offsets lie below it."""
    for stable in (2**31 + 1, 2**36 + 1, 2**62, 2**63):
        retries = RetryBuffer()
        retries.hold_back(3, 7, 10.0, "a")
        retries.hold_back(stable - 1, 8, 10.0, "b")
        retries.forget_below(stable - 1)
        assert retries.due(0.0, 2**63).keys() == {7}
        retries.forget_below(stable)
        assert retries.due(0.0, 2**63).keys() == {7, 8}


def test_a_key_waits_for_the_record_that_is_due_last():
    """Two failed records of a key come together, in order, with what passed by meanwhile."""
    retries = RetryBuffer()
    retries.hold_back(3, 7, 10.0, "a")
    retries.hold_back(5, 7, 20.0, "b")
    retries.hold_back(4, 8, 10.0, "c")
    retries.pass_over(OffsetRanges([(10, 19)]))
    assert retries.keys == {7, 8}
    assert {k: r.pairs() for k, r in retries.due(10.0, 100).items()} == {8: [(4, 4), (10, 19)]}
    retries.release([8])
    assert {k: r.pairs() for k, r in retries.due(20.0, 100).items()} == {
        7: [(3, 3), (5, 5), (10, 19)]
    }
    retries.release([7])
    assert not retries.due(99.0, 100)
    assert retries.attempt(3) == 2


def test_a_parked_record_waits_for_a_decision():
    """Replayed, its attempts count from 1 again; settled, its key goes on."""
    retries = RetryBuffer([Failed(3, 7, 5, math.inf, ""), Failed(4, 8, 2, math.inf, "")])
    assert not retries.due(1e12, 100)
    assert [record.offset for record in retries.parked] == [3, 4]
    retries.replay(3, 5.0)
    assert retries.attempt(3) == 1
    retries.mark_done(OffsetRanges([(4, 4)]), 5.0)
    assert set(retries.due(5.0, 100)) == {7, 8}


keys = st.sampled_from([1, 2, 3])


class Polling:
    """A log of keys, a user who commits or gives back what is polled, and a second life."""

    def __init__(self, log):
        self.log = log
        self.owned = owned()
        self.place = PollPosition.at_start(self.owned)
        self.now = 0.0
        self.pending = {}
        self.added = {}
        self.out = []
        self.delivered = []

    def poll(self, window):
        found, _ = next_rows(
            {TP: self.place}, {TP: self.owned}, {TP: len(self.log)}, window, self.now
        )
        for offsets in found.values():
            self.place.hand_out(offsets, are_read=True)
        return found.get(TP, OffsetRanges())

    def rows(self, window):
        """What a frame of the next window shows."""
        waiting = self.place.retries.keys
        again = copy.deepcopy(self.place).take_again(self.owned, self.now)
        found = self.poll(window)
        if again:
            return sorted(
                o for k, r in again.items() for o in r.offsets().tolist() if self.log[o] == k
            )
        return [o for o in found.offsets().tolist() if self.log[o] not in waiting]

    def commit(self, offsets):
        done = OffsetRanges.from_offsets(offsets)
        committed = self.owned.committed | done
        end = committed.range_end(self.owned.stable)
        self.owned.stable = self.owned.stable if end is None else end + 1
        self.owned.committed = committed
        self.place.committed(done)
        for offset in offsets:
            self.pending.pop(offset, None)

    def retry(self, offset, delay):
        added = ((f"h{delay}", b"%d" % offset),)
        all_added = self.place.retries.added(offset, added)
        record = self.place.retries.hold_back(
            offset, self.log[offset], self.now + delay, "", all_added
        )
        self.added[offset] = with_added(self.added.get(offset, ()), added)
        self.place.answer(OffsetRanges([(offset, offset)]))
        self.pending[offset] = Failed(
            offset, record.key_hash, record.attempts, record.due, "", record.headers
        )

    def restart(self):
        self.owned = owned(
            self.owned.stable, self.owned.committed.pairs(), list(self.pending.values())
        )
        self.place = PollPosition.at_start(self.owned)


@given(st.lists(keys, max_size=30), st.data())
@settings(max_examples=100, deadline=None)
def test_polled_records_come_in_the_order_of_their_keys_until_done(log, data):
    """Whatever fails and is given back, with its key's rest: order, no record twice, none lost."""
    world = Polling(log)
    failures = {o: data.draw(st.integers(0, 2)) for o in range(len(log))}
    attempts = dict.fromkeys(range(len(log)), 0)
    for step in range(200):
        if data.draw(st.integers(0, 9)) == 0 and step < 40:
            world.restart()
        rows = world.rows(data.draw(st.integers(1, 12)) if step < 40 else 40)
        blocked, good = set(), []
        for offset in rows:
            key = log[offset]
            undone = [o for o in range(offset) if log[o] == key and o not in world.owned.committed
                      and o >= world.owned.stable]  # fmt: skip
            assert all(o in rows for o in undone), f"{offset} came before {undone}"
            assert offset >= world.owned.stable
            assert offset not in world.owned.committed, "what is done comes not again"
            assert world.place.retries.attempt(offset) >= attempts[offset]
            attempts[offset] = world.place.retries.attempt(offset)
            assert world.place.retries.added(offset) == world.added.get(offset, ())
            if key in blocked:
                world.retry(offset, data.draw(st.integers(0, 3)))
            elif failures[offset]:
                failures[offset] -= 1
                blocked.add(key)
                world.retry(offset, data.draw(st.integers(0, 3)))
            else:
                good.append(offset)
        world.commit(good)
        world.now += data.draw(st.integers(0, 2)) if step < 40 else 5
        if world.owned.stable >= len(log):
            break
    assert world.owned.stable == len(log)
