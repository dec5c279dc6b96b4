"""Claims beside a group: renewed, ended when their processes are gone, and dealt around."""

from __future__ import annotations

import threading

import pytest

from assignors import KeyRange, Share
from commits import ClaimConflict, CommitStore, EpochConflict, FencedMember
from coopconsume.group.claims import LOOK_EVERY, ClaimKeeper, ClaimWatch

LOW, HIGH = (Share("t", 0, r) for r in KeyRange().split(2))
SESSION = 6_000


class Clock:
    """A clock that moves only when the test advances it."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def pause(self, seconds):
        self.now += seconds


def a_claim(path, share=LOW, session_ms=SESSION, life_ms=7):
    """A store whose group g has a claim of another process; the store, and the claim's epoch."""
    store = CommitStore.open(path, cluster="c")
    claim = store.claim("g", "other", [share], session_ms=session_ms, life_ms=life_ms)
    return store, claim


def test_a_claim_without_a_sign_of_life_ends_and_leaves_its_shares_in_doubt(tmp_path):
    """Its successor waits for the life of a batch; the claim's process, if it lives, is fenced."""
    store, claim = a_claim(tmp_path)
    clock = Clock()
    watch = ClaimWatch(store, "g", clock)
    for _ in range(3):
        assert watch.claimed() == [LOW]
        clock.pause(LOOK_EVERY)
    store.renew("g", claim, "other")
    for _ in range(3):
        assert watch.claimed() == [LOW]
        clock.pause(LOOK_EVERY)
    clock.pause(1)
    assert watch.claimed() == []
    with pytest.raises(FencedMember):
        store.renew("g", claim, "other")
    epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    assert [(d.share, d.life_ms) for d in store.assignment("g", epoch).doubts] == [(LOW, 7)]


def test_time_in_which_nobody_could_look_is_no_silence(tmp_path):
    """While the commit table is away, its process cannot give a sign of life either."""
    store, _ = a_claim(tmp_path)
    clock = Clock()
    watch = ClaimWatch(store, "g", clock)
    watch.look()
    clock.pause(3_600)
    assert watch.claimed() == [LOW]


def test_claims_of_earlier_versions_never_end_by_themselves(tmp_path):
    """They give no signs of life; a snapshot keeps what each claim said of itself."""
    store, _ = a_claim(tmp_path, session_ms=0)
    store.claim("g", "third", [HIGH], session_ms=SESSION)
    store.compact()
    clock = Clock()
    watch = ClaimWatch(CommitStore.open(tmp_path, cluster="c"), "g", clock)
    for _ in range(9):
        watch.look()
        clock.pause(LOOK_EVERY)
    assert watch.claimed() == [LOW]


def test_a_claim_waits_for_one_whose_process_is_gone(tmp_path):
    """And for no other one: neither of a process that lives, nor of a member of the group."""
    store, theirs = a_claim(tmp_path)
    clock = Clock()

    def claim():
        return store.claim("g", "me", [("t", 0)], session_ms=SESSION)

    def they_live(seconds):
        clock.pause(seconds)
        store.renew("g", theirs, "other")

    with pytest.raises(ClaimConflict):
        ClaimWatch(store, "g", clock).insist(claim, they_live)
    mine = ClaimWatch(store, "g", clock).insist(claim, clock.pause)
    assert [one.epoch for one in store.claims("g")] == [mine]
    store.release("g", mine, "me")
    store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
    with pytest.raises(ClaimConflict):
        ClaimWatch(store, "g", clock).insist(claim, pytest.fail)


def test_a_keeper_renews_its_claim_until_it_is_stopped_or_fenced(tmp_path):
    """No other claim takes its place meanwhile."""
    store, claim = a_claim(tmp_path)
    seen = threading.Event()
    renew = store.renew

    def renewed(*claim):
        renew(*claim)
        seen.set()

    store.renew = renewed
    keeper = ClaimKeeper(store, "g", claim, "other", 0.01)
    assert seen.wait(60)
    store.release("g", claim, "other")
    keeper._thread.join(60)
    assert not keeper._thread.is_alive()
    keeper.stop()


def test_no_epoch_opens_for_a_member_that_was_fenced_meanwhile(tmp_path):
    """The leader has seen that it goes on with its work; then a claim had it, and gave it back."""
    store = CommitStore.open(tmp_path, cluster="c")
    first = store.open_epoch("g", {"m": [("t", 0)], "n": [("t", 1)]}, previous=None)
    shares, goes_on = {"m": [("t", 0)], "n": [("t", 1)]}, {"m": first.number, "n": first.number}
    claim = store.claim("g", "other", [("t", 0)], takeover=True)
    store.release("g", claim, "other")
    with pytest.raises(EpochConflict):
        store.open_epoch("g", shares, previous=first, continues=goes_on)
    # A snapshot keeps who goes on.
    store.open_epoch("g", shares, previous=first, continues={"n": first.number})
    store.compact()
    row = CommitStore.open(tmp_path, cluster="c").assignment("g")
    assert row.continues == {"n": first.number}
