"""The state that the commit table notes of a group: what begins with it, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from commits import CommitStore
from coopconsume.errors import GroupRefused, OutputNotWritten, ResetNotFinished, TableUnusable
from coopconsume.state.changelog import Changelog
from coopconsume.state.note import StateNote, begin_with_state, check_state, note_start_elsewhere
from coopconsume.state.resetting import StateReset
from coopconsume.state.schema import StateSchema

LONG = StateSchema(pa.int64())


class Group:
    """A group whose jobs begin with states in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = CommitStore.open(folder / "commits", cluster="c")

    def state(self, path: str = "state", schema: StateSchema = LONG) -> Changelog:
        """Returns a state as a job opens it."""
        return Changelog(f"{self.folder}/{path}", schema)

    def create(self, path: str) -> Changelog:
        """Returns a state of the group whose table exists."""
        changelog = self.state(path)
        changelog.belong_to("c/g")
        changelog.create()
        return changelog

    def begin(self, path: str | None = "state", member: str = "m") -> StateNote:
        """A job with a state, or without one, begins; returns the note."""
        changelog = None if path is None else self.state(path)
        begin_with_state(self.store, "g", "c", member, changelog)
        return self.note

    @property
    def note(self) -> StateNote:
        """What the commit table notes."""
        return StateNote.of(self.store, "g")

    def commit(self) -> None:
        """Commits a record."""
        row = self.store.assignment("g")
        epoch = self.store.open_epoch("g", {"m": [("t", 0)]}, previous=row.epoch if row else None)
        self.store.commit("g", epoch, "m", {("t", 0): [(0, 0)]})

    def switch(self) -> None:
        """What ``coopconsume state switch`` does."""
        StateNote(any_next=True).write(self.store, "g")


@pytest.fixture
def group(tmp_path: Path) -> Group:
    """A group that has committed nothing."""
    return Group(tmp_path)


def test_a_group_has_the_state_that_it_began_with(group: Group) -> None:
    """By the id of its table, not by the spelling of its path; a start writes nothing more."""
    note = group.begin()
    assert (note.id, note.path) == (group.state().id, f"{group.folder}/state")
    group.commit()
    version = group.store.version()
    group.begin()
    assert group.store.version() == version
    (group.folder / "link").symlink_to(group.folder / "state")
    moved = group.begin("link")
    assert (moved.id, moved.path) == (note.id, f"{group.folder}/link")
    assert group.begin("./state") == StateNote(note.id, f"{group.folder}/./state")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("staet", r"its state at \S+/staet is missing, that of the group is at \S+/state \(table"),
        ("other", r"it keeps the state at \S+/other \(table \S+\), that of the group is at \S+/st"),
        (None, r"it keeps no state, that of the group is at \S+/state \(table"),
    ],
)
def test_another_state_is_refused_with_both(path: str | None, words: str, group: Group) -> None:
    """A typo, another table, or none; only a command changes it."""
    group.create("other")
    note = group.begin()
    group.commit()
    with pytest.raises(GroupRefused, match=words + r".*run 'coopconsume state switch g --execute'"):
        group.begin(path)
    assert group.note == note
    assert not (group.folder / "staet").exists()
    group.switch()
    changed = group.begin(path) if path != "other" else group.begin(None)
    assert changed.id != note.id
    with pytest.raises(GroupRefused):
        group.begin("state")


def test_a_state_that_was_removed_is_refused(group: Group) -> None:
    """Also if an empty one was made in its place."""
    note = group.begin()
    group.commit()
    shutil.rmtree(group.folder / "state")
    with pytest.raises(GroupRefused, match="is missing, that of the group is at"):
        group.begin()
    group.create("state")
    with pytest.raises(GroupRefused, match=rf"keeps the state at .*that of .*\(table {note.id}\)"):
        group.begin()
    group.switch()
    assert group.begin().id == group.state().id != note.id


def test_a_state_that_is_removed_under_a_job_is_not_made_again(group: Group) -> None:
    """Its totals would begin again."""
    changelog = group.state()
    begin_with_state(group.store, "g", "c", "m", changelog)
    before = changelog.id
    shutil.rmtree(group.folder / "state")
    rows = LONG.changelog.empty_table()
    with pytest.raises(OutputNotWritten, match=f"{before} was removed, and no table is there now"):
        changelog.append(rows)
    assert not (group.folder / "state").exists()
    group.create("state")
    with pytest.raises(OutputNotWritten, match=f"its table {before} was removed"):
        changelog.append(rows)


def test_a_state_over_committed_records_is_an_explicit_choice(group: Group) -> None:
    """They were processed without it; whether their group is of this version or an earlier one."""
    group.commit()
    with pytest.raises(GroupRefused, match="of the group were processed without state: keep none"):
        group.begin()
    version = group.store.version()
    assert group.begin(None) == StateNote()
    assert group.store.version() == version
    assert not (group.folder / "state").exists()
    group.switch()
    assert group.begin().id == group.state().id


def test_a_state_of_another_commit_table_is_refused(group: Group) -> None:
    """Its changes would not count, without a word; a table without changes is taken."""
    group.begin("empty")
    changelog = group.state()
    changelog.belong_to("c/g")
    row = dict.fromkeys(changelog.schema.changelog.names)
    row |= {"_topic_id": "t", "_partition": 0, "_offset": 5, "_commit": "of another table"}
    row |= {"key": b"k", "value": 7, "key_hash": 1}
    known = {name: value for name, value in row.items() if name in changelog.schema.changelog.names}
    changelog.append(pa.Table.from_pylist([known], changelog.schema.changelog))
    other = Group(group.folder / "moved")
    moved = Changelog(changelog.path, LONG)
    with pytest.raises(GroupRefused, match="has changes by commits that this commit table does"):
        begin_with_state(other.store, "g", "c", "m", moved)
    assert other.note == StateNote()
    begin_with_state(other.store, "g", "c", "m", Changelog(f"{group.folder}/empty", LONG))
    other = Group(group.folder / "switched")
    other.switch()
    begin_with_state(other.store, "g", "c", "m", moved)
    assert other.note.id == moved.id


