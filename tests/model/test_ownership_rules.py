"""The registry's decisions against a naive model that keeps a list of who came, in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from coopconsume.fenced.ownership import rules
from coopconsume.fenced.ownership.model import AccessMode, Grant, Holder, Row, Session
from coopconsume.fenced.ownership.registry import Observer
from tests.examples import examples

NAMES = ("anna", "ben", "carl", "dora")
SHARED, ALONE, FENCING, WAIT = AccessMode


class Naive:
    """A resource as a list of places, step by step as the pages describe it."""

    def __init__(self) -> None:
        self.places: list[dict] = []  # each: who, kind (own, shared, wait), beats, epoch
        self.generation = 0
        self.epoch = 0
        self.last: str | None = None

    def of(self, kind: str) -> list[dict]:
        return [place for place in self.places if place["kind"] == kind]

    def owner(self) -> str | None:
        return next((place["who"] for place in self.of("own")), None)

    def hand(self, who: str, generation: int, epoch: int, *, keep_queue: bool = True) -> None:
        self.places = [p for p in self.of("wait") if keep_queue and p["who"] != who]
        self.places.append({"who": who, "kind": "own", "beats": 0})
        self.generation, self.epoch, self.last = generation, epoch, None

    def own(self, who: str, generation: int) -> object:
        owner = self.owner()
        if owner == who and generation == self.generation:
            return (self.generation, self.epoch)
        if owner is None or generation == 0:
            self.hand(who, max(1, generation), self.epoch + 1)
        elif generation < self.generation:
            return "stale"
        elif generation == self.generation:
            self.hand(who, self.generation + 1, self.epoch + 1)
        else:
            self.hand(who, generation, self.epoch + 1)
        return (self.generation, self.epoch)

    def acquire(self, who: str, mode: AccessMode, carried: int | None) -> object:  # noqa: PLR0911
        if self.owner() == who:
            return (self.generation, self.epoch)
        if carried is not None and carried < self.epoch:
            return "fenced"
        if mode is SHARED:
            if any(p["who"] == who for p in self.of("shared")):
                return (0, self.epoch)
            if self.of("own") or self.of("wait"):
                return "busy"
            self.places.append({"who": who, "kind": "shared", "beats": 0})
            return (0, self.epoch)
        mine = [p["who"] for p in self.of("wait")]
        if mode is WAIT and who in mine:
            return "queued"
        others = [p for p in self.places if p["who"] != who]
        if mode is FENCING or not others:
            generation = self.generation + 1 if self.of("own") else 1
            back = carried is not None and (
                carried > self.epoch or (not others and self.last == who)
            )
            if mode is FENCING and not [p for p in others if p["kind"] != "wait"]:
                back = carried is not None and (carried > self.epoch or self.last == who)
            self.hand(who, generation, carried if back else self.epoch + 1, keep_queue=False)
            return (self.generation, self.epoch)
        if mode is ALONE:
            return "fenced"
        self.places = [*others, {"who": who, "kind": "wait", "beats": 0, "epoch": carried}]
        self.promote()
        return "queued"

    def gone(self, who: str) -> None:
        if self.owner() == who:
            self.last, self.generation = who, 0
        self.places = [p for p in self.places if p["who"] != who]
        self.promote()

    def promote(self) -> None:
        while self.of("wait") and not self.of("own") and not self.of("shared"):
            head = self.of("wait")[0]
            if head["epoch"] is not None and head["epoch"] < self.epoch:
                self.places.remove(head)
                continue
            carried = head["epoch"]
            back = carried is not None and (carried > self.epoch or self.last == head["who"])
            beats = head["beats"]
            self.hand(head["who"], 1, carried if back else self.epoch + 1)
            self.of("own")[0]["beats"] = beats


def said(outcome: object) -> object:
    """An outcome in the naive model's words."""
    if isinstance(outcome, Grant):
        return (outcome.generation, outcome.fence_epoch)
    return type(outcome).__name__.lower()


