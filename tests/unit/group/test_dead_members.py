"""What the next member on a host does for a dead one, with a real commit table."""

from __future__ import annotations

import os
import types
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest

from assignors import KeyRange, Share
from commits import CommitLogUnavailable, CommitStore, FencedMember
from coopconsume.errors import BrokerUnreachable
from coopconsume.group import dead_members
from coopconsume.group.dead_members import leave_for_dead, locked
from coopconsume.options import Options
from coopconsume.worker.host_locks import DriverLock, WorkerLock, this_host

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not this_host(), reason="the system does not name its boot")
LOW, HIGH = (Share("t", 0, half) for half in KeyRange().split(2))


class Place:
    """A group, and a member of it that has died: its lock is free, and its files are here."""

    def __init__(self, path: Path, **more: str) -> None:
        self.options = Options.parse(
            {
                "kafka.bootstrap.servers": "127.0.0.1:1", "kafka.group.id": "g",
                "commitTable": str(path / "commits"), "subscribe": "t",
            } | more
        )  # fmt: skip
        self.store = CommitStore.open(path / "commits", cluster="c")
        self.removed: list[dict[str, str | None]] = []
        self.cluster: Any = types.SimpleNamespace(
            cluster_id="c", remove_members=self.removed.append
        )

    def dies(self, *members: str, instance: str | None = None) -> DriverLock:
        """A member that has had some ids ends."""
        lock = locked(self.options, self.store, self.cluster)
        assert lock is not None
        for member in members:
            lock.note(member, instance)
        assert lock._descriptor is not None
        os.close(lock._descriptor)  # As the kernel does.
        return lock

    def leave(self) -> None:
        """The next member on the host starts."""
        leave_for_dead(self.options, self.store, self.cluster, Event())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A group on a host of its own."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Place(tmp_path)


def test_it_leaves_as_a_member_that_ends_does(place: Place) -> None:
    """In the log and in Kafka, under each id that it had; it does not do it twice."""
    place.store.open_epoch("g", {"a-2": [Share("t", 0)]}, previous=None, life_ms=1000)
    place.dies("a-1", "a-2")
    place.leave()
    place.leave()
    row = place.store.assignment("g")
    assert row is not None
    assert set(row.fenced) == {"a-2"}
    place.store.open_epoch("g", {"b": [Share("t", 0)]}, previous=row.epoch, life_ms=1000)
    following = place.store.assignment("g")
    assert following is not None
    assert following.doubts == ()
    assert place.removed == [{"a-1": None, "a-2": None}]


def test_what_it_still_waited_for_is_waited_for(place: Place) -> None:
    """Its earlier owner may be at work on another host."""
    first = place.store.open_epoch("g", {"gone": [HIGH], "x": [LOW]}, previous=None, life_ms=700)
    place.store.release("g", first, "x")
    second = place.store.open_epoch("g", {"a": [LOW, HIGH]}, previous=first, life_ms=1000)
    place.dies("a")
    place.leave()
    place.store.open_epoch("g", {"b": [LOW, HIGH]}, previous=second, life_ms=1000)
    row = place.store.assignment("g")
    assert row is not None
    found = [(doubt.share.key_range.first, doubt.life_ms) for doubt in row.doubts]
    assert found == [(HIGH.key_range.first, 700)]


def test_an_epoch_that_is_opened_meanwhile_is_left_as_well(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader elsewhere may open it with the dead member, which Kafka still has."""
    shares = {"a": [LOW], "b": [HIGH]}
    first = place.store.open_epoch("g", shares, previous=None, life_ms=1000)
    place.dies("a")
    release, epochs = place.store.release, [first]

    def late(group: str, epoch: Any, *args: Any, **more: Any) -> bool:
        if len(epochs) == 1:
            epochs.append(place.store.open_epoch("g", shares, previous=first, life_ms=1000))
        return release(group, epoch, *args, **more)

    monkeypatch.setattr(place.store, "release", late)
    place.leave()
    row = place.store.assignment("g")
    assert row is not None
    assert (row.epoch, set(row.fenced)) == (epochs[-1], {"a"})


def test_an_instance_takes_its_own_place_in_kafka(place: Place, tmp_path: Path) -> None:
    """One of another name has it removed."""
    place.dies("one-1", instance="one")
    Place(tmp_path, **{"kafka.group.instance.id": "one"}).leave()
    place.dies("one-2", instance="one")
    other = Place(tmp_path, **{"kafka.group.instance.id": "two"})
    other.leave()
    assert (place.removed, other.removed) == ([], [{"one-2": "one"}])


def test_while_its_handlers_may_run_it_is_in_the_group(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that wait for it go on to; the next start finds it again."""
    monkeypatch.setattr(dead_members, "_SPARE", 0.1)
    epoch = place.store.open_epoch("g", {"a": [Share("t", 0)]}, previous=None, life_ms=100)
    worker = WorkerLock(place.dies("a").workers)
    assert worker.is_held
    place.leave()
    place.store.check("g", epoch, "a")
    assert place.removed == []
    worker.release()
    place.leave()
    with pytest.raises(FencedMember):
        place.store.check("g", epoch, "a")


@pytest.mark.parametrize("away", ["log", "kafka"])
def test_without_an_answer_all_wait_as_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch, away: str
) -> None:
    """It is no reason not to start, and the next start tries again."""
    place.store.open_epoch("g", {"a": [Share("t", 0)]}, previous=None, life_ms=100)
    place.dies("a")

    def refuse(*_: Any, **__: Any) -> None:
        raise BrokerUnreachable("x") if away == "kafka" else CommitLogUnavailable("x", "y", "z")

    with monkeypatch.context() as patched:
        if away == "log":
            patched.setattr(place.store, "release", refuse)
        else:
            patched.setattr(place.cluster, "remove_members", refuse)
        place.leave()
    assert place.removed == []
    place.leave()
    assert place.removed == [{"a": None}]


def test_groups_of_one_name_are_others_in_another_cluster_or_commit_table(
    place: Place, tmp_path: Path
) -> None:
    """Nothing of them says anything of this one."""
    place.dies("a")
    elsewhere = Place(tmp_path)
    elsewhere.cluster.cluster_id = "d"
    elsewhere.leave()
    (tmp_path / "other").mkdir()
    other = Place(tmp_path / "other")
    other.leave()
    assert elsewhere.removed == other.removed == []
