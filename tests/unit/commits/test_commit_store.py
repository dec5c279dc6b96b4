"""The commit store on real Delta tables: who may commit, what is committed, what is answered."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from deltalake import DeltaTable

import commits
from assignors import KeyRange, Share
from commits import (
    ACCEPT_INDIVIDUAL_COMMIT,
    MAX_NUM_RANGES,
    ClaimConflict,
    CommitLogUnavailable,
    CommitRefused,
    CommitResult,
    CommitStore,
    CommitStoreError,
    Epoch,
    EpochConflict,
    FencedMember,
    IndividualCommitNotAllowed,
    IndividualCommitTooOld,
    MaxIndividualCommitsReached,
    OffsetRanges,
    PartitionCommits,
    Pending,
)
from commits.model import share_to_plain
from tests.commit_suite import check_behaviour
from tests.lost_answers import lose

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

P0, P1 = ("t", 0), ("t", 1)
HALF = 2**62


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a commit table may be made."""
    return str(tmp_path / "commits")


@pytest.fixture
def store(path: str) -> CommitStore:
    """A store on a new table."""
    return CommitStore.open(path)


def opened(
    store: CommitStore, *members: str, previous: Epoch | None = None, **more: object
) -> Epoch:
    """An epoch in which every member has both partitions."""
    shares = [P0, P1]
    return store.open_epoch(
        "g", dict.fromkeys(members or ("m",), shares), previous=previous, **more  # type: ignore[arg-type]
    )  # fmt: skip


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Results or errors of calls that start at the same moment, each in a thread."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return call()
        except CommitStoreError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_a_table_on_a_path_behaves_as_all_do(path: str) -> None:
    """The suite that tables in buckets and catalogs pass, too."""
    check_behaviour(partial(CommitStore.open, path))


def test_commits_out_of_order_survive_a_restart(path: str, store: CommitStore) -> None:
    """KIP-X's picture through the table: merge, head fill, and the same state for a new process."""
    epoch = opened(store)
    store.start("g", epoch, "m", {P0: 43})
    assert store.commit("g", epoch, "m", {P0: [(50, 50)]})[P0] == CommitResult(43, 1, 0, 1)
    assert store.commit("g", epoch, "m", {P0: [(45, 47)]})[P0] == CommitResult(43, 3, 0, 2)
    assert store.commit("g", epoch, "m", {P0: [(48, 49)]})[P0] == CommitResult(43, 2, 0, 1)
    assert store.state("g") == {P0: PartitionCommits(43, [(45, 50)])}
    reopened = CommitStore.open(path)
    assert reopened.state("g") == {P0: PartitionCommits(43, [(45, 50)])}
    assert reopened.current_epoch("g") == epoch
    assert reopened.commit("g", epoch, "m", {P0: [(43, 44)]})[P0] == CommitResult(51, 2, 0, 0)
    assert store.state("g")[P0].stable_offset == 51


def test_one_commit_answers_for_every_partition(store: CommitStore) -> None:
    """Partitions of one commit are answered each with its own status, by one append."""
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 9)]})
    answers = store.commit(
        "g", epoch, "m", {P0: OffsetRanges([(2, 3)]), P1: [(5, 5), (7, 8)]}, too_old="report"
    )
    assert answers == {P0: CommitResult(10, 0, 2, 0, "too_old"), P1: CommitResult(0, 3, 0, 2)}
    assert store.commit("g", epoch, "m", {P1: [(7, 7)]})[P1] == CommitResult(
        0, 0, 1, 2, "duplicate"
    )
    assert [entry["version"] for entry in store.history("g")] == [1, 2, 3, 4]


def test_too_old_is_raised_once_with_all_answers(store: CommitStore) -> None:
    """The error says where the stable offset is; what the other partition committed stands."""
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 9)]})
    with pytest.raises(IndividualCommitTooOld) as caught:
        store.commit("g", epoch, "m", {P0: [(2, 3)], P1: [(0, 4)]})
    assert caught.value.stable_offset == 10
    assert caught.value.results is not None
    assert {at: r.status for at, r in caught.value.results.items()} == {
        P0: "too_old",
        P1: "committed",
    }
    assert store.state("g")[P1].stable_offset == 5


def test_a_fenced_zombie_writes_but_never_counts(path: str, store: CommitStore) -> None:
    """A member of an old epoch appends before it knows; the row is there and changes nothing."""
    zombie = CommitStore.open(path)
    old = opened(zombie)
    zombie.commit("g", old, "m", {P0: [(0, 4)]})
    new = opened(store, "n", previous=old)
    with pytest.raises(FencedMember) as caught:
        zombie.commit("g", old, "m", {P0: [(5, 9)]}, commit_id="late")
    assert (caught.value.epoch, caught.value.in_force) == (old, new)
    assert caught.value.results is not None
    assert caught.value.results[P0].status == "refused"
    assert store.state("g") == {P0: PartitionCommits(5)}
    assert [e["counted"] for e in store.history("g") if e["id"] == "late"] == [False]
    assert "late" not in store.counted_commits("g")
    with pytest.raises(FencedMember):  # now it knows, and does not even write
        zombie.commit("g", old, "m", {P0: [(5, 9)]})
    with pytest.raises(FencedMember):
        store.log_start("g", old, "m", {P0: 100})
    with pytest.raises(FencedMember, match="not a member"):
        store.commit("g", new, "m", {P0: [(5, 9)]})
    assert store.commit("g", new, "n", {P0: [(5, 9)]})[P0].stable_offset == 10


