"""A replica's log in a Delta table: rows keep their order, and snapshots lose nothing."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from commits.errors import CommitLogUnavailable, CommitTableFormat
from commits.path_engine import PathEngine
from commits.rows import SCHEMA
from commits.table_files import DiskFiles
from coopconsume.errors.queue import QueueLogFormat, QueueNotFound
from coopconsume.queue.replica_log import ReaderEvent, RecordsRead, ReplicaFailed, ReplicaLog
from coopconsume.queue.rows import ReplicaRow, decode, encode
from coopconsume.queue.table_log import TableLog
from tests.commit_suite import as_written_before

SEGMENT = 5


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a new table with short segments."""
    monkeypatch.setattr("coopconsume.queue.table_log._SEGMENT", SEGMENT)
    return tmp_path / "holds"


def opened(table: Path) -> TableLog:
    """A client that is ready to write and to read."""
    log = TableLog("g/orders", str(table))
    log.prepare(create=True)
    return log


def row(number: int) -> bytes:
    """A row with a number of its own."""
    return encode(ReplicaRow("release", "a", number))


def snapshot(upto: int) -> bytes:
    """A snapshot of the rows below a position."""
    return encode(ReplicaRow("snapshot", "a", positions=(upto,), state={}))


def read_all(log: TableLog) -> list[tuple[int, ReplicaRow]]:
    """Positions and rows up to the end, from the first one on."""
    position, end = log.begin_reading()
    found: list[tuple[int, ReplicaRow]] = []
    while position < end:
        found += new_rows(log)
        position = log.position()
    return found


def vacuum(table: Path) -> None:
    """Delete the files of all removed rows at once."""
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)


def new_rows(log: TableLog) -> list[tuple[int, ReplicaRow]]:
    """Positions and rows that are new."""
    records = log.read(0.0)
    assert records is not None
    rows = [(at, decode(value, "table")) for at, _, value in records]
    assert {key for _, key, _ in records} <= {b"g/orders"}
    return [(at, found) for at, found in rows if found is not None]


def requests(rows: list[tuple[int, ReplicaRow]]) -> list[int]:
    """The numbers of the rows."""
    return [found.request for _, found in rows if found.kind != "snapshot"]