class Machine(RuleBasedStateMachine):
    """Claimants come and go in any order, and the rules say what the model says."""

    who = st.sampled_from(NAMES)

    def __init__(self) -> None:
        super().__init__()
        self.row = Row("group", "resource")
        self.naive = Naive()
        self.highest = 0

    def took(self, step: rules.Step, expected: object) -> None:
        assert said(step.outcome) == expected
        if step.row == self.row:
            assert step.row is self.row
            assert not step.happened
        self.row = step.row

    @rule(who=who, generation=st.integers(0, 5))
    def own(self, who: str, generation: int) -> None:
        claim = Holder(Session(who, who), lease_ms=10)
        self.took(rules.own(self.row, claim, generation), self.naive.own(who, generation))

    @rule(
        who=who,
        mode=st.sampled_from(AccessMode),
        behind=st.none() | st.integers(-1, 2),
    )
    def acquire(self, who: str, mode: AccessMode, behind: int | None) -> None:
        carried = None if behind is None else max(0, self.row.fence_epoch - behind)
        claim = Holder(Session(who, who), mode, epoch=carried)
        expected = self.naive.acquire(who, mode, carried)
        self.took(rules.acquire(self.row, claim), expected)

    @rule(who=who)
    def leave(self, who: str) -> None:
        self.naive.gone(who)
        step = rules.leave(self.row, Session(who, who))
        assert (step.row == self.row) == (not step.happened)
        self.row = step.row

    @rule(who=who)
    def beat(self, who: str) -> None:
        places = [p for p in self.naive.places if p["who"] == who]
        for place in places:
            place["beats"] += 1
        step = rules.beat(self.row, Session(who, who))
        assert (step.outcome is None) == bool(places)
        self.row = step.row

    @rule(who=who)
    def expire(self, who: str) -> None:
        self.naive.gone(who)
        self.row = rules.expire(self.row, Session(who, who)).row

    @invariant()
    def agrees(self) -> None:
        row = self.row
        owner = None if row.owner is None else row.owner.session.owner
        assert owner == self.naive.owner()
        assert [h.session.owner for h in row.shared] == [p["who"] for p in self.naive.of("shared")]
        assert [h.session.owner for h in row.waiters] == [p["who"] for p in self.naive.of("wait")]
        beats = {h.session.owner: h.heartbeat for h in row.holders}
        assert beats == {p["who"]: p["beats"] for p in self.naive.places}
        assert (row.generation, row.fence_epoch) == (self.naive.generation, self.naive.epoch)

    @invariant()
    def is_sound(self) -> None:
        row = self.row
        assert row.fence_epoch >= self.highest
        self.highest = row.fence_epoch
        sessions = [held.session for held in row.holders]
        assert len(set(sessions)) == len(sessions)
        assert row.owner is None or not row.shared
        assert (row.generation > 0) == (row.owner is not None)
        assert not row.waiters or not row.is_free
        tickets = [held.ticket for held in row.waiters]
        assert tickets == sorted(set(tickets))
        assert all(ticket < row.next_ticket for ticket in tickets)


TestRules = Machine.TestCase
TestRules.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


def held(who: str, *, mode: AccessMode = WAIT, lease_ms: int = 100, epoch: int | None = None):
    """A claim."""
    return Holder(Session(who, f"{who}-1"), mode, lease_ms=lease_ms, epoch=epoch)


def test_the_wikis_table_is_total() -> None:
    """Every line of the table: none, 0, lower, equal, higher, the owner itself."""
    anna, ben = held("anna"), held("ben")
    free = Row("g", "r", fence_epoch=4)
    for claimed, granted in ((0, 1), (1, 1), (7, 7)):
        assert rules.own(free, anna, claimed).outcome == Grant("r", granted, 5)
    owned = rules.own(rules.own(free, anna, 1).row, anna, 6).row
    assert rules.own(owned, ben, 5) == rules.Step(owned, rules.Stale(5, 6))
    assert rules.own(owned, ben, 6).outcome == Grant("r", 7, 7)
    assert rules.own(owned, ben, 9).outcome == Grant("r", 9, 7)
    assert rules.own(owned, ben, 0).outcome == Grant("r", 1, 7)
    assert rules.own(owned, anna, 6) == rules.Step(owned, Grant("r", 6, 6))
    again = Holder(Session("anna", "anna-2"))
    assert rules.own(owned, again, 6).outcome == Grant("r", 7, 7)
    severed = rules.own(owned, ben, 6).happened
    assert severed == (("severed", anna.session), ("owned", ben.session))
    with pytest.raises(ValueError, match="-1"):
        rules.own(free, anna, -1)


