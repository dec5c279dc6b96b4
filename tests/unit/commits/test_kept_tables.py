"""Tables that older versions have written are read as these read them, and continued."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commits import CommitStore, FencedMember, OffsetRanges, Pending
from tests.upgrade import kept, written
from tests.upgrade.written import FAR, IDS, LOW, P0, P1

if TYPE_CHECKING:
    from pathlib import Path

    from commits import PartitionCommits


def _each(archives: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("archive", archives, ids=lambda archive: archive.name[:10])


each_version = _each(kept.KEPT)
#: The first version has neither.
each_with_chunks_and_state = _each(kept.KEPT[1:])


def opened(folder: Path) -> CommitStore:
    """The table, which is there."""
    return CommitStore.open(folder / "commits", cluster="c", create=False)


def done(commits: PartitionCommits) -> tuple[int, list[list[int]]]:
    """The stable offset, and what is done above it."""
    return commits.stable_offset, commits.ranges.pairs()


def test_older_versions_are_there() -> None:
    """The first version, one with chunks and a state, and later ones."""
    days = [one.name[:10] for one in kept.KEPT]
    assert days[:2] == ["2026-11-21", "2026-11-24"]
    assert days == sorted(set(days))


@each_version
def test_a_kept_table_is_read_as_its_version_reads_it(archive: Path, tmp_path: Path) -> None:
    """Gaps, failed and parked records, epochs, claims, chunks, a state, and what was refused."""
    expected = kept.unpacked(archive, tmp_path)
    store = opened(tmp_path)
    state = written.open_state(tmp_path) if "state" in expected else None
    assert written.read(store, state) == expected
    assert store.pending("plain")[P0][41].is_parked
    assert sorted(store.counted_commits("plain")) == ["a-1", "a-2", "a-3", "b-1"]
    assert [claim.members.keys() for claim in store.claims("claimed")] == [{"z"}]
    if state is not None:
        assert len(store.acquisitions("chunks")[P0]) == 2
        assert expected["state"] == {"k1": 2, "k2": 5}
    assert store.settings("orders").get("maxNumRanges") == 5


@each_version
def test_a_kept_table_is_continued(archive: Path, tmp_path: Path) -> None:
    """Gaps are filled, failed records done, old members fenced, and repeats answered as repeats."""
    kept.unpacked(archive, tmp_path)
    store = opened(tmp_path)
    old = store.current_epoch("plain")
    again = store.commit("plain", old, "b", {P0: [(47, 47)]}, holes={P0: [(48, 49)]},
                         commit_id="b-1")[P0]  # fmt: skip
    assert (again.stable_offset, again.status) == (40, "committed")
    new = store.open_epoch("plain", {"n": [P0, P1]}, previous=old, topic_ids=IDS)
    with pytest.raises(FencedMember):
        store.commit("plain", old, "a", {P0: [(40, 40)]})
    retried = Pending(41, 8, 6, 1, "bad", key="k")
    result = store.commit("plain", new, "n", {P0: [(40, 40), (42, 42), (46, 46)]},
                          pending={P0: [retried]}, commit_id="n-1")[P0]  # fmt: skip
    assert result.stable_offset == 41
    assert store.commit("plain", new, "n", {P0: [(41, 41)], P1: [(FAR, FAR + 3)]})[P0] == (
        result.__class__(51, 1, 0, 0)
    )
    assert done(store.state("plain")[P1]) == (FAR + 5, [])
    assert store.pending("plain") == {}

    claim = store.claim("claimed", "y", [(*P0, *LOW)], takeover=True, topic_ids=IDS)
    store.commit("claimed", claim, "y", {P0: [(3, 4)]})
    assert done(store.state("claimed")[P0]) == (7, [])

    before = written.read(store, None)
    store.compact()
    assert written.read(opened(tmp_path), None) == before


@each_with_chunks_and_state
def test_chunks_and_the_state_of_a_kept_table_go_on(archive: Path, tmp_path: Path) -> None:
    """A new member gets what nobody holds; the state has the changes of both versions."""
    kept.unpacked(archive, tmp_path)
    store, state = opened(tmp_path), written.open_state(tmp_path)
    written.go_on(store, state)
    (mine,) = [c for c in store.acquisitions("chunks")[P0] if c.member == "m2"]
    assert mine.offsets == OffsetRanges([(16, 16)])
    assert "m2-2" in store.counted_commits("chunks")
    assert written.read(store, state)["state"] == {"k1": 2, "k2": 203}