def test_of_two_epochs_at_once_one_counts(path: str, store: CommitStore) -> None:
    """Two leaders that saw the same epoch in force: one opens the next, the other is refused."""
    first = opened(store)
    others = [CommitStore.open(path) for _ in range(3)]
    results = at_once(*(lambda s=s: opened(s, previous=first, generation=2) for s in others))
    winners = [result for result in results if isinstance(result, Epoch)]
    assert len(winners) == 1
    assert winners[0] == store.current_epoch("g")
    assert winners[0].number > first.number
    losers = [result for result in results if isinstance(result, EpochConflict)]
    assert len(losers) == 2
    assert {(loser.epoch, loser.in_force) for loser in losers} == {(first, winners[0])}


def test_a_leader_that_slept_does_not_fence_the_live_group(store: CommitStore) -> None:
    """An epoch that follows on a stale one, or on none, is refused and names the one in force."""
    first = opened(store)
    second = opened(store, previous=first)
    for stale in (first, None, Epoch(second.number, "other")):
        with pytest.raises(EpochConflict) as caught:
            opened(store, "sleeper", previous=stale)
        assert caught.value.in_force == second
    assert store.commit("g", second, "m", {P0: [(0, 0)]})[P0].committed == 1


def test_an_epoch_whose_answer_was_lost_is_opened_once(path: str, store: CommitStore) -> None:
    """The same nonce gives the same epoch and no second row; another assignment is refused."""
    epoch = opened(store, previous=None, generation=3, nonce="mine")
    again = CommitStore.open(path)
    assert opened(again, previous=None, generation=3, nonce="mine") == epoch
    assert len(store.history("g")) == 1
    with pytest.raises(ValueError, match="mine"):
        opened(again, "m", "n", previous=None, generation=3, nonce="mine")


def test_the_epoch_contains_the_whole_assignment(path: str, store: CommitStore) -> None:
    """Members check the assignment in the log: shares in any form come back as written."""
    epoch = store.open_epoch(
        "g",
        {"a": [Share("t", 0, KeyRange(0, HALF))], "b": [("t", 0, HALF + 1, 2**63 - 1), ("u", 1)]},
        previous=None,
        generation=7,
        topic_ids={"t": "id-t"},
    )
    found = CommitStore.open(path).assignment("g")
    assert found is not None
    assert (found.epoch, found.generation, found.fenced) == (epoch, 7, {})
    assert found.topic_ids == {"t": "id-t"}
    assert found.members == {
        "a": (Share("t", 0, KeyRange(0, HALF)),),
        "b": (Share("t", 0, KeyRange(HALF + 1)), Share("u", 1)),
    }
    for nonsense in [
        ("t",),
        ("t", -1),
        ("", 0),
        ("t", 0, 5, 4),
        ("t", 0, 0, 2**63),
        "t",
        ("t", 0.5),
    ]:
        with pytest.raises(ValueError, match=r"share|key range"):
            store.open_epoch("g", {"a": [nonsense]}, previous=epoch)


def test_two_stores_take_turns(path: str, store: CommitStore) -> None:
    """Members in two processes commit halves of the same offsets; both see all of them."""
    other = CommitStore.open(path)
    epoch = opened(store, "m", "n")
    for offset in range(0, 20, 2):
        store.commit("g", epoch, "m", {P0: [(offset, offset)]})
        result = other.commit("g", epoch, "n", {P0: [(offset + 1, offset + 1)]})[P0]
        assert result == CommitResult(offset + 2, 1, 0, 0)
    assert store.state("g") == other.state("g") == {P0: PartitionCommits(20)}


def test_one_store_serves_many_threads(store: CommitStore) -> None:
    """Threads that share a store lose nothing."""
    epoch = opened(store)
    at_once(
        *(
            lambda n=n: [
                store.commit("g", epoch, "m", {P0: [(o, o)]}) for o in range(n, 40, 8)
            ]
            for n in range(8)
        )
    )  # fmt: skip
    assert store.state("g") == {P0: PartitionCommits(40)}


def test_a_repeated_commit_gets_its_first_answer(path: str, store: CommitStore) -> None:
    """By its id, in any process, also after others went on; and it counts once."""
    epoch = opened(store)
    first = store.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="run-1")
    store.commit("g", epoch, "m", {P0: [(5, 9)]}, commit_id="run-2")
    again = CommitStore.open(path)
    for one in (store, again):
        assert one.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="run-1") == first
    assert set(store.counted_commits("g")) == {"run-1", "run-2"}
    with pytest.raises(CommitRefused, match="first commit with this id"):
        store.commit("g", epoch, "m", {P1: [(0, 4)]}, commit_id="run-1")
    with pytest.raises(ValueError, match="empty"):
        store.commit("g", epoch, "m", {P1: [(0, 4)]}, commit_id="")


def test_whether_a_commit_counted_is_known_without_its_answer(store: CommitStore) -> None:
    """A repeat is a duplicate, whether the commit changed something or not."""
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="run-1")
    with mock.patch("commits.fold.KEPT_RESULTS", 0):
        old = store.commit(
            "g", epoch, "m", {P0: [(0, 4)], P1: []}, commit_id="run-2", too_old="report"
        )
    assert old[P0].status == "too_old"
    again = store.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="run-1", too_old="report")
    assert again[P0].status == "duplicate"
    assert store.has_counted("g", "run-1")
    assert not store.has_counted("g", "run-2")
    assert not store.has_counted("h", "run-1")


