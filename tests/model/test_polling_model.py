"""Several members poll, commit, retry and reject, and hand their shares over.

Judged by: no record counts as done that was not handed out to the member that answered for it; an
answer for anything else changes nothing; no record is lost; keys keep their order; a hand-over
waits for nothing once everything was answered for.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assignors import key_hash
from assignors.ranges import MAX_KEY_HASH
from commits import (
    CommitLogUnavailable,
    FencedMember,
    MaxIndividualCommitsReached,
    OffsetRanges,
    PartitionCommits,
)
from coopconsume.errors import (
    AlreadyClosed,
    BrokerUnreachable,
    NotPolled,
    OutputNotWritten,
    TopicReplaced,
)
from coopconsume.record import ORDERING_KEY
from coopconsume.runtime.plan.range_limit import read_limit
from tests.examples import examples
from tests.model.polling_world import TOPIC, Frame, Log, Member, SparkGone, dealt, in_memory

#: Seconds that a hand-over may take that is to wait for nothing.
SOON = 20.0


class World:
    """Members of one group, and an oracle that knows what each of them was given."""

    def __init__(self, log, members):
        self.log = log
        self.members = [Member(log) for _ in range(members)]
        self.asking = self.members[0]
        self.answered = set()  # records that are done by an answer that counted

    def deal(self, splits):
        """Open the next epoch with other shares."""
        self.log.epoch += 1
        for member, ranges in zip(self.members, dealt(len(self.members), splits), strict=True):
            member.begin(ranges)

    def is_current(self, member):
        """Whether a member holds its shares under the epoch in force."""
        return member.assignment is not None and member.assignment.epoch == self.log.epoch

    def snapshot(self):
        """Everything that an answer could change."""
        log = self.log
        return {
            p: (c.stable_offset, c.ranges.pairs(), sorted(log.pending[p]))
            for p, c in log.commits.items()
        }

    def check(self):
        """What counts as done was answered by the member that had it."""
        for p, records in self.log.records.items():
            done = {(p, o) for o in records if self.log.is_done(p, o)}
            done -= self.log.filtered
            assert done <= self.answered, f"nobody answered for {done - self.answered}"
            assert {a for a in self.answered if a[0] == p} <= done, "an answer was lost"

    def poll(self, member, window):
        """A frame; checks the order of its keys."""
        before = set(member.given)
        frame = member.poll(window)
        rows = set(frame)
        for p, o in frame:
            assert member.is_ours(p, o), f"{(p, o)} belongs to another member"
            assert not self.log.is_done(p, o), f"{(p, o)} is done and comes again"
            assert (p, o) not in self.log.filtered, f"{(p, o)} is in a frame"
            for lower, key in self.log.records[p].items():
                if lower < o and key is not None and key == self.log.records[p][o]:
                    known = (p, lower) in rows | before | self.log.filtered
                    assert known or self.log.is_done(p, lower), f"{(p, o)} before {lower}"
        return frame

    def commit(self, member, done):
        """Any answer: it counts exactly, or changes nothing."""
        named, strange, may_refuse = self.named(member, done)
        was = self.snapshot()
        try:
            member.poller.commit(member, done)
        except NotPolled:
            assert strange or may_refuse, f"{done} was refused, with {member.given} open"
            assert self.snapshot() == was
            return False
        except FencedMember:
            assert self.snapshot() == was
            return False
        except MaxIndividualCommitsReached as error:
            left = self.left_by_limit(error)
            assert left <= named, f"{left} was not committed, and {named} was asked for"
            named -= left
        assert not strange, f"{strange} counts, and {member.given} was handed out"
        self.answered |= named
        member.given -= named
        return True

    def left_by_limit(self, error):
        """The records that a limit left out; not one of their ranges would fit in."""
        log, left = self.log, set()
        assert error.uncommitted
        for (_, p), offsets in error.uncommitted.items():
            assert offsets
            for one in offsets:
                trial = log.commits[p].copy(max_ranges=log.limit)
                with pytest.raises(MaxIndividualCommitsReached):
                    trial.commit([one])
            left |= {(p, o) for o in offsets.offsets().tolist() if o in log.records[p]}
        return left

    def named(self, member, done):
        """The records that an answer names, those of them that may not be named, and the rest.

        The rest may be refused: holes, and what is done by an answer of another member.
        """
        if done is None:
            return set(member.given), set(), False
        asked, strange = set(), set()
        if isinstance(done, Frame):
            asked = set(done)
        else:
            for (_, p), what in done.items():
                if isinstance(what, int):
                    owned = member.assignment is not None and (TOPIC, p) in member.assignment.owned
                    strange |= set() if owned else {(p, what)}
                    asked |= {one for one in member.given if one[0] == p and one[1] < what}
                else:
                    asked |= {(p, o) for o in what.offsets().tolist()}
        records = {one for one in asked if one[1] in self.log.records[one[0]]} - self.log.filtered
        strange |= {one for one in records - member.given if not self.log.is_done(*one)}
        return records & member.given, strange, bool(asked - (records & member.given))

    def give_back(self, member, one, *, delay=None, park=False, meanwhile=None):
        """Retry or park a record and what was handed out of its key behind it, or reject it.

        Something may happen while its dead letter is being written.
        """
        p, offset = one
        key = self.log.records[p].get(offset)
        behind = {
            (q, o) for q, o in member.given
            if q == p and o > offset and key is not None and self.log.records[p][o] == key
        }  # fmt: skip
        rows = Frame(sorted({one} | behind)) if delay is not None or park else Frame([one])
        was, written = self.snapshot(), len(member.letters)
        self.asking = member

        def happen():
            nonlocal was
            if meanwhile is not None:
                meanwhile()
                was = self.snapshot()

        member.meanwhile = happen
        try:
            if delay is not None:
                member.poller.retry(member, rows, delay, "later")
            else:
                member.poller.reject(member, rows, "no", "park" if park else "continue")
        except NotPolled:
            assert one not in member.given, f"{one} was refused, with {member.given} open"
            assert self.snapshot() == was
            return
        except FencedMember:
            assert self.snapshot() == was
            return
        except OutputNotWritten:
            assert self.snapshot() == was
            assert len(member.letters) == written
            return
        assert set(rows) <= member.given, f"{rows} was taken, with {member.given} open"
        if delay is None and not park:
            self.answered |= set(rows)
        member.given -= set(rows)

    def hand_over(self, member):
        """What the member still has is reported; with nothing open nothing is waited for."""
        session = member.poller.session
        if not member.given:
            assert session.hand_over(SOON) == [], "it waited, though everything was answered for"
            return
        out = {share.partition for share in session.hand_over(0.0)}
        held = {p for p, _ in member.given}
        has_holes = any(len(log) < self.log.ends[p] for p, log in self.log.records.items())
        assert held <= out
        assert has_holes or held == out


keys = st.sampled_from([None, b"a", b"b", b"c"])
windows = st.integers(1, 6)


@st.composite
def worlds(draw):
    """One or two partitions with holes and keys, and one to three members."""
    records = {}
    for partition in range(draw(st.integers(1, 2))):
        offsets = draw(st.lists(st.integers(0, 40), min_size=5, max_size=30, unique=True))
        dense = draw(st.booleans())
        ordered = range(len(offsets)) if dense else sorted(offsets)
        records[partition] = {offset: draw(keys) for offset in ordered}
    limit = draw(st.sampled_from([1_000_000, 1, 2, 4]))
    log = Log(records, {}, limit)
    every = [(p, o) for p, offsets in records.items() for o in offsets]
    if draw(st.booleans()):
        log.filtered = frozenset(draw(st.lists(st.sampled_from(every), max_size=20)))
    return World(log, draw(st.integers(1, 3)))


def splits(world, data):
    """How partitions are shared: in how many pieces, and who gets the first."""
    most = len(world.members)
    return {
        p: (data.draw(st.integers(0, most - 1)), data.draw(st.integers(1, most)))
        for p in world.log.records
    }


def some_done(world, member, data):
    """What a user may name in a commit, rightly or wrongly."""
    p = data.draw(st.sampled_from(sorted(world.log.records)))
    end = world.log.ends[p]
    match data.draw(st.integers(0, 6)):
        case 0:
            return None
        case 1:
            return {(TOPIC, p): data.draw(st.integers(0, end + 1))}
        case 2:
            return {(TOPIC, q): world.log.ends[q] for q in world.log.records}
        case 3:
            first = data.draw(st.integers(0, end))
            last = data.draw(st.integers(first, end))
            more = {(TOPIC, q): 5 for q in world.log.records if q != p and data.draw(st.booleans())}
            return more | {(TOPIC, p): OffsetRanges([(first, last)])}
        case 4:
            return Frame(world.log.records[p] and [(p, o) for o in world.log.records[p]])
        case _:
            return Frame(one for one in sorted(member.given) if data.draw(st.booleans()))


def fail_to_write():
    """The place of dead letters does not take them."""
    raise OutputNotWritten("dead letters", "dead", "it is away")


def step(world, data):
    """Anything that users and the group do."""
    member = data.draw(st.sampled_from(world.members))
    every = [(p, o) for p, log in world.log.records.items() for o in range(world.log.ends[p])]
    anything = st.sampled_from(sorted(member.given) or every or [(0, 0)])
    if data.draw(st.integers(0, 2)) == 0 and every:
        anything = st.sampled_from(every)
    match data.draw(st.sampled_from("pppppccccrrrrjkdtfs")):
        case "p":
            world.poll(member, data.draw(windows))
        case "c":
            world.commit(member, some_done(world, member, data))
        case "r":
            world.give_back(member, data.draw(anything), delay=data.draw(st.integers(0, 3)))
        case "j" | "k" as letter:
            redeal = functools.partial(world.deal, splits(world, data))
            kinds = (None, fail_to_write, lambda: world.commit(member, None), redeal)

            meanwhile = data.draw(st.sampled_from(kinds))
            park = letter == "k"
            world.give_back(member, data.draw(anything), park=park, meanwhile=meanwhile)
        case "d":
            for one in world.members:
                if data.draw(st.integers(0, 3)):  # Others stall, and are fenced.
                    world.hand_over(one)
            world.deal(splits(world, data))
        case "t":
            world.log.now += data.draw(st.integers(0, 4))
        case "f":
            world.log.failures = 1
            with contextlib.suppress(SparkGone):
                world.poll(member, data.draw(windows))
            world.log.failures = 0
        case "s":
            stall = data.draw(st.sampled_from(world.members))
            world.log.epoch += 1  # Somebody opened an epoch that this member knows nothing of.
            if stall.assignment is not None:
                world.commit(stall, None)
            world.deal(splits(world, data))


def poll_all(world):
    """Everybody polls and commits until nothing comes any more."""
    quiet, was = 0, None
    while quiet < 10:
        quiet, was = (quiet + 1 if world.snapshot() == was else 0), world.snapshot()
        world.log.now += 100
        for member in world.members:
            while frame := world.poll(member, 40):
                assert world.commit(member, frame) or not world.is_current(member)
            # What a limit has left out fits once others have filled the gaps.
            assert world.commit(member, None) or not world.is_current(member)


def finish(world, data):
    """Everything is polled and committed; whatever was parked is released."""
    poll_all(world)
    for p, log in world.log.records.items():
        parked = {r.key_hash for r in world.log.pending[p].values() if r.is_parked}
        # What waits behind a parked record may need all ranges with which news are read.
        commits = world.log.commits[p]
        if parked and commits.ranges.range_count >= read_limit(world.log.limit):
            continue
        for offset in log:
            owners = [m for m in world.members if m.assignment and m.is_ours(p, offset)]
            if not all(map(world.is_current, owners)) or world.log.hash_of(p, offset) in parked:
                continue
            is_open = any((p, offset) in member.given for member in owners)
            assert is_open or world.log.is_done(p, offset), f"{(p, offset)} is never handed out"
    for waiting in world.log.pending.values():
        for offset in [o for o, record in waiting.items() if record.is_parked]:
            del waiting[offset]
    world.deal(splits(world, data))
    poll_all(world)
    for p, log in world.log.records.items():
        assert all(world.log.is_done(p, o) for o in log), f"lost in {world.snapshot()}"
    for member in world.members:
        world.hand_over(member)


@given(worlds(), st.data())
@settings(max_examples=examples(1_200), deadline=None)
def test_only_what_was_handed_out_is_answered_for_and_nothing_is_lost(world, data):
    """Members answer rightly and wrongly, fall asleep, hand over: the oracle agrees."""
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal(splits(world, data))
        for _ in range(data.draw(st.integers(5, 40))):
            step(world, data)
            world.check()
        finish(world, data)
        world.check()


def test_a_range_over_a_waiting_key_is_refused():
    """Records that were left out because their key waits cannot be committed with the others."""
    world = World(Log({0: {o: b"k%d" % (o % 10) for o in range(40)}}, {}), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 20)
        world.give_back(member, (0, 3), delay=1_000)
        frame = world.poll(member, 20)
        assert {o for _, o in frame} == {o for o in range(20, 40) if o % 10 != 3}
        with pytest.raises(NotPolled) as refused:
            member.poller.commit(member, {(TOPIC, 0): OffsetRanges([(20, 39)])})
        assert (refused.value.first, refused.value.last) == (23, 23)
        assert world.commit(member, {(TOPIC, 0): 40})
        commits = world.log.commits[0]
        assert (commits.stable_offset, commits.ranges.pairs()) == (
            3, [(4, 12), (14, 22), (24, 32), (34, 39)]
        )  # fmt: skip
        world.check()


def test_a_member_without_records_commits_the_holes_between_those_of_others():
    """Its user has nothing to commit; at their limit the others would wait for it for ever."""
    upper = next(k for n in range(99) if key_hash(k := b"k%d" % n) > MAX_KEY_HASH // 2)
    world = World(Log({0: {0: upper, 5: upper, 9: upper}}, {}, 1), 2)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 2)})
        idle, other = world.members
        assert not world.poll(idle, 40)
        assert len(world.poll(other, 40)) == 3
        world.commit(other, {(TOPIC, 0): 1})
        world.log.now += 100
        assert not world.poll(idle, 40)
        assert world.log.commits[0].stable_offset == 5
        world.commit(other, {(TOPIC, 0): 6})
        world.log.now += 100
        assert not world.poll(idle, 40)
        assert world.commit(other, None)
        assert world.log.commits[0].stable_offset == 10
        world.check()


def test_holes_that_could_not_be_committed_are_looked_for_again():
    """The epoch had passed: under the next one they hold the stable offset back no longer."""
    log = Log({0: {1: None, 2: b"a", 3: b"a", 4: b"a", 6: None}}, {}, 1)
    log.filtered = frozenset({(0, 4), (0, 6)})
    world = World(log, 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 1)
        world.log.epoch += 1
        assert not world.commit(member, None)
        world.deal({0: (0, 1)})
        poll_all(world)
        assert world.log.commits[0].stable_offset == 7


def test_filtered_records_above_holes_are_committed_in_spite_of_the_limit():
    """No commit of the user's has them, and nothing else would move the stable offset."""
    log = Log({0: {1: b"a", 3: b"b", 5: b"c"}}, {}, 1)
    log.filtered = frozenset({(0, 1), (0, 3), (0, 5)})
    world = World(log, 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        for _ in range(3):
            world.log.now += 100
            assert not world.poll(world.members[0], 6)
        assert world.log.commits[0].stable_offset == 6


def test_a_hole_is_no_record_to_answer_for_and_no_reason_to_wait():
    """Where all rows of a window are handed out, holes are found out when it matters."""
    world = World(Log({0: {0: b"a", 2: b"b", 4: b"c"}}, {}), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        assert world.poll(member, 40) == [(0, 0), (0, 2), (0, 4)]
        with pytest.raises(NotPolled):
            member.poller.retry(member, Frame([(0, 1)]), 0, "")
        with pytest.raises(NotPolled):
            member.poller.reject(member, Frame([(0, 0), (0, 3)]), "", "continue")
        assert not world.log.pending[0]
        assert not member.letters
        member.poller._options.max_offsets_per_trigger = None
        member.poller.commit(member, {(TOPIC, 0): OffsetRanges([(4, 4)])})
        session = member.poller.session
        place = session.places[TOPIC, 0]
        assert session.hand_over(0.2) == list(member.assignment.shares), "0 and 2 are still open"
        with session.lock:
            assert session.lock.wait_for(lambda: len(place.polled) == 2, SOON)
        assert place.polled.pairs() == [(0, 0), (2, 2)]


def test_a_commit_is_answered_whatever_becomes_of_the_look_for_holes():
    """Behind the end of the log nothing is looked for; deleted records are the next poll's."""
    world = World(Log({0: {0: b"a", 2: b"b", 4: b"c"}}, {}), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 40)
        member.poller._options.max_offsets_per_trigger = None
        world.log.starts[0] = 1
        assert world.commit(member, Frame([(0, 4)]))
        world.log.starts[0] = 0
        member.poller.seek((TOPIC, 0), 1_000)
        assert world.commit(member, Frame([(0, 0), (0, 2)]))
        assert world.log.commits[0].stable_offset == 5, "up to the end holes are found"


@pytest.mark.parametrize(
    "error", [BrokerUnreachable("nowhere:1", "off"), CommitLogUnavailable("t", "read", "off")]
)
def test_a_poll_goes_on_once_what_was_away_is_back(error):
    """Until its time is over; then it says what is away."""
    world = World(Log({0: {0: b"a"}}, {}), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        ends, failures = member.assignment.cluster.log_ends, [error, error]

        def log_ends(partitions):
            if failures:
                raise failures.pop()
            return ends(partitions)

        member.assignment.cluster.log_ends = log_ends
        member.poller._options.max_offsets_per_trigger = None
        assert member.poller.poll(member, "1 minute") == [(0, 0)]
        if isinstance(error, BrokerUnreachable):
            failures.append(error)
            assert not member.poller.poll(member, 0), "a leader is elected, perhaps"
            member.poller._away_since = -math.inf
        failures.append(error)
        with pytest.raises(type(error)):
            member.poller.poll(member, 0)
        assert not member.poller.poll(member, 0)
        assert member.poller._away_since == math.inf


def test_a_poll_that_waits_holds_no_hand_over_up_and_ends_with_close():
    """Who polls again is done with earlier frames; `close` in another thread ends the wait."""
    world = World(Log({0: {0: b"a"}}, {}), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        pool = stack.enter_context(ThreadPoolExecutor(1))
        world.deal({0: (0, 1)})
        (member,) = world.members
        assert world.poll(member, 40) == [(0, 0)]
        session = member.poller.session
        stack.callback(member.poller.close)
        waiting = pool.submit(member.poller.poll, member, 600)
        with session.lock:
            assert session.lock.wait_for(lambda: session._is_polling, SOON)
        assert session.hand_over(SOON) == [], "nobody works on the record that is open"
        member.poller.close()
        with pytest.raises(AlreadyClosed):
            waiting.result(SOON)
        for call in (member.poller.poll, member.poller.commit):
            with pytest.raises(AlreadyClosed):
                call(member, None if call == member.poller.commit else 0)


def test_a_discarded_record_is_committed_at_the_limit():
    """An operator has decided it, so it waits for nothing."""
    world = World(Log({0: {o: b"k%d" % o for o in range(6)}}, {}, limit=1), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 6)
        world.give_back(member, (0, 5), park=True)
        assert world.commit(member, Frame([(0, 2)]))
        decision = {"deadLetter/g/0/5": {"action": "discard"}}
        store = member.assignment.store
        store.settings, store.pending = lambda _: decision, lambda _: {}
        store.set_settings = lambda changes: [
            decision.pop(name) for _, name, value in changes if value is None
        ]
        world.log.now += 100
        assert world.poll(member, 6) == []
        assert world.log.is_done(0, 5)
        assert not decision


@pytest.mark.parametrize("ordered", [True, False])
def test_the_commit_log_has_the_keys_of_records_that_were_polled(ordered):
    """Those that they are dealt by, also after a record is held, parked or replayed again."""
    log = Log({0: {o: b"k%d" % o for o in range(4)}}, {})
    if ordered:
        log.ordered_by = lambda offset: None if offset == 2 else b"o%d" % offset * 99

    def stored(offset):
        return log.pending[0][offset].headers, log.pending[0][offset].key

    def shown(offset):
        if not ordered:
            return f"k{offset}"
        return log.ordered_by(offset) and f"o{offset}" * 32 + "…"

    world = World(log, 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        for added in ({"step": b"1"}, {}):
            world.poll(member, 4)
            member.poller.retry(member, Frame([(0, 1), (0, 2)]), 1, "later", added)
            world.log.now += 10
            for offset in (1, 2):
                assert stored(offset) == ((("step", b"1"),), shown(offset))
        member.poller.reject(member, Frame([(0, 3)]), "no", "park")
        assert (*stored(3), log.pending[0][3].is_parked) == ((), shown(3), True)
        own = ((ORDERING_KEY, log.ordered_by(3)),) if ordered else ()
        assert member.letters[0].headers == own
        decision = {"deadLetter/g/0/3": {"action": "replay"}}
        store = member.assignment.store
        store.settings, store.pending = lambda _: decision, lambda _: {}
        store.set_settings = lambda changes: [
            decision.pop(name) for _, name, value in changes if value is None
        ]
        world.poll(member, 4)
        assert not decision
        assert (*stored(3), log.pending[0][3].is_parked) == ((), shown(3), False)


@pytest.mark.parametrize("records", [4, 6, 9])
@pytest.mark.parametrize("has_open", [True, False])
@pytest.mark.parametrize("outlives", [True, False])
def test_no_record_of_a_topic_that_was_created_again_is_handed_out(records, has_open, outlives):
    """Whatever the length of its log; polling continues with it if nothing of the old one is lost.

    A retried or rejected record is read again: it must be the one that was polled.
    """
    world = World(Log({0: dict.fromkeys(range(6), b"a")}, {}), 1)
    world.log.options.outlives_topics = outlives
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        frame = world.poll(member, 6)
        if not has_open:
            assert world.commit(member, frame)
        world.log.records[0] = dict.fromkeys(range(records), b"new")
        world.log.ends[0], world.log.topic_id = records, "second"
        if has_open:
            for answer in (("retry", 1, ""), ("reject", "no", "continue")):
                name, *arguments = answer
                with pytest.raises(TopicReplaced):
                    getattr(member.poller, name)(member, Frame([(0, 1)]), *arguments)
            assert not member.letters
            assert not world.log.pending[0]
        if has_open or not outlives:
            with pytest.raises(TopicReplaced) as error:
                member.poll(6)
            assert (error.value.known_id, error.value.found_id) == ("first", "second")
        else:
            assert member.poll(6) == []
            assert member.assignment is None
        world.log.options.fail_on_data_loss = False
        if member.assignment is not None:
            assert member.poll(6) == []
        assert member.assignment is None, "the next assignment has the new topic"


@pytest.mark.parametrize("records", [4, 9])
def test_a_topic_that_is_created_again_while_a_poll_waits_is_noticed(records):
    """The ends of its log are not those of the old one."""
    world = World(Log({0: dict.fromkeys(range(6), b"a")}, {}), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        assert world.commit(member, world.poll(member, 6))
        ends_before = member.assignment.cluster.log_ends

        def ends(partitions):
            world.log.records[0] = dict.fromkeys(range(records), b"new")
            world.log.ends[0], world.log.topic_id = records, "second"
            return ends_before(partitions)

        member.assignment.cluster.log_ends = ends
        logs = member.assignment.logs
        with pytest.raises(TopicReplaced):
            member.poll(6)
        assert not logs.losses_of(TOPIC, {}), "all of the old topic was done"


def test_what_is_paused_stays_so_where_it_stays_ours():
    """In a rebalance and after a loss; what has gone to another member comes back unpaused."""
    world = World(Log({p: {0: b"a"} for p in (0, 1, 2)}, {}), 2)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        member = world.members[0]
        places = member.poller.session.places

        def paused():
            return {p for (_, p), place in member.poller.session.places.items() if place.paused}

        world.deal({0: (0, 1), 1: (0, 1), 2: (0, 1)})
        for p in (0, 1):
            member.poller.place((TOPIC, p)).paused = True
        world.hand_over(member)
        world.deal({0: (0, 1), 1: (1, 1), 2: (0, 1)})
        assert member.poller.session.places is not places
        assert paused() == {0}
        assert set(world.poll(member, 100)) == {(2, 0)}
        member.fenced("another epoch is in force")
        world.deal({0: (0, 1), 1: (0, 1), 2: (0, 1)})
        assert paused() == {0}


def test_at_the_limit_rejected_and_filtered_records_are_committed():
    """Nobody could do anything else with them; of what a user names, what fits is committed."""
    log = Log({0: {o: b"k%d" % o for o in range(8)}}, {}, limit=2)
    log.filtered = frozenset({(0, 1), (0, 7)})
    world = World(log, 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 8)
        member.poller.reject(member, Frame([(0, 3), (0, 5)]), "no", "continue")
        assert [letter.offset for letter in member.letters] == [3, 5]
        assert world.commit(member, Frame([(0, 4), (0, 6)]))
        assert world.log.commits[0] == PartitionCommits(0, [(1, 1), (3, 7)])


def test_at_80_percent_of_the_limit_a_poll_hands_out_gaps_alone_and_says_why():
    """And it goes on once they are committed."""
    world = World(Log({0: {o: b"k%d" % o for o in range(30)}}, {}, limit=5), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 10)
        assert world.commit(member, Frame([(0, 1), (0, 3), (0, 5)]))
        assert world.poll(member, 10) == [(0, o) for o in range(10, 20)]
        assert world.commit(member, Frame([(0, 15)]))
        assert not world.poll(member, 10)
        session = member.poller.session
        facts = session.facts(member.assignment, {}, "", "g", 0.0)
        assert facts.at_limit == ("t-0",)
        assert world.commit(member, Frame([(0, 0)]))
        assert world.poll(member, 10) == [(0, o) for o in range(20, 30)]


def test_records_that_wait_come_again_at_the_limit():
    """The next owner looks for the later ones of their key above all that is committed."""
    keys = [b"a" if o in (5, 7) else b"k%d" % o for o in range(8)]
    world = World(Log({0: dict(enumerate(keys))}, {}, limit=1), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 8)
        world.give_back(member, (0, 5), delay=3)
        assert world.commit(member, Frame([(0, o) for o in (0, 1, 2, 3, 4, 6)]))
        assert world.log.commits[0] == PartitionCommits(5, [(6, 6)])
        world.deal({0: (0, 1)})
        for _ in range(3):
            world.log.now += 100
            world.poll(member, 8)
        assert member.given == {(0, 5), (0, 7)}


def test_at_the_limit_a_commit_takes_what_fits_and_says_what_is_left():
    """What fills gaps and grows ranges is committed at once; the rest fits once the gaps are."""
    world = World(Log({0: {o: b"k%d" % o for o in range(10)}, 1: {0: b"a"}}, {}, limit=2), 1)
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        world.deal({0: (0, 1), 1: (0, 1)})
        (member,) = world.members
        world.poll(member, 100)
        with pytest.raises(MaxIndividualCommitsReached) as error:
            member.poller.commit(member, Frame([(0, 2), (0, 4), (0, 6), (0, 8), (1, 0)]))
        left = {(TOPIC, 0): OffsetRanges([(6, 6), (8, 8)])}
        assert (error.value.uncommitted, error.value.max_ranges) == (left, 2)
        assert error.value.range_count == 4
        assert error.value.results[TOPIC, 1].stable_offset == 1
        assert "2 offsets of t-0 from 6 on are not committed" in str(error.value)
        member.poller.commit(member, Frame([(0, 0), (0, 1), (0, 3), (0, 5), (0, 6), (0, 8)]))
        assert world.log.commits[0] == PartitionCommits(7, [(8, 8)])
        assert member.poller.session.places[TOPIC, 0].polled.pairs() == [(7, 7), (9, 9)]


def test_while_dead_letters_wait_for_their_place_others_commit_and_the_call_ends(monkeypatch):
    """It fails after its limit with nothing half done, and can be made again; `close` ends it."""
    world = World(Log({0: {o: b"k%d" % o for o in range(6)}}, {}), 1)
    is_back, written = threading.Event(), threading.Event()
    with contextlib.ExitStack() as stack:
        for patch in in_memory(world.log, lambda: world.asking):
            stack.enter_context(patch)
        calls = stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(is_back.set)
        world.deal({0: (0, 1)})
        (member,) = world.members
        world.poll(member, 6)
        member.meanwhile = lambda: written.set() or is_back.wait(SOON)
        rejected = calls.submit(member.poller.reject, member, Frame([(0, 5)]), "no", "continue")
        assert written.wait(SOON)
        commit = calls.submit(member.poller.commit, member, Frame([(0, 0)]))
        assert wait([commit], SOON).done, "it waits for the place of dead letters"
        assert commit.result()[TOPIC, 0].stable_offset == 1
        assert calls.submit(member.poller.poll, member, 0).result(SOON) == []
        assert not rejected.done()
        is_back.set()
        rejected.result(SOON)
        assert world.log.is_done(0, 5)

        is_back.clear()
        was = world.snapshot()
        monkeypatch.setattr("coopconsume.runtime.poll.letter_writer.LIMIT", 0.1)
        for _ in range(2):  # The second one waits behind the first, and writes nothing later.
            with pytest.raises(OutputNotWritten, match="no answer for 0") as error:
                member.poller.reject(member, Frame([(0, 4)]), "no", "continue")
            assert error.value.retriable
        assert world.snapshot() == was
        assert 4 in member.poller.session.places[TOPIC, 0].polled
        is_back.set()
        monkeypatch.setattr("coopconsume.runtime.poll.letter_writer.LIMIT", SOON)
        member.poller.reject(member, Frame([(0, 4)]), "no", "continue")
        assert world.log.is_done(0, 4)
        assert [letter.offset for letter in member.letters] == [5, 4, 4], "once left behind"

        is_back.clear()
        written.clear()
        rejected = calls.submit(member.poller.reject, member, Frame([(0, 3)]), "no", "continue")
        assert written.wait(SOON)
        monkeypatch.setattr("coopconsume.runtime.poll.letter_writer._CLOSING", 0.1)
        member.poller.close()
        with pytest.raises(AlreadyClosed):
            rejected.result(SOON)
        assert not world.log.is_done(0, 3)
