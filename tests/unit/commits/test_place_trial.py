"""Whether a place can have a commit table is found by creating a file there twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from commits import CommitStore, UnsupportedTarget
from commits import place_trial as trial
from commits.place_trial import try_place
from commits.table_files import DiskFiles

if TYPE_CHECKING:
    from pathlib import Path


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    """One that does not exist is tried in the nearest one that does, and is not made."""
    found = try_place(str(tmp_path / "not" / "yet"))
    assert (found.has_table, found.is_local) == (False, True)
    assert list(tmp_path.iterdir()) == []
    CommitStore.open(tmp_path / "table")
    before = sorted(tmp_path.rglob("*"))
    assert try_place(f"file://{tmp_path / 'table'}").has_table
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("says_so", [True, False])
def test_a_place_that_overwrites_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, says_so: bool
) -> None:
    """Whether it says that the file is new or not; what was created is removed."""

    def overwrite(files: DiskFiles, name: str, data: bytes) -> bool:
        is_new = not files.has(name)
        (tmp_path / name).write_bytes(data)
        return is_new or says_so

    monkeypatch.setattr(DiskFiles, "create", overwrite)
    with pytest.raises(UnsupportedTarget, match="If-None-Match"):
        try_place(str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the right to delete is missing."""

    def refuse(_files: DiskFiles, name: str) -> None:
        raise PermissionError(name)

    monkeypatch.setattr(DiskFiles, "remove", refuse)
    assert try_place(str(tmp_path)).left == next(tmp_path.iterdir()).name


def test_an_unsafe_place_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without a rename that fails."""
    monkeypatch.setattr(trial, "files_of", lambda *_: pytest.fail("it was tried"))
    with pytest.raises(UnsupportedTarget, match="object store behind it"):
        try_place("/Volumes/a/b/commits")