def test_a_repeat_within_one_append_race_counts_once(path: str, store: CommitStore) -> None:
    """Two processes that commit under one id at once both get the answer of the first row."""
    epoch = opened(store)
    other = CommitStore.open(path)
    answers = at_once(
        *(
            lambda s=s: s.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="x")
            for s in (store, other)
        )
    )
    assert answers == [{P0: CommitResult(5, 5, 0, 0)}] * 2


def test_claims_exclude_each_other(path: str, store: CommitStore) -> None:
    """Overlapping claims are refused naming the holder, of two at once the first counts."""
    epoch = store.claim("g", "a", [("t", 0, 0, HALF)])
    store.claim("g", "b", [("t", 0, HALF + 1, 2**63 - 1), ("t", 1)])
    with pytest.raises(ClaimConflict) as caught:
        store.claim("g", "c", [("t", 0, 5, 9)])
    assert (caught.value.holder, caught.value.holder_epoch) == ("a", epoch)
    assert store.commit("g", epoch, "a", {P0: [(0, 0)]})[P0].committed == 1
    with pytest.raises(CommitRefused, match="no share"):
        store.commit("g", epoch, "a", {P1: [(0, 0)]})
    others = [CommitStore.open(path) for _ in range(3)]
    results = at_once(*(lambda s=s: s.claim("g", "x", [("u", 0)]) for s in others))
    assert sum(isinstance(result, Epoch) for result in results) == 1
    assert sum(isinstance(result, ClaimConflict) for result in results) == 2
    assert len(store.claims("g")) == 3


def test_a_claim_can_be_released_or_taken_over(store: CommitStore) -> None:
    """A released share is free; a takeover fences its holder, a claim or a group's member."""
    one = store.claim("g", "a", [P0])
    assert store.release("g", one, "a")
    assert not store.release("g", one, "a")
    two = store.claim("g", "b", [P0])
    three = store.claim("g", "c", [P0], takeover=True)
    with pytest.raises(FencedMember):
        store.commit("g", two, "b", {P0: [(0, 0)]})
    with pytest.raises(ClaimConflict):
        opened(store, "m")
    epoch = opened(store, "m", takeover=True)
    with pytest.raises(FencedMember):
        store.commit("g", three, "c", {P0: [(0, 0)]})
    with pytest.raises(ClaimConflict):
        store.claim("g", "d", [P0])
    four = store.claim("g", "d", [P0], takeover=True)
    with pytest.raises(FencedMember, match="taken over by 'd'"):
        store.commit("g", epoch, "m", {P1: [(0, 0)]})
    assert store.commit("g", four, "d", {P0: [(0, 0)]})[P0].committed == 1
    with pytest.raises(ValueError, match="overlap"):
        store.claim("g", "e", [("u", 0), ("u", 0, 5, 9)])
    with pytest.raises(ValueError, match="at least one"):
        store.claim("g", "e", [])


@pytest.mark.parametrize("loss", ["answer", "row"])
def test_a_claim_whose_answer_was_lost_is_made_once(
    path: str, store: CommitStore, loss: str
) -> None:
    """The same nonce gives the same claim and one row; others, and other shares, are refused."""
    lose(store, loss)
    with pytest.raises(CommitLogUnavailable):
        store.claim("g", "a", [P0], nonce="mine")
    epoch = store.claim("g", "a", [P0], nonce="mine")
    assert epoch.nonce == "mine"
    other = CommitStore.open(path)
    assert other.claim("g", "a", [P0], nonce="mine", takeover=True) == epoch
    assert [(e["kind"], e["counted"]) for e in store.history("g")] == [("claim", True)]
    assert store.commit("g", epoch, "a", {P0: [(0, 0)]})[P0].committed == 1
    for member, shares in (("a", [P1]), ("a", [P0, P1]), ("b", [P0])):
        with pytest.raises(ValueError, match="mine"):
            store.claim("g", member, shares, nonce="mine")
    with pytest.raises(ClaimConflict):
        store.claim("g", "a", [P0])  # without it, it is another claim
    later = other.claim("g", "b", [P0], takeover=True)
    with pytest.raises(ClaimConflict) as caught:
        store.claim("g", "a", [P0], nonce="mine")
    assert caught.value.holder_epoch == later


def test_of_one_claim_by_two_calls_at_once_both_get_the_answer(
    path: str, store: CommitStore
) -> None:
    """As when a call is repeated while its first row is still on its way."""
    calls = [lambda s=s: s.claim("g", "a", [P0], nonce="mine")
             for s in (store, CommitStore.open(path), CommitStore.open(path))]  # fmt: skip
    answers = at_once(*calls)
    assert answers == [store.claims("g")[0].epoch] * 3
    assert len(store.claims("g")) == 1


def test_a_member_that_released_may_not_commit(store: CommitStore) -> None:
    """A release ends a member's part in an epoch, and frees its shares for claims."""
    epoch = opened(store, "m", "n")
    assert store.release("g", epoch, "m")
    assert store.release("g", epoch, "n")
    with pytest.raises(FencedMember, match="released"):
        store.commit("g", epoch, "m", {P0: [(0, 0)]})
    assert store.claim("g", "a", [P0]).number > epoch.number