def test_a_state_over_another_consumers_offsets_is_an_explicit_choice(group: Group) -> None:
    """A start at the group's offset in Kafka is noted, as it looks like any other one later."""
    note_start_elsewhere(group.store, "g")
    assert group.note == StateNote("", is_started=True)
    with pytest.raises(GroupRefused, match="of the group were processed without state"):
        group.begin()
    group.switch()
    note_start_elsewhere(group.store, "g")
    note = group.begin()
    assert note.id == group.state().id
    note_start_elsewhere(group.store, "g")
    assert group.note == note


def test_a_group_that_has_committed_nothing_may_change_while_nobody_else_works(
    group: Group,
) -> None:
    """A first run, for a test."""
    assert group.begin(None) == StateNote("")
    assert group.begin("a").path == f"{group.folder}/a"
    assert group.begin("b").path == f"{group.folder}/b"
    group.store.open_epoch("g", {"m": [("t", 0)], "other": [("t", 1)]}, previous=None)
    for path in ("a", None):
        with pytest.raises(GroupRefused):
            group.begin(path)
    group.begin("b")
    group.store.claim("g", "claim", [("u", 0)])
    with pytest.raises(GroupRefused):
        group.begin(None, "claim")


def test_a_member_without_state_is_noted_so_that_one_with_state_is_refused(group: Group) -> None:
    """Beside it, before anything is committed."""
    group.store.open_epoch("g", {"m": [("t", 0)], "other": [("t", 1)]}, previous=None)
    group.begin(None)
    with pytest.raises(GroupRefused, match="were processed without state"):
        group.begin("state", "other")


def test_a_member_with_another_schema_is_refused(group: Group) -> None:
    """Also if both have found no table, so that neither could compare."""
    text = group.state(schema=StateSchema(pa.string()))
    group.begin()
    with pytest.raises(TableUnusable, match="its values are int64, not string"):
        begin_with_state(group.store, "g", "c", "other", text)


def test_a_table_that_another_member_creates_meanwhile_is_compared(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its schema is that of the first member."""
    text, create = group.state(schema=StateSchema(pa.string())), Changelog.create

    def late(changelog: Changelog) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(Changelog, "create", create)
            group.create("state")
        return create(changelog)

    monkeypatch.setattr(Changelog, "create", late)
    with pytest.raises(TableUnusable, match="its values are int64, not string"):
        begin_with_state(group.store, "g", "c", "m", text)


def test_a_table_that_another_group_creates_meanwhile_is_refused(group: Group) -> None:
    """Two groups were given one path, and start for the first time."""
    mine, theirs = group.state(), group.state(schema=StateSchema(pa.string()))
    mine.belong_to("c/g")
    theirs.belong_to("c/other")
    theirs.create()
    with pytest.raises(TableUnusable):
        mine.create()


def test_of_two_that_note_at_the_same_time_one_begins(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The later note counts; who has written the other one is refused."""
    write = StateNote.write

    def beside(note: StateNote, store: CommitStore, name: str) -> None:
        write(note, store, name)
        write(StateNote(""), store, name)

    monkeypatch.setattr(StateNote, "write", beside)
    group.store.open_epoch("g", {"m": [("t", 0)], "other": [("t", 1)]}, previous=None)
    with pytest.raises(GroupRefused, match="were processed without state"):
        group.begin()


def test_a_note_of_the_version_before_means_the_table_at_its_path(group: Group) -> None:
    """The group goes on, and its table is noted from then on; another table is refused."""
    state = group.create("state")
    group.commit()
    group.store.set_setting("state:g", {"path": state.path})
    with pytest.raises(GroupRefused, match=r"is missing, that of .* \(table \S+\)"):
        group.begin("staet")
    with pytest.raises(GroupRefused, match="it keeps no state"):
        group.begin(None)
    (group.folder / "link").symlink_to(group.folder / "state")
    check_state(group.store, "g", "c", group.state("link"))
    assert group.begin() == StateNote(state.id, state.path)


def test_a_note_of_the_version_before_without_a_table_is_refused_with_the_command(
    group: Group,
) -> None:
    """That version made the table with the first change; one that was removed looks the same."""
    group.commit()
    path = f"{group.folder}/state"
    group.store.set_setting("state:g", {"path": path})
    words = (
        rf"state at {path} is missing, which an earlier version has noted: it was removed, or no "
        r"record has changed it: if .* restore it; .* run 'coopconsume state switch g --execute'"
    )
    with pytest.raises(GroupRefused, match=words):
        group.begin()
    with pytest.raises(GroupRefused, match=r"staet is missing, that of the group is at \S+/state"):
        group.begin("staet")
    assert not Path(path).exists()
    group.switch()
    note = group.begin()
    assert note == StateNote(group.state().id, path)
    assert group.begin() == note


def test_a_reset_keeps_the_note_and_notes_a_state_that_it_names(group: Group) -> None:
    """While it is not finished no job with state begins, and no other one either."""
    note = group.begin()
    group.commit()
    plan = StateReset(None, group.store, "c", "g", {})
    plan.execute(lambda: None)
    assert group.note == note
    StateNote(note.id, note.path, (("t", 0),)).write(group.store, "g")
    with pytest.raises(ResetNotFinished):
        group.begin()
    with pytest.raises(GroupRefused):
        group.begin(None)