def test_coming_back_keeps_the_epoch_only_if_nobody_was_in_between() -> None:
    """PIP-68's two ways after a lost connection."""
    anna, ben = held("anna", mode=ALONE), held("ben", mode=ALONE)
    lost = rules.expire(rules.acquire(Row("g", "r"), anna).row, anna.session).row
    back = replace(anna, epoch=1)
    assert rules.acquire(lost, back).outcome == Grant("r", 1, 1)
    between = rules.leave(rules.acquire(lost, ben).row, ben.session).row
    assert rules.acquire(between, back).outcome == rules.Fenced("", 2)
    assert rules.acquire(between, anna).outcome == Grant("r", 1, 3)
    # An epoch that was somebody else's is no proof of having been the last owner.
    assert rules.acquire(lost, replace(ben, epoch=1)).outcome == Grant("r", 1, 2)


def test_fencing_clears_the_queue_before_it_takes() -> None:
    """No waiter is promoted meanwhile, and all of them are notified."""
    row = Row("g", "r")
    for name in ("anna", "ben", "carl"):
        row = rules.acquire(row, held(name)).row
    step = rules.acquire(row, held("dora", mode=FENCING))
    assert step.outcome == Grant("r", 2, 2)
    assert [what for what, _ in step.happened] == ["severed", "severed", "severed", "owned"]
    assert step.row.holders == (replace(held("dora", mode=FENCING)),)


def test_one_that_waits_to_come_back_is_passed_over_if_anybody_was_in_between() -> None:
    """It carried its epoch along, and a claim by generation came before its turn."""
    anna, ben, carl = held("anna"), held("ben", mode=SHARED), held("carl")
    row = rules.leave(rules.acquire(Row("g", "r"), anna).row, anna.session).row
    row = rules.acquire(rules.acquire(row, ben).row, replace(anna, epoch=1)).row
    back = rules.leave(row, ben.session).row
    assert (back.is_owned_by(anna.session), back.fence_epoch) == (True, 1)
    row = rules.own(row, carl, 1).row
    step = rules.leave(row, carl.session)
    assert step.happened == (("released", carl.session), ("severed", anna.session))
    assert step.row.holders == ()


def test_an_operator_s_word_evicts_all_that_have_it_and_promotes_the_next() -> None:
    """Shared ones too; and nobody evicted comes back under its epoch."""
    row = Row("g", "r")
    for claim in (held("anna", mode=SHARED), held("ben", mode=SHARED), held("carl")):
        row = rules.acquire(row, claim).row
    step = rules.evict(row)
    assert [what for what, _ in step.happened] == ["evicted", "evicted", "promoted"]
    free = rules.evict(step.row).row
    assert rules.evict(free) == rules.Step(free)
    assert rules.acquire(free, held("carl", epoch=1)).outcome == Grant("r", 1, 2)


def test_a_recreated_topic_is_refused_until_nobody_is_left() -> None:
    """Its id shows it; owners of the old one must go first, and may not come back."""
    anna, ben = held("anna", mode=ALONE), held("ben", mode=ALONE)
    row = rules.acquire(Row("g", "r"), anna, "old").row
    assert rules.acquire(row, ben, "new").outcome == rules.Replaced("old", "new")
    row = rules.leave(row, anna.session).row
    assert rules.acquire(row, replace(anna, epoch=1), "new").outcome == rules.Replaced("old", "new")
    taken = rules.acquire(row, ben, "new")
    assert (taken.outcome, taken.row.topic_id) == (Grant("r", 1, 2), "new")


@given(
    st.lists(st.tuples(st.floats(0.01, 3), st.booleans()), max_size=30), st.sampled_from([0, 2000])
)
def test_only_who_stood_still_for_its_lease_is_dead(looks: list, lease_ms: int) -> None:
    """An owner without a sign of life for the lease is dead, by the observer's own clock."""
    observer, row, now = Observer(), Row("g", "r"), 100.0
    anna = held("anna", lease_ms=lease_ms)
    row = rules.acquire(row, anna).row
    since = now
    assert observer.dead(row, now) == []
    for pause, beats in looks:
        now += pause
        if beats:
            row = rules.beat(row, anna.session).row
            since = now
        expected = lease_ms > 0 and 1000 * (now - since) >= lease_ms
        assert observer.dead(row, now) == [anna.session] * expected