def test_what_was_not_handed_over_is_in_doubt(store: CommitStore) -> None:
    """The next owner of a share knows if its last owner may still be at work on it."""
    low, high = ("t", 0, 0, 2**62 - 1), ("t", 0, 2**62, 2**63 - 1)
    first = store.open_epoch("g", {"a": [low], "b": [high]}, previous=None, life_ms=700)
    assert store.assignment("g").doubts == ()  # type: ignore[union-attr]
    assert store.release("g", first, "a", running=[("t", 0, 5, 9)])
    second = store.open_epoch("g", {"c": [("t", 0)]}, previous=first, life_ms=50)
    row = store.assignment("g", second)
    assert row is not None
    assert [(share_to_plain(doubt.share), doubt.life_ms) for doubt in row.doubts] == [
        (("t", 0, 5, 9), 700),  # a said so when it gave back the rest
        (high, 700),  # b never gave it back
    ]
    assert store.release("g", second, "c", running=[high])  # it still waits for b
    store.claim("g", "d", [("t", 0, 2**62, 2**62 + 9)])
    claim = store.claims("g")[0]
    assert [(share_to_plain(d.share), d.life_ms) for d in claim.doubts] == [
        (("t", 0, 2**62, 2**62 + 9), 700)
    ]


def test_a_share_is_in_doubt_for_as_long_as_its_own_member_may_work(
    store: CommitStore, path: str
) -> None:
    """Members with and without leases may be in one group; an earlier owner counts, too."""
    low, high = ("t", 0, 0, 2**62 - 1), ("t", 0, 2**62, 2**63 - 1)
    lives = {"a": 50, "b": 700}
    first = store.open_epoch(
        "g", {"a": [low], "b": [high]}, previous=None, life_ms=700, lives=lives
    )
    row = store.assignment("g", first)
    assert row is not None
    assert [row.life_of(member) for member in ("a", "b", "c")] == [50, 700, 700]
    second = store.open_epoch(
        "g", {"b": [low], "a": [high]}, previous=first, life_ms=700, lives=lives
    )
    assert doubts(store) == {low: 50, high: 700}
    assert store.release("g", second, "a", running=[("t", 0, 2**62, 2**62 + 9)])
    third = store.open_epoch("g", {"c": [("t", 0)]}, previous=second, life_ms=60)
    # The first part was b's before it was a's; b has never given back the second one.
    assert doubts(store) == {("t", 0, 2**62, 2**62 + 9): 700, low: 700}
    assert store.release("g", third, "c")
    last = store.open_epoch("g", {"a": [("t", 0)]}, previous=third, life_ms=700, lives=lives)
    assert store.compact() is not None
    store = CommitStore.open(path)
    assert store.release("g", last, "a", running=[low])
    store.claim("g", "d", [low])
    assert [(share_to_plain(d.share), d.life_ms) for d in store.claims("g")[0].doubts] == [
        (low, 50)
    ]


def test_the_wait_for_an_earlier_owner_goes_on_at_the_next_one(
    store: CommitStore, path: str
) -> None:
    """A release says for how long it would still take; the rest is in doubt for its whole time."""
    low, high = ("t", 0, 0, 2**62 - 1), ("t", 0, 2**62, 2**63 - 1)
    first = store.open_epoch("g", {"a": [low], "b": [high]}, previous=None, life_ms=700)
    second = store.open_epoch("g", {"c": [low, high]}, previous=first, life_ms=700)
    assert doubts(store) == {low: 700, high: 700}
    assert store.release("g", second, "c", running={low: 40}, shares=[low])
    assert store.compact() is not None
    store = CommitStore.open(path)
    third = store.open_epoch("g", {"c": [high], "d": [low]}, previous=second, life_ms=700)
    assert doubts(store) == {low: 40, high: 700}
    assert store.release("g", third, "d", running={low: 30})
    assert store.release("g", third, "c", running={high: 0})
    store.open_epoch("g", {"e": [low, high]}, previous=third, life_ms=700)
    assert doubts(store) == {low: 30, high: 0}


def doubts(store: CommitStore) -> dict[tuple[str, int, int, int], int]:
    """What the epoch in force has in doubt, and for how long."""
    row = store.assignment("g")
    assert row is not None
    return {share_to_plain(doubt.share): doubt.life_ms for doubt in row.doubts}


def test_a_member_that_gave_back_its_shares_may_have_them_again(store: CommitStore) -> None:
    """As a static member has when Kafka hands it its old assignment once more."""
    epoch = opened(store, "a")
    assert store.release("g", epoch, "a")
    store.take_over("g", epoch, "a", replaces="a")
    assert store.commit("g", epoch, "a", {P0: [(0, 0)]})[P0].committed == 1
    assert store.assignment("g").doubts == ()  # type: ignore[union-attr]
    store.take_over("g", epoch, "b", replaces="a")
    row = store.assignment("g")
    assert row is not None
    assert row.heir("a") == "b"
    assert {doubt.share for doubt in row.doubts} == set(row.members["b"])
    assert store.release("g", epoch, "b")
    store.claim("g", "c", [P0])
    with pytest.raises(FencedMember, match="claimed"):
        store.take_over("g", epoch, "d", replaces="b")


def test_a_static_member_is_taken_over_by_its_new_process(store: CommitStore) -> None:
    """The new id has the shares from its row on, the old id's commits do not count."""
    epoch = opened(store, "old")
    store.take_over("g", epoch, "new", replaces="old")
    assert store.commit("g", epoch, "new", {P0: [(0, 0)]})[P0].committed == 1
    with pytest.raises(FencedMember, match="taken over by 'new'"):
        store.commit("g", epoch, "old", {P0: [(1, 1)]})
    with pytest.raises(FencedMember):
        store.take_over("g", epoch, "newer", replaces="old")


