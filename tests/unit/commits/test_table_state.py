"""What a table is, read from its log: the same as `deltalake` finds, whatever wrote the log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from commits.table_features import asks_of_append
from commits.table_files import DiskFiles
from commits.table_state import TableState, read_table

if TYPE_CHECKING:
    from collections.abc import Callable

_CHECKPOINT_AT = 4


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A table of two partitions: files were added, removed and merged, before and after version 4.

    It has a checkpoint of that version.
    """
    path = str(tmp_path / "t")

    def write(number: int, text: str, **how: Any) -> None:
        rows = pa.table({"number": [number], "text": [text]})
        write_deltalake(path, rows, partition_by=["text"], mode="append", **how)

    for number in range(3):
        write(number, "a b")
    DeltaTable(path).delete("number = 1")
    write(3, "ü=%")
    DeltaTable(path).create_checkpoint()
    DeltaTable(path).delete("number = 0")
    DeltaTable(path).alter.set_table_properties({"delta.appendOnly": "false"})
    write(4, "a b")
    DeltaTable(path).optimize.compact()
    return path


def _log(path: str, name: str) -> Path:
    return Path(path, "_delta_log", name)


def _classic(path: str) -> Path:
    return _log(path, f"{_CHECKPOINT_AT:020d}.checkpoint.parquet")


def _assert_same(path: str, version: int | None = None) -> TableState:
    """The version, properties, features, columns and files are those that `deltalake` reads."""
    expected, found = DeltaTable(path, version=version), read_table(DiskFiles(path), version)
    assert found is not None
    assert found.version == expected.version()
    assert found.metadata["id"] == str(expected.metadata().id)
    assert found.properties == expected.metadata().configuration
    assert found.metadata["partitionColumns"] == expected.metadata().partition_columns
    assert [*found.fields] == json.loads(expected.schema().to_json())["fields"]
    protocol = expected.protocol()
    versions = (found.protocol["minReaderVersion"], found.protocol["minWriterVersion"])
    assert versions == (protocol.min_reader_version, protocol.min_writer_version)
    columns = pa.table(expected.get_add_actions(flatten=True)).to_pylist()
    adds = {one["path"]: (one["size_bytes"], one["partition.text"]) for one in columns}
    values = {p: (a["size"], a["partitionValues"]["text"]) for p, a in found.files.items()}
    assert values == adds
    for one in columns:
        stats = json.loads(found.files[one["path"]]["stats"])
        assert stats["numRecords"] == one["num_records"]
    return found


@pytest.mark.parametrize("version", [None, *range(9)])
def test_every_version_is_as_deltalake_reads_it(path: str, version: int | None) -> None:
    """With the checkpoint before it, if there is one; each entry from that on was read."""
    found = _assert_same(path, version)
    begin = _CHECKPOINT_AT if found.version >= _CHECKPOINT_AT else 0
    assert sorted(found.entries) == [*range(begin, found.version + 1)]


def test_a_folder_without_a_log_has_no_table(tmp_path: Path) -> None:
    """Nor has one that is missing, or one with an empty folder of a log."""
    for folder in ("none", "empty", "log/_delta_log"):
        if folder != "none":
            (tmp_path / folder).mkdir(parents=True)
        assert read_table(DiskFiles(str(tmp_path / folder.partition("/")[0]))) is None


