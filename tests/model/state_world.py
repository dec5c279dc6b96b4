"""Members of a group that keep state per key, and whose key ranges move while faults happen."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from contextlib import suppress

import pyarrow as pa

from assignors import KeyRange, Share
from assignors.shares import without
from commits import CommitLogUnavailable, FencedMember
from coopconsume.errors import OutputNotWritten, StateNotReadable
from coopconsume.group.core import waits_of
from coopconsume.group.owned import EpochGrant
from coopconsume.group.shares import leave_with_owners
from coopconsume.group.shares_in_doubt import SharesInDoubt
from coopconsume.record import Record, Reject
from coopconsume.runtime.commit.state_log import StateLog
from coopconsume.state.schema import StateSchema
from coopconsume.state.slot_state import SlotState
from tests.model.job_group import LIFE_MS
from tests.model.job_world import _PATIENCE, TP, until

log = logging.getLogger(__name__)

IDS = {"t": "topic-id"}
NAMES = ("a", "b", "c")


class Chains:
    """A handler that leaves its record's offset as the state, or none, and notes what it saw.

    Args:
        seed: Decides which offsets are slow, fail at first, are rejected, or remove the state.
        keys: The key of each record, by offset.
    """

    def __init__(self, seed, keys):
        self._seed, self._keys = seed, keys
        self._lock = threading.Lock()
        self._slow = {}
        self.calls, self.wrong = [], []

    def _is(self, what, offset, share):
        return random.Random(f"{self._seed} {what} {offset}").random() < share

    def _leaves(self, offset, before):
        if self._is("rejected", offset, 0.03):
            return before
        return None if self._is("removes", offset, 0.15) else offset

    def expected(self):
        """The state that each record is to see, by offset, and what is left of each key."""
        last, seen = {}, {}
        for offset, key in sorted(self._keys.items()):
            seen[offset] = last.get(key)
            last[key] = self._leaves(offset, seen[offset])
        return seen, last

    def __call__(self, record, state):
        offset, before = record.offset, state.get()
        with self._lock:
            self.calls.append((offset, before))
        state.set(offset)
        if self._is("rejected", offset, 0.03):
            raise Reject("no")
        if record.attempt == 1 and self._is("fails", offset, 0.1):
            raise RuntimeError("fails at first")
        if record.attempt < 3 and self._is("is slow", offset, 0.04):
            opened = threading.Event()
            with self._lock:
                self._slow[opened] = offset
            assert opened.wait(_PATIENCE)
            with self._lock:
                del self._slow[opened]
        if self._is("removes", offset, 0.15):
            state.clear()

    @property
    def slow(self):
        """Offsets that handlers are slow with, by what lets them end."""
        with self._lock:
            return dict(self._slow)

    def end(self, some=None):
        """Let slow handlers end, and wait until they have."""
        ending = self.slow if some is None else some
        for opened in ending:
            opened.set()
        until(lambda: not ending.keys() & self.slow.keys())


class Asked:
    """What a member asks of its group."""

    def __init__(self):
        self.why = []
        self.is_lost = False
        self.heartbeats = self

    def rejoin(self, why):
        """It has lost its shares."""
        self.why.append(why)
        self.is_lost = True

    def rebalance(self, why):
        """It is to hand over."""
        self.why.append(why)

    def commit_primary(self, _offsets, _patience=0.0):
        """Nobody looks at it."""

    work_may_last = commit_primary

    def heard(self, _epoch):
        """No heartbeat is sent."""
        return -math.inf

    def place(self):
        """None in Kafka's group."""

    def allow_key_share(self, *, allowed):
        """It may have parts of partitions."""


class Letters:
    """Takes dead letters."""

    def append(self, _letters, _topic_ids, _commit_id):
        """Nobody looks at them."""

    def close(self):
        """Nothing is open."""