@pytest.mark.parametrize("loss", ["answer", "row"])
def test_a_take_over_whose_answer_was_lost_is_done_once(
    path: str, store: CommitStore, loss: str
) -> None:
    """Repeated it is harmless, here or elsewhere, until somebody else takes over."""
    epoch, other = opened(store, "old"), CommitStore.open(path)
    lose(store, loss)
    with pytest.raises(CommitLogUnavailable):
        store.take_over("g", epoch, "new", replaces="old")
    for one in (store, other):
        one.take_over("g", epoch, "new", replaces="old")
    assert [e["kind"] for e in store.history("g")] == ["epoch", "takeover"]
    assert store.release("g", epoch, "new")
    lose(store, loss)
    with pytest.raises(CommitLogUnavailable):
        store.take_over("g", epoch, "new", replaces="new")
    for one in (store, other):
        one.take_over("g", epoch, "new", replaces="new")
    row = store.assignment("g")
    assert row is not None
    assert len(row.doubts) == 2  # of the old one alone: from itself it had nothing to wait for
    assert [e["kind"] for e in store.history("g")].count("takeover") == 2
    other.take_over("g", epoch, "newer", replaces="new")
    with pytest.raises(FencedMember, match="taken over by 'new'"):
        store.take_over("g", epoch, "new", replaces="old")
    results = at_once(*(lambda s=s: s.take_over("g", epoch, "last", replaces="newer")
                        for s in (store, other)))  # fmt: skip
    assert results == [None, None]


def test_a_recreated_topic_starts_from_the_beginning(store: CommitStore) -> None:
    """Another topic id forgets old commits; a commit for the old topic is refused, others stand."""
    epoch = opened(store, topic_ids={"t": "one"})
    store.commit("g", epoch, "m", {P0: [(0, 99)]}, pending={P1: [Pending(7)]})
    epoch = opened(store, previous=epoch)  # without the id nothing is forgotten
    assert store.state("g")[P0].stable_offset == 100
    epoch = opened(store, previous=epoch, topic_ids={"t": "two"})
    assert store.state("g") == {}
    assert store.pending("g") == {}
    with pytest.raises(CommitRefused, match="'one'") as caught:
        store.commit("g", epoch, "m", {P0: [(100, 109)]}, topic_ids={"t": "one"})
    assert caught.value.results[P0].status == "refused"
    assert store.commit("g", epoch, "m", {P0: [(0, 0)]})[P0] == CommitResult(1, 1, 0, 0)


def test_a_claim_from_before_a_topic_was_recreated_is_refused(store: CommitStore) -> None:
    """A live claim of the old topic cannot commit into the new one."""
    claim = store.claim("g", "a", [P1], topic_ids={"t": "one"})
    store.commit("g", claim, "a", {P1: [(0, 4)]})
    store.open_epoch("g", {"m": [P0]}, previous=None, topic_ids={"t": "two"})
    store.claim("g", "b", [("t", 1, 0, 9)], topic_ids={"t": "two"}, takeover=True)
    with pytest.raises(FencedMember):
        store.commit("g", claim, "a", {P1: [(5, 9)]})
    assert P1 not in store.state("g")


def test_a_commit_counts_where_it_was_not_refused(path: str, store: CommitStore) -> None:
    """Where it was is kept with its id, also by snapshots; nothing is kept of all others."""
    epoch = store.open_epoch("g", {"a": [P0], "b": [P1]}, previous=None)
    store.commit("g", epoch, "a", {P0: [(0, 0)]}, commit_id="run-1")
    for member, commit_id in (("a", "run-2"), ("b", "run-3")):
        with pytest.raises(CommitRefused, match="no share"):
            store.commit("g", epoch, member, {P0: [(2, 2)], P1: [(2, 2)]}, commit_id=commit_id)
    with pytest.raises(CommitRefused, match="no share"):
        store.commit("g", epoch, "a", {P1: [(5, 5)]}, commit_id="run-4")
    store.compact()
    for one in (store, CommitStore.open(path)):
        assert set(one.counted_commits("g")) == {"run-1", "run-2", "run-3"}
        assert one.refused_parts("g") == {"run-2": {P1}, "run-3": {P0}}


def test_the_limit_is_checked_before_anything_is_written(path: str) -> None:
    """A commit above the limit is refused in its partition; others count, as do gap fillers."""
    store = CommitStore.open(path, max_ranges=2)
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(2, 2), (4, 4)]})
    with pytest.raises(MaxIndividualCommitsReached) as caught:
        store.commit("g", epoch, "m", {P0: [(6, 6)], P1: [(0, 4)]})
    assert (caught.value.range_count, caught.value.max_ranges) == (3, 2)
    assert caught.value.results is not None
    assert {at: r.status for at, r in caught.value.results.items()} == {
        P0: "refused",
        P1: "committed",
    }
    assert store.state("g") == {P0: PartitionCommits(0, [(2, 2), (4, 4)]), P1: PartitionCommits(5)}
    assert store.state("g")[P0].max_ranges == 2
    assert store.commit("g", epoch, "m", {P0: [(0, 1)]})[P0] == CommitResult(3, 2, 0, 1)
    store.set_setting(MAX_NUM_RANGES, 3, topic="t")
    assert store.commit("g", epoch, "m", {P0: [(6, 6), (8, 8)]})[P0].range_count == 3
    assert store.state("g")[P0].max_ranges == 3