def _in_parts(path: str) -> None:
    """As Spark writes a large checkpoint: three files."""
    rows = pq.read_table(_classic(path))
    for part in range(3):
        size = -(-len(rows) // 3)
        name = f"{_CHECKPOINT_AT:020d}.checkpoint.{part + 1:010d}.{3:010d}.parquet"
        pq.write_table(rows.slice(part * size, size), _log(path, name))
    _classic(path).unlink()


def _of_the_second_format(path: str, *, is_json: bool) -> None:
    """As Spark writes it with `delta.checkpointPolicy=v2`: files stand in a file of their own."""
    rows = pq.read_table(_classic(path))
    is_file = [row["add"] is not None or row["remove"] is not None for row in rows.to_pylist()]
    _log(path, "_sidecars").mkdir()
    sidecar = rows.filter(pa.array(is_file)).select(["add", "remove"])
    pq.write_table(sidecar, _log(path, "_sidecars/one.parquet"))
    own = rows.filter(pa.array([not one for one in is_file])).to_pylist()
    for row in own:
        if row["metaData"]:
            row["metaData"]["configuration"] = dict(row["metaData"]["configuration"])
            row["metaData"]["format"]["options"] = {}
    actions: list[dict[str, Any]] = [
        {"checkpointMetadata": {"version": _CHECKPOINT_AT}},
        {"sidecar": {"path": "one.parquet", "sizeInBytes": 1, "modificationTime": 1}},
        *({kind: value for kind, value in row.items() if value is not None} for row in own),
    ]
    name = f"{_CHECKPOINT_AT:020d}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11"
    if is_json:
        _log(path, f"{name}.json").write_text("\n".join(map(json.dumps, actions)))
    else:
        for action in actions:
            if "metaData" in action:  # Arrow would write the map as a struct
                configuration = action["metaData"].pop("configuration")
                assert not configuration
                del action["metaData"]["format"]
        pq.write_table(pa.Table.from_pylist([
            {kind: action.get(kind) for kind in ("protocol", "metaData", "sidecar")}
            for action in actions
        ]), _log(path, f"{name}.parquet"))  # fmt: skip
    _classic(path).unlink()


@pytest.mark.parametrize(
    "rewritten",
    [
        _in_parts,
        lambda path: _of_the_second_format(path, is_json=True),
        lambda path: _of_the_second_format(path, is_json=False),
    ],
    ids=["parts", "json", "parquet"],
)
def test_checkpoints_of_all_formats_are_read(path: str, rewritten: Callable[[str], None]) -> None:
    """The entries before them are not needed."""
    expected = read_table(DiskFiles(path))
    assert expected is not None
    rewritten(path)
    for version in range(_CHECKPOINT_AT + 1):
        _log(path, f"{version:020d}.json").unlink()
    found = read_table(DiskFiles(path))
    assert found is not None
    assert found.files == expected.files
    assert sorted(found.entries) == [5, 6, 7, 8]
    assert (found.properties, found.fields) == (expected.properties, expected.fields)
    brief = read_table(DiskFiles(path), has_files=False)
    assert brief is not None
    assert (brief.version, brief.metadata["id"]) == (found.version, found.metadata["id"])


@pytest.mark.parametrize("pointer", ["{", "{}", '{"version": 7}', "[]", None])
def test_what_points_at_the_checkpoint_is_a_hint(path: str, pointer: str | None) -> None:
    """It may be torn, missing, or point at a checkpoint that is not there."""
    if pointer is None:
        _log(path, "_last_checkpoint").unlink()
    else:
        _log(path, "_last_checkpoint").write_text(pointer)
    found = read_table(DiskFiles(path))
    assert found is not None
    assert found.version == 8
    assert min(found.entries) == _CHECKPOINT_AT


def test_a_checkpoint_without_one_of_its_parts_does_not_count(path: str) -> None:
    """Its writer was killed before it wrote that of some files: the entries have all."""
    expected = read_table(DiskFiles(path))
    _in_parts(path)
    next(_log(path, "").glob("*.checkpoint.0000000001.*")).unlink()
    found = read_table(DiskFiles(path))
    assert found is not None
    assert expected is not None
    assert found.files.keys() == expected.files.keys()
    assert sorted(found.entries) == [*range(9)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (f"{6:020d}.json", None, f"{6:020d}.json"),
        (f"{6:020d}.json", b"", "the entry of version 6 is not valid"),
        (f"{8:020d}.json", b'{"add":', "the entry of version 8 is not valid"),
        (f"{7:020d}.json", b'{"add":{}}', "the entry of version 7 is not valid"),
        (f"{7:020d}.json", b'{"metaData":{}}', "its protocol or its metadata is not valid"),
        (f"{4:020d}.checkpoint.parquet", b"PAR1", "checkpoint.parquet is not valid"),
    ],
)
def test_damage_names_the_file(path: str, name: str, content: bytes | None, says: str) -> None:
    """A missing or torn entry, or a checkpoint of nonsense."""
    if content is None:
        _log(path, name).unlink()
    else:
        _log(path, name).write_bytes(content)
    with pytest.raises(ValueError, match=says):
        read_table(DiskFiles(path))


