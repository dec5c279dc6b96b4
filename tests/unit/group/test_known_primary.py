"""What the commit log knows of offsets in Kafka that others wrote, and of added partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commits import CommitRefused, CommitStore, Epoch
from coopconsume.group.beginning import LogFacts, beginning
from coopconsume.group.core import GroupCore
from coopconsume.kafka.primary import Primary
from tests.unit.group.test_group_member import dealt

if TYPE_CHECKING:
    from pathlib import Path

P0, P1 = ("t", 0), ("t", 1)
LOW, HIGH = ("t", 0, 0, 99), ("t", 0, 100, 2**63 - 1)


@pytest.fixture
def store(tmp_path: Path) -> CommitStore:
    """An empty store."""
    return CommitStore.open(tmp_path / "commits")


def test_an_epoch_notes_an_offset_of_others_once_and_keeps_commits(store: CommitStore) -> None:
    """A member that is late does not move the stable offset back."""
    epoch = store.open_epoch("g", {"a": [LOW], "b": [HIGH]}, previous=None)
    store.start("g", epoch, "a", {P0: 5})
    store.note_primary("g", epoch, "a", {P0: 5})
    assert store.known_primary("g") == {P0: 5}
    store.commit("g", epoch, "a", {P0: [(5, 7)]})
    late = store.note_primary("g", epoch, "b", {P0: 5}, follow=True)
    assert late[P0].status == "duplicate"
    store.note_primary("g", epoch, "a", {P0: None})
    assert store.note_primary("g", epoch, "b", {P0: 5})[P0].status == "duplicate"
    assert store.known_primary("g") == {}
    assert store.state("g")[P0].stable_offset == 8


def test_the_next_epoch_follows_an_offset_of_others(store: CommitStore) -> None:
    """Snapshots carry what is known; a partition that the log does not know is refused."""
    epoch = store.open_epoch("g", {"a": [P0]}, previous=None)
    with pytest.raises(CommitRefused, match="does not know where it starts"):
        store.note_primary("g", epoch, "a", {P0: 5})
    assert store.state("g") == {}
    store.start("g", epoch, "a", {P0: 5})
    store.note_primary("g", epoch, "a", {P0: 5})
    store.commit("g", epoch, "a", {P0: [(5, 7), (9, 9)]})
    store.compact()
    again = CommitStore.open(store.target)
    assert again.known_primary("g") == {P0: 5}
    assert again.initial_partitions("g") == {"t": 1}
    later = again.open_epoch("g", {"b": [P0, P1]}, previous=epoch)
    assert again.initial_partitions("g") == {"t": 1}
    again.note_primary("g", later, "b", {P0: 3}, follow=True)
    assert again.known_primary("g") == {P0: 3}
    assert again.state("g")[P0].stable_offset == 3
    assert not again.state("g")[P0].ranges


def test_an_offset_of_others_is_not_followed_under_the_hands_of_a_claim(store: CommitStore) -> None:
    """What another claim committed would be taken away from it."""
    mine = store.claim("g", "a", [LOW])
    store.start("g", mine, "a", {P0: 0})
    store.commit("g", mine, "a", {P0: [(0, 4)]})
    other = store.claim("g", "b", [HIGH])
    with pytest.raises(CommitRefused, match="'a' is at work on it"):
        store.note_primary("g", other, "b", {P0: 2}, follow=True)
    assert store.state("g")[P0].stable_offset == 5
    store.release("g", mine, "a")
    store.note_primary("g", other, "b", {P0: 2}, follow=True)
    assert store.state("g")[P0].stable_offset == 2


def test_a_member_that_finds_the_groups_own_offset_has_the_log_say_so() -> None:
    """The member that wrote it was killed before; the offset of others is not there any more."""
    facts = LogFacts({P0: 8}, {P0: 5}, {"t": 1})
    ours, theirs = (Primary(offset, ours=offset == 8, topic_id="") for offset in (8, 5))
    assert beginning([P0], [P0], facts, {P0: ours}, {"t": ""}).noted == {P0: None}
    found = beginning([P0], [P0], facts, {P0: theirs}, {"t": ""})
    assert (found.noted, found.moved) == ({}, {})


def test_a_topic_that_is_created_again_starts_at_its_first_record(store: CommitStore) -> None:
    """The group knew the topic: what was written to the new one is not skipped."""
    first = store.open_epoch("g", {"a": [P0]}, previous=None, topic_ids={"t": "1"})
    store.start("g", first, "a", {P0: 5})
    assert store.initial_partitions("g") == {"t": 1}
    store.open_epoch("g", {"a": [P0]}, previous=first, topic_ids={"t": "2"})
    facts = LogFacts({}, {}, store.initial_partitions("g"))
    found = beginning([P0], [P0], facts, {}, {"t": "2"})
    assert (found.from_earliest, found.from_options) == ([P0], [])


@pytest.mark.parametrize(
    ("by_pattern", "noted", "initial"),
    [
        (False, None, {"t": 4, "missing": 0}),
        (False, Epoch(1, "n"), {"t": 4, "missing": 0}),
        (True, None, {"t": 4, "missing": 0}),
        (True, Epoch(1, "n"), {"t": 0, "missing": 0}),
    ],
)
def test_topics_that_a_group_waits_for_start_at_their_first_record(
    by_pattern: bool,
    noted: Epoch | None,
    initial: dict[str, int],
) -> None:
    """So do topics that its pattern matches later; the log keeps the first count of a topic."""
    leader = GroupCore(
        "g", {"store": "store", "cluster": "cluster"}, 1, True, 1_000, by_pattern=by_pattern
    )
    subscription = leader.subscription(noted, with_owned=True)
    assert dealt(leader, [subscription], ("t", "missing")).initial == initial