@pytest.mark.parametrize("loss", ["none", "answer", "row"])
def test_a_large_commit_has_several_rows_and_is_one(path: str, loss: str) -> None:
    """All of them count, or none; its answer and its id are those of a commit in one row."""
    store = CommitStore.open(path, max_ranges_to_commit=3)
    whole = CommitStore.open(path + "-whole", max_ranges_to_commit=1000)
    ranges = OffsetRanges.from_offsets([*range(0, 20, 2), 40, 41])
    holes = OffsetRanges.from_offsets(range(1, 10, 2))
    answers = []
    for one in (store, whole):
        epoch = opened(one)

        def call(one: CommitStore = one, epoch: Epoch = epoch) -> object:
            return one.commit(
                "g", epoch, "m", {P0: ranges, P1: [(0, 3)]}, holes={P0: holes, P1: holes},
                pending={P0: [Pending(30, attempts=2)]}, commit_id="run-1",
            )  # fmt: skip

        if loss != "none" and one is store:
            lose(one, loss)
            with pytest.raises(CommitLogUnavailable):
                call()
        answers.append(call())
        assert call() == answers[-1]
        assert set(one.counted_commits("g")) == {"run-1"}
    assert answers[0] == answers[1]
    assert store.state("g") == whole.state("g") == CommitStore.open(path).state("g")
    assert store.pending("g") == whole.pending("g") == {P0: {30: Pending(30, attempts=2)}}
    (rows, in_one) = (
        [row for row in DeltaTable(at).to_pyarrow_table().to_pylist() if row["kind"] == "commit"]
        for at in (path, path + "-whole")
    )
    times = 2 if loss == "answer" else 1  # then it is written once more, and counts once
    assert (len(rows), len(in_one)) == (times * (4 + 2), 2)
    assert sum(row["offset_count"] or 0 for row in rows) == times * (len(ranges) + 4)
    assert store.history("g")[1]["partitions"] == whole.history("g")[1]["partitions"]
    with pytest.raises(ValueError, match="max_ranges_to_commit"):
        CommitStore.open(path, max_ranges_to_commit=0)


def test_pending_records_live_in_the_log(path: str, store: CommitStore) -> None:
    """The latest word on an offset counts, a commit of the offset ends it, others stay."""
    epoch = opened(store)
    store.commit(
        "g", epoch, "m", {}, pending={P0: [Pending(3, 2**63 - 1, 1, 1_700_000_000_000, "x")]}
    )
    store.commit(
        "g", epoch, "m", {P0: [(0, 1)]}, pending={P0: [Pending(3, 9, 2, 0, "y"), Pending(5)]}
    )
    expected = {3: Pending(3, 9, 2, 0, "y"), 5: Pending(5)}
    assert CommitStore.open(path).pending("g") == {P0: expected}
    store.commit("g", epoch, "m", {}, pending={P0: [Pending(5, error="half \ud83d")]})
    assert CommitStore.open(path).pending("g")[P0][5].error == "half \\ud83d"
    store.commit("g", epoch, "m", {}, pending={P0: [Pending(5)]})
    store.commit("g", epoch, "m", {P0: [(3, 3)]}, holes={P0: [(2, 2)]})
    assert store.pending("g") == {P0: {5: Pending(5)}}
    assert store.state("g") == {P0: PartitionCommits(4)}
    with pytest.raises(ValueError, match="Pending"):
        store.commit("g", epoch, "m", {}, pending={P0: [Pending(-1)]})


def test_headers_of_pending_records_live_in_the_log(path: str, store: CommitStore) -> None:
    """In whatever rows they are, beside what else a row has; old rows have none."""
    headers = (("step", b"\x00\xff"), ("headers", None), ("step", b""), ("ü", b"1"))
    epoch = opened(store)
    pending = {
        P0: [Pending(3, 9, 2, 0, "y", headers=headers), Pending(5)],
        P1: [Pending(3, 9, 2, 0, "y", headers=headers[:1])],
    }
    store.commit("g", epoch, "m", {P0: [(0, 0)]}, pending=pending, filtered={P0: 1})
    expected = {at: {one.offset: one for one in found} for at, found in pending.items()}
    assert store.pending("g") == CommitStore.open(path).pending("g") == expected
    assert store.history("g")[-1]["detail"] == {"filtered": [[*P0, 1]]}
    store.compact()
    assert CommitStore.open(path).pending("g") == expected
    store.commit("g", epoch, "m", {}, pending={P0: [Pending(3, 9, 3, 0, "z")]})
    assert CommitStore.open(path).pending("g")[P0][3].headers == ()


def test_keys_of_pending_records_live_in_the_log(path: str, store: CommitStore) -> None:
    """Beside headers, through a snapshot, until the record is done; rows may have none."""
    epoch = opened(store)
    pending = {
        P0: [
            Pending(3, 9, 2, 0, "y", headers=(("a", b"1"),), key='k"…'),
            Pending(5),
            Pending(6, key="a"),
        ],
        P1: [Pending(3, 9, 2, 0, "y", key="")],
    }
    store.commit("g", epoch, "m", {P0: [(0, 0)]}, pending=pending, filtered={P0: 1})
    expected = {at: {one.offset: one for one in found} for at, found in pending.items()}
    assert store.pending("g") == CommitStore.open(path).pending("g") == expected
    assert store.history("g")[-1]["detail"] == {"filtered": [[*P0, 1]]}
    store.commit("g", epoch, "m", {P1: [(3, 3)]}, pending={P0: [Pending(3, 9, 3, 0, "z")]})
    store.compact()
    found = CommitStore.open(path).pending("g")
    assert ([one.key for one in found[P0].values()], P1 in found) == ([None, None, "a"], False)
    with pytest.raises(ValueError, match="the key of t-0@3 has 66 characters: shorten it to"):
        store.commit("g", epoch, "m", {}, pending={P0: [Pending(3, key="k" * 66)]})