def test_a_reader_has_rows_before_a_checkpoint_is_written(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its consumer waits for an answer, and a checkpoint takes longer than that."""
    for name in ("_LOOK", "_LONGEST_LOOK"):  # without a word of the writer no look is due
        monkeypatch.setattr(f"coopconsume.queue.table_log.{name}", 3600.0)
    log = opened(table)
    assert read_all(log) == new_rows(log) == []
    seen: list[int] = []
    monkeypatch.setattr(PathEngine, "maintain", lambda _: seen.extend(requests(new_rows(log))))
    log.write([row(1), row(2)])
    assert seen == [1, 2]


def test_a_reader_of_a_table_begins_with_the_newest_snapshot(table: Path) -> None:
    """One that was there reads all rows in their order; others read what is left."""
    log = opened(table)
    assert read_all(log) == []
    written: list[int] = []
    uptos: list[int] = []
    seen: list[tuple[int, ReplicaRow]] = []
    for _ in range(12):
        numbers = [len(written) + n for n in range(3)]
        written += numbers
        log.write([*map(row, numbers)])
        log.write([row(len(written))])
        written.append(len(written))
        seen += new_rows(log)
        uptos.append(seen[-1][0] + 1)
        log.write([row(len(written))])  # the snapshot does not contain it
        written.append(len(written))
        log.write([snapshot(uptos[-1])])
    seen += new_rows(log)
    places = [at for at, _ in seen]
    assert requests(seen) == written
    assert places == sorted({*places})
    assert [found.positions for _, found in seen if found.kind == "snapshot"] == [
        (upto,) for upto in uptos
    ]
    log.write([row(len(written)), row(len(written) + 1)])
    vacuum(table)
    late = opened(table)
    start, _ = late.begin_reading()
    rest = read_all(late)
    assert start == uptos[-1]
    assert (rest[0][1].kind, rest[0][1].positions) == ("snapshot", (start,))
    assert requests(rest) == [len(written) - 1, len(written), len(written) + 1]
    assert len(DeltaTable(table).to_pyarrow_table()) < len(written), "rows were removed"


def test_writers_and_snapshots_at_once_lose_no_row(table: Path) -> None:
    """What a snapshot does not contain is read after it, whatever was removed meanwhile."""
    log = opened(table)
    read_all(log)
    each, writers = 25, 3

    def write(number: int) -> None:
        own = opened(table)
        for n in range(each):
            own.write([row(number * each + n)])

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    seen: list[tuple[int, ReplicaRow]] = []
    contents: dict[int, set[int]] = {}
    since = 0
    while len(requests(seen)) < each * writers:
        seen += new_rows(log)
        if len(requests(seen)) - since >= SEGMENT:
            since = len(requests(seen))
            upto = seen[-1][0] + 1
            contents[upto] = {*requests(seen)}
            log.write([snapshot(upto)])
    for thread in threads:
        thread.join()
    everything = [*range(each * writers)]
    assert sorted(requests(seen)) == everything
    for number in range(writers):
        own = range(number * each, (number + 1) * each)
        assert [n for n in requests(seen) if n in own] == [*own], "each writer's rows in order"
    vacuum(table)
    late = opened(table)
    rest = read_all(late)
    (start,) = rest[0][1].positions
    after = {found.request for at, found in rest if found.kind != "snapshot" and at >= start}
    assert sorted(contents[start] | after) == everything
    assert not contents[start] & after


def test_a_table_is_neither_created_again_nor_taken_from_others(table: Path) -> None:
    """It may be away; and another table has another format."""
    with pytest.raises(QueueNotFound, match=r"g/orders.*holds"):
        TableLog("g/orders", str(table)).prepare(create=False)
    log = opened(table)
    log.write([row(0)])
    read_all(log)
    shutil.rmtree(table)
    for call in (
        lambda: log.read(5.0),
        lambda: log.prepare(create=True),
        lambda: log.write([row(1)]),
    ):
        with pytest.raises(CommitLogUnavailable) as error:
            call()
        assert log.explained(error.value) is error.value
    assert not table.exists()
    other = opened(table)
    other.write([row(1)])
    other.write([row(2)])
    assert log.read(5.0) is None, "it is another one: begin again"
    log.prepare(create=True)
    assert requests(read_all(log)) == [1, 2]
    write_deltalake(str(table.with_name("other")), pa.table({"a": [1]}))
    with pytest.raises(QueueLogFormat, match=r"coopconsume\.queue\.format=None"):
        opened(table.with_name("other"))


def test_a_table_that_another_consumer_creates_at_the_same_time_is_used(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are not those of somebody else, even if it has rows already."""
    look = DiskFiles.names

    def looked(*args: Any, **more: Any) -> list[str]:
        monkeypatch.setattr(DiskFiles, "names", look)
        found = look(*args, **more)
        opened(table).write([row(0)])
        return found

    monkeypatch.setattr(DiskFiles, "names", looked)
    assert requests(read_all(opened(table))) == [0]


@pytest.mark.parametrize("left", ["data", "foreign", "file", "nothing"])
def test_what_is_left_of_a_deleted_table_counts_as_one_that_is_away(table: Path, left: str) -> None:
    """For a consumer that has used it: the other replicas go on. A new one reports other files."""
    log = opened(table)
    log.write([row(0)])
    shutil.rmtree(table / "_delta_log" if left in ("data", "foreign") else table)
    if left == "file":
        table.touch()
    elif left == "foreign":
        (table / "lost+found").mkdir()
    for _ in range(2):
        with pytest.raises(CommitLogUnavailable) as error:
            log.prepare(create=True)
        assert log.explained(error.value).retriable
    if left in ("file", "foreign"):
        with pytest.raises(CommitTableFormat):
            opened(table)
    else:
        assert read_all(opened(table)) == [], "as a replica that has lost its log"


def test_rows_of_other_tools_are_passed_over(table: Path) -> None:
    """Whatever they contain; removed rows make no one stop that has read them."""
    log = opened(table)
    log.write([row(0)])
    foreign = {"format": 1, "row_id": "x", "row": 0, "cluster_id": "", "group_id": "g/orders",
               "segment": 0}  # fmt: skip
    for kind, detail in (("snapshot", "no JSON"), ("row", None), ("snapshot", None)):
        line = foreign | {"kind": kind, "detail": detail}
        write_deltalake(str(table), pa.Table.from_pylist([line], schema=SCHEMA), mode="append")
    assert requests(read_all(log)) == [0]
    DeltaTable(table).delete("kind = 'snapshot'")
    log.write([row(1)])
    assert requests(new_rows(log)) == [1]
    late = opened(table)
    assert requests(read_all(late)) == [0, 1]


def test_a_damaged_table_counts_as_one_that_is_away(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a queue goes on with its other replicas."""
    log = opened(table)
    log.write([row(0), row(1)])
    as_written_before(table)
    for file in table.glob("segment=*/*.parquet"):
        file.unlink()
    log.begin_reading()
    assert log.read(5.0) is None
    for entry in (table / "_delta_log").glob("*.json"):
        entry.write_text("nonsense")
    with pytest.raises(Exception, match="cannot be opened") as error:
        log.prepare(create=True)
    assert isinstance(log.explained(error.value), CommitLogUnavailable)


def test_old_files_are_removed_now_and_then(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after each snapshot: a vacuum lists all files."""
    calls: list[str] = []
    monkeypatch.setattr(PathEngine, "tidy", lambda *_: calls.append("tidy"))
    monkeypatch.setattr(PathEngine, "vacuum", lambda *_: calls.append("vacuum"))
    log = opened(table)
    for version in (1, 20 * SEGMENT, 20 * SEGMENT + 1, 39 * SEGMENT, 40 * SEGMENT):
        log.delete_before((version << 20) + 1)
    assert calls == ["tidy", "tidy", "vacuum", "tidy", "tidy", "tidy", "vacuum"]


def test_an_idle_reader_looks_once_a_second(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look lists files of the store; after an own write it looks at once."""
    log = opened(table)
    read_all(log)
    now = [time.monotonic()]
    is_written = threading.Event()

    def wait(seconds: float) -> bool:
        now[0] += 0.0 if is_written.is_set() else seconds
        return is_written.is_set()

    event = SimpleNamespace(wait=wait, set=is_written.set, clear=is_written.clear)
    monkeypatch.setattr(log, "_written", event)
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    monkeypatch.setattr("coopconsume.queue.table_log.time", clock)
    looks: list[float] = []
    refresh = PathEngine.refresh
    reader = log._reader

    def counted(engine: PathEngine, **more: Any) -> int:
        looks.extend([now[0]] * (engine is reader))
        return refresh(engine, **more)

    monkeypatch.setattr(PathEngine, "refresh", counted)
    began = now[0]
    while now[0] < began + 60:
        assert log.read(0.5) == []
    assert 60 <= len(looks) <= 70
    log.write([row(0)])
    before = now[0]
    assert requests(new_rows(log)) == [0]
    assert now[0] == before


class Panic(BaseException):
    """As deltalake raises one for some wrong options."""


def test_no_error_ends_the_threads_of_a_replica_in_silence(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer raises what the reader cannot go on with; a row is written later."""
    monkeypatch.setattr("coopconsume.queue.replica_log._RETRY", 0.01)
    failures = [Panic("no such endpoint")]

    def failing(method: Any) -> Any:
        def call(*args: Any, **more: Any) -> Any:
            if failures:
                raise failures.pop()
            return method(*args, **more)

        return call

    events: SimpleQueue[ReaderEvent] = SimpleQueue()
    monkeypatch.setattr(TableLog, "prepare", failing(TableLog.prepare))
    replica = ReplicaLog(0, TableLog("g/orders", str(table)), events, 60.0)
    replica.start()
    try:
        failed = events.get(timeout=60)
        assert isinstance(failed, ReplicaFailed)
        assert (type(failed.error), failed.is_permanent) == (Panic, True)
        monkeypatch.setattr(TableLog, "write", failing(TableLog.write))
        failures.append(Panic("once"))
        replica.append(row(1))
        while not isinstance(found := events.get(timeout=60), RecordsRead):
            pass
        assert [value for _, _, value in found.records] == [row(1)]
        assert not failures
    finally:
        replica.close()


def test_a_snapshot_that_cannot_be_written_holds_up_no_row(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows before it are written once; the next snapshot comes after as many rows."""
    log = opened(table)
    away = CommitLogUnavailable(str(table), "append", "the disk is full")  # type: ignore[arg-type]

    def fails(*_: object) -> None:
        raise away

    monkeypatch.setattr(TableLog, "_replace", fails)
    log.write([row(0), snapshot(1), row(1)])
    assert requests(read_all(log)) == [0, 1]


def test_rows_that_are_gone_at_the_start_are_reported(table: Path) -> None:
    """A reader that never reaches the end would be silent otherwise."""
    log = opened(table)
    log.write([row(0)])
    as_written_before(table)
    for file in table.glob("segment=*/*.parquet"):
        file.unlink()
    events: SimpleQueue[ReaderEvent] = SimpleQueue()
    replica = ReplicaLog(0, TableLog("g/orders", str(table)), events, 60.0)
    replica.start()
    try:
        found = [events.get(timeout=60) for _ in range(2)][-1]
        assert isinstance(found, ReplicaFailed)
        assert (type(found.error), found.is_permanent) == (CommitLogUnavailable, False)
    finally:
        replica.close()


def test_an_idle_reader_sees_that_a_table_has_fewer_versions(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was restored, or created again."""
    monkeypatch.setattr("coopconsume.queue.table_log._REOPEN", 0.0)
    monkeypatch.setattr("coopconsume.queue.table_log._LONGEST_LOOK", 0.04)
    log = opened(table)
    for number in range(5):
        log.write([row(number)])
    assert requests(read_all(log)) == [0, 1, 2, 3, 4]
    shutil.rmtree(table)
    opened(table).write([row(7)])
    found: Any = []
    while found is not None:
        found = log.read(0.1)
    log.prepare(create=True)
    assert requests(read_all(log)) == [7]