def test_an_entry_that_a_listing_misses_is_read_nevertheless(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is listed while others append may show the later one of two new entries."""
    names = DiskFiles.names

    def looked(files: DiskFiles, folder: str, after: str = "") -> list[str]:
        return [name for name in names(files, folder, after) if name != f"{7:020d}.json"]

    monkeypatch.setattr(DiskFiles, "names", looked)
    found = _assert_same(path)
    assert sorted(found.entries) == [4, 5, 6, 7, 8]


def test_a_log_without_its_beginning_is_not_read_to_its_end(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have 100,000 entries, and each is a request of a store."""
    for name in (_classic(path), _log(path, "_last_checkpoint"), _log(path, f"{0:020d}.json")):
        name.unlink()
    read, names = DiskFiles.read, []

    def noted(files: DiskFiles, name: str) -> bytes:
        names.append(name)
        return read(files, name)

    monkeypatch.setattr(DiskFiles, "read", noted)
    monkeypatch.setattr(DiskFiles, "is_far", True)
    with pytest.raises(ValueError, match="is missing"):
        read_table(DiskFiles(path))
    assert len(names) == 4


def test_an_entry_far_behind_the_others_is_a_gap(path: str) -> None:
    """Its number says nothing of how many there are."""
    _log(path, "9" * 20 + ".json").write_text("{}")
    with pytest.raises(ValueError, match=f"{9:020d}.json"):
        read_table(DiskFiles(path))


def test_files_that_only_help_readers_are_not_needed(path: str) -> None:
    """Checksums of versions, several entries in one file, and folders of other names."""
    for name in (f"{8:020d}.crc", f"{0:020d}.{9:020d}.compacted.json", f".{9:020d}.json.1.tmp"):
        _log(path, name).write_text("nonsense")
    _log(path, "_staged_commits").mkdir()
    _log(path, f"_staged_commits/{9:020d}.json").write_text("nonsense")
    assert _assert_same(path).version == 8


def test_entries_that_go_during_an_opening_are_looked_for_again(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have written a checkpoint meanwhile, and removed what it has."""
    _classic(path).unlink()
    _log(path, "_last_checkpoint").unlink()
    read, is_first = DiskFiles.read, True

    def late(files: DiskFiles, name: str) -> bytes:
        nonlocal is_first
        if name.endswith(f"{0:020d}.json") and is_first:
            is_first = False
            DeltaTable(path).create_checkpoint()
            for version in range(6):
                _log(path, f"{version:020d}.json").unlink()
        return read(files, name)

    monkeypatch.setattr(DiskFiles, "read", late)
    try:
        assert _assert_same(path).version == 8
    except ValueError as error:
        pytest.fail(str(error))
    assert not is_first


@pytest.mark.parametrize(
    ("protocol", "says"),
    [
        ({"minReaderVersion": 4, "minWriterVersion": 7}, "readers 4 and writers 7"),
        ({"minReaderVersion": 1, "minWriterVersion": 8}, "readers 1 and writers 8"),
        (
            {
                "minReaderVersion": 3, "minWriterVersion": 7,
                "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"],
            },
            "the table feature deletionVectors",
        ),
    ],
)  # fmt: skip
def test_protocols_that_are_not_known_ask_more_of_an_append(
    path: str, protocol: dict[str, Any], says: str
) -> None:
    """A later version of Delta, and rows that are deleted without a change of their file."""
    table = read_table(DiskFiles(path))
    assert table is not None
    assert asks_of_append(table, removes=False) is None
    _log(path, f"{9:020d}.json").write_text(json.dumps({"protocol": protocol}))
    table = read_table(DiskFiles(path))
    assert table is not None
    assert says in (asks_of_append(table, removes=False) or "")


def test_a_long_listing_is_of_what_follows_the_checkpoint(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log keeps entries for a while: they are many pages of a store's listing."""
    asked: list[str] = []
    names = DiskFiles.names

    def noted(files: DiskFiles, folder: str, after: str = "") -> list[str]:
        asked.append(after)
        return names(files, folder, after)

    monkeypatch.setattr(DiskFiles, "names", noted)
    assert read_table(DiskFiles(path)) is not None
    assert asked == [f"{_CHECKPOINT_AT:020d}"]