def test_holes_are_committed_without_being_work(store: CommitStore) -> None:
    """Proven holes move the stable offset and are neither new commits nor ever too old."""
    epoch = opened(store)
    answer = store.commit("g", epoch, "m", {P0: [(0, 1), (3, 3)]}, holes={P0: [(2, 2)]})
    assert answer == {P0: CommitResult(4, 3, 0, 0)}
    assert store.commit("g", epoch, "m", {}, holes={P0: [(0, 5)]})[P0] == CommitResult(6, 0, 0, 0)


def test_the_first_word_on_where_a_partition_starts_counts(path: str, store: CommitStore) -> None:
    """Owners of one partition that start it at once agree; later words change nothing."""
    epoch = opened(store, "m", "n")
    other = CommitStore.open(path)
    at_once(
        lambda: store.start("g", epoch, "m", {P0: 100}),
        lambda: other.start("g", epoch, "n", {P0: 200}),
    )
    stable = store.state("g")[P0].stable_offset
    assert stable in {100, 200}
    answer = store.start("g", epoch, "m", {P0: 300, P1: 7})
    assert {at: (r.stable_offset, r.status) for at, r in answer.items()} == {
        P0: (stable, "duplicate"),
        P1: (7, "committed"),
    }


def test_log_starts_and_truncations(store: CommitStore) -> None:
    """The ends of Kafka's log move what is committed and pending; both need an owner."""
    epoch = opened(store)
    store.commit(
        "g", epoch, "m", {P0: [(0, 4), (8, 9), (20, 29)]}, pending={P0: [Pending(6), Pending(40)]}
    )
    assert store.log_start("g", epoch, "m", {P0: 8})[P0].stable_offset == 10
    assert store.pending("g") == {P0: {40: Pending(40)}}
    assert store.truncate("g", epoch, "m", {P0: 25})[P0].stable_offset == 10
    assert store.state("g") == {P0: PartitionCommits(10, [(20, 24)])}
    assert store.pending("g") == {}
    assert store.truncate("g", epoch, "m", {P0: 3})[P0].stable_offset == 3
    with pytest.raises(CommitRefused):
        store.log_start("g", epoch, "m", {("u", 0): 8})
    for nonsense in [{P0: -1}, {P0: 2**63}, {P0: 1.5}, {("t",): 1}, {("t", -1): 1}, {"t": 1}]:
        with pytest.raises(ValueError):
            store.truncate("g", epoch, "m", nonsense)  # type: ignore[arg-type]


def test_a_reset_may_say_what_is_done_and_pending_above_it(store: CommitStore, path: str) -> None:
    """All in one row: an export comes back exactly, also beyond 2**53."""
    far = 2**62
    failed = Pending(far + 3, key_hash=7, attempts=4, due_ms=9, error="no")
    store.reset(
        "g", {P0: far, P1: 3}, member="operator", done={P0: [(far + 1, far + 1)], P1: [(3, 4)]},
        pending={P0: [failed, Pending(far + 1)]}, topic_ids={"t": "new"},
    )  # fmt: skip
    again = CommitStore.open(path)
    assert again.state("g") == {
        P0: PartitionCommits(far, [(far + 1, far + 1)]), P1: PartitionCommits(5),
    }  # fmt: skip
    assert again.pending("g") == {P0: {far + 3: failed}}
    assert again.topic_ids("g") == {P0: "new", P1: "new"}
    opened(again, topic_ids={"t": "new"})
    assert again.state("g")[P1].stable_offset == 5
    with pytest.raises(ValueError, match="has no stable offset"):
        store.reset("g", {P0: 1}, done={P1: [(3, 4)]})


def test_an_operators_reset_adopts_a_recreated_topic(store: CommitStore) -> None:
    """Its word is about the topic that there is now: the next epoch does not forget it."""
    epoch = opened(store, topic_ids={"t": "old"})
    store.commit("g", epoch, "m", {P0: [(0, 9)]})
    store.reset("g", {P0: 4}, topic_ids={"t": "new"})
    opened(store, topic_ids={"t": "new"})
    assert store.state("g")[P0] == PartitionCommits(4)


def test_an_operators_reset_fences_current_members(store: CommitStore) -> None:
    """Nobody commits on top of a reset; an owner's own reset goes on under its epoch."""
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 4), (8, 9)]}, pending={P0: [Pending(6)]})
    assert store.reset("g", {P0: 2}, epoch=epoch, member="m")[P0].stable_offset == 2
    assert (store.state("g"), store.pending("g")) == ({P0: PartitionCommits(2)}, {})
    store.commit("g", epoch, "m", {P0: [(2, 3)]})
    store.reset("g", {P0: 0, P1: 50})
    assert store.state("g") == {P0: PartitionCommits(0), P1: PartitionCommits(50)}
    assert store.current_epoch("g") is None
    with pytest.raises(FencedMember):
        store.commit("g", epoch, "m", {P0: [(0, 4)]})
    assert opened(store, previous=None).number > epoch.number