class StateWorld:
    """Three members on one partition, each with or without history; their key ranges move.

    Args:
        there: A `tests.model.job_world.World`, without records.
        folder: Where the state goes.
        monkeypatch: Puts faults in place.
        seed: Decides what happens.
    """

    def __init__(self, there, folder, monkeypatch, seed):
        self._there, self._folder = there, folder
        self._rng = random.Random(seed)
        self._faults = random.Random(f"{seed} faults")
        self._fault_lock = threading.Lock()
        self.handler = Chains(seed, there.kafka.log)
        self._pieces = [Share(*TP, one) for one in KeyRange().split(self._rng.choice([4, 8]))]
        self._keys = [b"key-%d" % n for n in range(16)]
        self._number, self._epoch = 0, None
        #: Whether commits have no answer; how likely one commit has none, or a write fails.
        self._is_out, self._rate = False, 0.0
        #: Whether records may be handled again: something was in doubt.
        self.has_doubts = False
        self.story, self._threads = [], []
        self._bound(monkeypatch)
        self._states, self._members, self._jobs, self._asked = {}, {}, {}, {}
        for name in NAMES:
            self._add(name)

    def _bound(self, monkeypatch):
        """Nobody waits longer for an earlier owner than it works."""
        left = SharesInDoubt.left

        def shortly_left(in_doubt):
            found = left(in_doubt)
            if found:
                self.handler.end()
            return [(share, min(seconds, 0.05)) for share, seconds in found]

        monkeypatch.setattr(SharesInDoubt, "left", shortly_left)
        monkeypatch.setattr("coopconsume.runtime.rebalance.LAST_COMMIT", 0.4)
        monkeypatch.setattr("coopconsume.runtime.commit.deliveries.FIRST_PAUSE", 0.05)
        monkeypatch.setattr("coopconsume.runtime.dispatch.job_slots._PAUSE", 0.1)
        monkeypatch.setattr("coopconsume.group.repeating._FIRST_PAUSE", 0.05)

    def _add(self, name):
        member = self._members[name] = self._there.member()
        state = self._states[name] = StateLog(
            str(self._folder / "state"), StateSchema(pa.int64()),
            history=self._rng.choice([0, 200_000]),
        )  # fmt: skip
        self._asked[name] = member._group = Asked()
        commit, append = member.store.commit, state._changelog.append

        def commits(*args, **how):
            gone = CommitLogUnavailable("commits", "append", "no answer")
            if self._is_out or self._happens(0.5):
                raise gone
            time.sleep(self._pause(0.0, 0.0, 0.05, 0.3))
            answer = commit(*args, **how)
            if self._happens(0.5):
                raise gone
            return answer

        def appends(rows):
            gone = OutputNotWritten("changes of the state", "here", "planted")
            if self._happens(0.3):
                self.has_doubts = True  # Who hands over then does not wait for the next attempt.
                raise gone
            answer = append(rows)
            if self._happens(0.3):
                self.has_doubts = True
                raise gone
            time.sleep(self._pause(0.0, 0.1, 0.5))
            return answer

        member.store.commit, state._changelog.append = commits, appends
        self._jobs[name] = self._there.run(
            member, self.handler, state=state, dead_letters=Letters(), concurrency=2
        )

    def _happens(self, share):
        with self._fault_lock:
            return self._faults.random() < share * self._rate

    def _pause(self, *seconds):
        """How much longer a call of a table takes."""
        with self._fault_lock:
            return self._faults.choice(seconds)

    def _say(self, what, *more):
        self.story.append(" ".join(map(str, (what, *more))))
        log.info("%s", self.story[-1])

    # -- what happens

    def run(self, steps):
        """Take some steps, and then let everything come to an end."""
        self._rate = self._rng.choice([0.0, 0.1, 0.3])
        self._rebalance(self._deal())
        for _ in range(steps):
            self._grow(self._rng.randrange(40))
            time.sleep(self._rng.choice([0.0, 0.1, 0.4]))
            step = [self._moves] * 5 + [self._snapshots] * 3 + [self._frees] * 2 + [self._crash]
            self._rng.choice(step)()
        self._rate, self._is_out = 0.0, False
        for thread in self._threads:
            thread.join()
        self._say("end")
        first = self._rng.choice(NAMES)
        whole = {name: self._pieces if name == first else [] for name in NAMES}
        while True:
            self.handler.end()
            if not self._rebalance(whole, calm=True) and not any(
                asked.why for asked in self._asked.values()
            ):
                break
        self._grow(16)
        ends = set(range(self._there.kafka.end))

        def all_done():
            self.handler.end()
            return ends == self._there.done(self._members[first])

        self._there.until(all_done)
        self._check(first)

    def _check(self, name):
        state, job = self._states[name], self._jobs[name]
        self._there.until(lambda: job._epoch_state.committer.has_all)
        seen, last = self.handler.expected()
        wrong = [(o, saw, seen[o]) for o, saw in self.handler.calls if saw != seen[o]]
        assert not wrong, f"offset, what it saw, what the one before it has left: {wrong}"
        found = {key: state.value("t", key) for key in last}
        assert found == last
        for version in (False, True):
            if version:
                state._move_on()
            slot = SlotState(state.spec({0: {TP: ((0, KeyRange().last),)}}), 0)
            found = {key: slot.of(Record(*TP, 0, key, b"", 0)).get() for key in last}
            slot.close()
            assert found == last
        fails = [o for o in seen if self.handler._is("fails", o, 0.1)]
        rejected = {o for o in seen if self.handler._is("rejected", o, 0.03)}
        if not self.has_doubts:
            calls = [o for o, _ in self.handler.calls]
            again = {o for o in calls if calls.count(o) > 1 + (o in fails and o not in rejected)}
            assert not again, f"nothing was in doubt, and yet these were handled again: {again}"

    def _deal(self):
        dealt = {name: [] for name in NAMES}
        for piece in self._pieces:
            dealt[self._rng.choice(NAMES)].append(piece)
        return dealt

    def _grow(self, count):
        kafka = self._there.kafka
        kafka.log.update(
            (o, self._rng.choice(self._keys)) for o in range(kafka.end, kafka.end + count)
        )
        kafka.end += count

    def _frees(self):
        slow = self.handler.slow
        self.handler.end(dict(self._rng.sample(list(slow.items()), len(slow) // 2)))

    def _crash(self):
        """A member's process ends, and another one takes its place."""
        name = self._rng.choice(NAMES)
        self._say(name, "crashes")
        self.has_doubts = True
        self._there.end(self._jobs[name])
        self.handler.end()
        self._add(name)
        self._moves()

    def _snapshots(self):
        """Snapshots are made beside everything else; each one trims the changelog."""
        count = self._rng.choice([1, 2, 3])
        thread = threading.Thread(target=self._snapshot, args=(count,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _snapshot(self, count):
        for _ in range(count):
            for name in NAMES:
                member, state = self._members[name], self._states[name]
                assignment = member.assignment
                owned = assignment and assignment.owned.get(TP)
                if owned and owned.owns_first:
                    with suppress(OutputNotWritten, StateNotReadable, FencedMember, KeyError):
                        state.snapshot(assignment, TP)
                        self._say("snapshot of", name)
                state._move_on()
            time.sleep(0.1)

    def _moves(self):
        wanted = self._deal()
        for name in NAMES:
            if self._rng.random() < 0.3:  # One that has left.
                wanted[self._rng.choice(NAMES)] += wanted.pop(name)
                wanted[name] = []
        for _ in range(self._rng.choice([1, 2, 2])):
            if not self._rebalance(wanted):
                break

    def _rebalance(self, wanted, *, calm=False):
        """One rebalance, as a leader would make it; returns whether another one is to follow."""
        self._is_out = not calm and self._rng.random() < 0.15
        self.has_doubts |= self._is_out
        kept = self._in_threads(self._join, {name: (name,) for name in NAMES}, calm=calm)
        held = {name: self._members[name].assignment.shares for name in NAMES if kept[name]}
        shares, moving = leave_with_owners(
            {name: tuple(wanted[name]) for name in NAMES}, held, lambda *_: True
        )
        store = self._members["a"].store
        self._number += 1
        self._epoch = store.open_epoch(
            "g", shares, previous=self._epoch, generation=self._number, topic_ids=IDS,
            life_ms=LIFE_MS,
            continues={name: self._members[name].assignment.epoch.number for name in held},
        )  # fmt: skip
        row = store.assignment("g")
        grants, doubts = {}, {}
        for name in NAMES:
            gained = without(shares.get(name, ()), held.get(name, ()))
            doubts[name] = [share for share, _ in waits_of(gained, row)]
            waits = tuple((share, 0.05) for share in doubts[name])
            grants[name] = EpochGrant(
                self._epoch, name, shares.get(name, ()), IDS, waits, LIFE_MS, name in held,
                moving.get(name, ()),
            )  # fmt: skip
        self._say(
            f"epoch {self._number}{' without an answer to commits' * self._is_out}: " + ", ".join(
                f"{name} {'goes on' if name in held else 'begins'} with {_named(grant.shares)}, "
                f"gives up {_named(grant.moving)}, in doubt {_named(doubts[name])}"
                for name, grant in grants.items()
            )
        )  # fmt: skip
        if any(doubts.values()):
            self.has_doubts = True
            self.handler.end()
        self._in_threads(
            lambda name, grant: self._members[name].owner.assigned(grant),
            {name: (name, grant) for name, grant in grants.items()},
            calm=calm,
        )
        self._is_out = False
        return bool(moving)

    def _join(self, name):
        """A member joins; returns whether it goes on with what it has."""
        member, asked = self._members[name], self._asked[name]
        if asked.is_lost:
            self._say(name, "has lost all:", *asked.why)
            self.has_doubts = True
            member.owner.lost("refused")
        is_kept = member.owner.continue_work()
        if not is_kept:
            self._say(name, "hands over", *asked.why)
            member.owner.hand_over()
        asked.why, asked.is_lost = [], False
        return is_kept and member.assignment is not None

    def _in_threads(self, call, of_members, *, calm):
        """Call something for each member; meanwhile slow handlers end, or are too late."""
        answers, errors = {}, []

        def calls(name, args):
            try:
                answers[name] = call(*args)
            except BaseException as error:
                errors.append(error)
                raise

        threads = [threading.Thread(target=calls, args=one) for one in of_members.items()]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _PATIENCE
        patience = 0 if calm else self._rng.choice([0, 2, 20])
        lateness = 0.0 if calm else self._rng.choice([0.0, 0.0, 0.2])
        while any(thread.is_alive() for thread in threads):
            assert time.monotonic() < deadline, "a member does not come to an end"
            for name in of_members:
                job = self._jobs[name]
                leaving, hand_over = job._rebalance.leaving, job._rebalance.hand_over
                if self._is_out or self._rng.random() < lateness:
                    for one in (leaving, hand_over):
                        if one is not None and one.until > 0:
                            self._say(name, "is late with", *self.handler.slow.values())
                            self.has_doubts = True
                            one.until = 0.0
            if not calm and self._rng.random() < 0.3:
                self._grow(self._rng.randrange(4))
            if patience <= 0:
                self.handler.end(dict(list(self.handler.slow.items())[:1]))
            patience -= 1
            threads[0].join(0.02)
            for thread in threads:
                thread.join(0.005)
        assert not errors, errors
        for job in self._jobs.values():
            if job.error is not None:
                raise AssertionError("the job has failed") from job.error
        return answers


def _named(shares):
    """Key ranges in sixteenths."""
    return [f"{one.key_range.first >> 60:x}-{one.key_range.last >> 60:x}" for one in shares]