def test_switches_and_limits_are_kept_in_the_store(path: str, store: CommitStore) -> None:
    """Settings are seen by every store at once; a topic's go before the store's."""
    other = CommitStore.open(path)
    store.set_setting("accept.range.fetch", False)
    store.set_setting("accept.range.fetch", True, topic="t")
    assert other.settings() == {"accept.range.fetch": False}
    assert other.settings("t") == {"accept.range.fetch": True}
    store.set_setting("accept.range.fetch", None, topic="t")
    assert other.settings("t") == {"accept.range.fetch": False}
    with pytest.raises(TypeError):
        store.set_setting("x", {1, 2})


def test_individual_commits_can_be_switched_off(store: CommitStore) -> None:
    """With `accept.individual.commit` off a commit is an error and nothing is written."""
    epoch = opened(store)
    store.set_setting(ACCEPT_INDIVIDUAL_COMMIT, False)
    with pytest.raises(IndividualCommitNotAllowed):
        store.commit("g", epoch, "m", {P0: [(0, 4)]})
    assert store.state("g") == {}
    store.set_setting(ACCEPT_INDIVIDUAL_COMMIT, True)
    assert store.commit("g", epoch, "m", {P0: [(0, 4)]})[P0].committed == 5


def test_groups_and_clusters_do_not_see_each_other(path: str, store: CommitStore) -> None:
    """The same group id at another Kafka cluster is another group."""
    epoch = opened(store)
    store.commit("g", epoch, "m", {P0: [(0, 4)]})
    elsewhere = CommitStore.open(path, cluster="other")
    assert elsewhere.state("g") == {}
    assert elsewhere.current_epoch("g") is None
    assert opened(elsewhere).number == 1
    assert store.current_epoch("g") == epoch
    assert store.state("h") == {}
    elsewhere.open_epoch("only there", {}, previous=None)
    assert (store.groups(), elsewhere.groups()) == (["g"], ["g", "only there"])


def test_nothing_in_nothing_out(store: CommitStore) -> None:
    """A commit of nothing writes nothing and is no error."""
    epoch = opened(store)
    assert store.commit("g", epoch, "m", {}) == {}
    assert store.commit("g", epoch, "m", {P0: []}) == {P0: CommitResult(0, 0, 0, 0)}
    assert store.start("g", epoch, "m", {}) == {}
    assert len(store.history("g")) == 1


def test_the_history_shows_what_counted(store: CommitStore) -> None:
    """Each event is one entry, with who, under which epoch and filter, and what came of it."""
    epoch = opened(store, generation=4, member="leader", record_filter="where=partition > 0")
    store.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="b-1", filtered={P0: 3})
    first, second = store.history("g")
    assert first["detail"]["filter"] == "where=partition > 0"
    assert (first["kind"], first["epoch"], first["generation"], first["member"]) == (
        "epoch", epoch.number, 4, "leader",
    )  # fmt: skip
    assert (second["id"], second["counted"], second["nonce"]) == ("b-1", True, epoch.nonce)
    assert second["partitions"] == [
        {"topic": "t", "partition": 0, "first": 0, "last": 4, "count": 5, "filtered": 3, "holes": 0,
         "pending": 0, "status": "committed", "reason": "", "stable_offset": 5}
    ]  # fmt: skip


def test_a_filter_outlives_a_snapshot_until_the_next_epoch(path: str, store: CommitStore) -> None:
    """Later readers of the log know which filter an epoch or a claim has."""
    epoch = opened(store, record_filter="denyKeys=a")
    store.claim("g", "by hand", [("u", 0)], record_filter="denyKeys=b")
    store.commit("g", epoch, "m", {P0: [(0, 4)]})
    assert store.compact() is not None
    later = CommitStore.open(path)
    row, (claim,) = later.assignment("g"), later.claims("g")
    assert row is not None
    assert (row.record_filter, claim.record_filter) == ("denyKeys=a", "denyKeys=b")
    later.open_epoch("g", {"m": [P0]}, previous=epoch)
    row = later.assignment("g")
    assert row is not None
    assert row.record_filter == ""


def test_errors_travel_between_processes() -> None:
    """Every error comes back from a pickle with its message and its data."""
    epoch, results = Epoch(3, "n"), {P0: CommitResult(1, 0, 0, 0, "refused", "why")}
    examples: list[CommitStoreError] = [
        commits.ClaimConflict("g", "m", Share("t", 0, KeyRange(0, 9)), "h", epoch),
        commits.CommitLogUnavailable("path", "append", "disk full"),
        commits.CommitRefused("g", "m", results),
        commits.CommitStoreBusy("path", "compact", 20),
        commits.CommitTableFormat("path", "a file", "a table"),
        commits.CommitTableNotFound("path"),
        commits.CorruptCommitLog("path", "rows are missing"),
        commits.EpochConflict("g", "m", None, epoch, "late"),
        commits.FencedMember("g", "m", epoch, None, "gone", results),
        commits.IndividualCommitNotAllowed("g"),
        commits.IndividualCommitTooOld(10, 5, results),
        commits.MaxIndividualCommitsReached(3, 2, results),
        commits.RepairRefused("path", "members are active"),
        commits.UnsupportedTarget("a.b", "a name"),
    ]
    kinds = {getattr(commits, name) for name in commits.__all__}
    errors = {k for k in kinds if isinstance(k, type) and issubclass(k, CommitStoreError)}
    assert {type(error) for error in examples} == errors - {CommitStoreError}
    for error in examples:
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))
        assert len(str(error)) > 40
        assert isinstance(error.retriable, bool)
