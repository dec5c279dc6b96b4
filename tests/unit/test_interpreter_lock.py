"""Other threads run while an object store answers, whatever this process asks of its tables.

A call that keeps Python's interpreter lock meanwhile stops the heartbeats and leases of a driver
for as long as the store takes. Here the store answers a request once another thread of this process
has run since it came, so that a machine under load makes no difference.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from assignors import MAX_KEY_HASH
from commits import CommitStore, OffsetRanges, check_table, move_table
from coopconsume.admin.dead_letters.stored import _MARKS, _TableStore
from coopconsume.fenced.ownership.delta_store import DeltaStore
from coopconsume.fenced.ownership.registry import OwnershipRegistry
from coopconsume.queue.rows import ReplicaRow, encode
from coopconsume.queue.table_log import TableLog
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.sinks import MergeTable, Outputs, OutputTable, committed_rows
from coopconsume.sinks.base import ORIGIN
from coopconsume.sinks.fenced_delta import FencedDeltaSink
from coopconsume.sinks.letters import DeadLetterTable, decisions_table
from coopconsume.sinks.purgatory import Purgatory
from coopconsume.state.changelog import Changelog
from coopconsume.state.rows import Origin
from coopconsume.state.schema import StateSchema
from coopconsume.worker.report import DeadLetter
from tests.object_stores import KINDS, Bucket, behind_proxy, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from coopconsume.admin.dead_letters.stored import Letter

    #: What is asked of tables, each with its name.
    Calls = Iterator[tuple[str, Callable[[], object]]]

P0 = ("t", 0)
_ORIGIN = Origin("id-of-t", 0)
_ROW = pa.schema([("key", pa.string()), ("value", pa.string())])
#: Seconds that each request takes at least.
_LEAST = 0.02


@contextmanager
def _ticks(file: Path) -> Iterator[str]:
    """Run a thread that writes its monotonic time to a file."""
    file.write_bytes(bytes(8))
    is_over = threading.Event()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 8) as last:

        def tick() -> None:
            while not is_over.wait(0.002):
                last[:8] = struct.pack("d", time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        try:
            yield str(file)
        finally:
            is_over.set()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_call_holds_the_interpreter_while_a_store_answers(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a driver and of commands: commit table, outputs, letters, state, queue, registry.

    Calls of different tables run at the same time, as there are many requests.
    """
    log = tmp_path / "proxy"
    with (
        serve(kind, tmp_path) as bucket,
        _ticks(tmp_path / "ticks") as ticks,
        behind_proxy(bucket, log, ticks=ticks, patience=10.0) as options,
        behind_proxy(bucket, tmp_path / "control", ticks=ticks, patience=0.5) as control,
    ):
        # Outputs, dead letters and states have the options of the environment alone.
        for name, value in options.items():
            monkeypatch.setenv(name, value)

        def run(calls: Calls) -> None:
            for name, call in calls:
                began = time.monotonic()
                call()
                assert time.monotonic() - began >= _LEAST, f"{name} asked for nothing"
                assert "held" not in log.read_text(), (name, log.read_text())

        groups = [_commits, _opening, _outputs, _exactly_once, _letters, _state, _others]
        with ThreadPoolExecutor(len(groups)) as pool:
            for _ in pool.map(lambda group: run(group(bucket)), groups):
                pass
        # A call that is known to hold it is seen.
        DeltaTable.is_deltatable(bucket.uri("commits"), storage_options=dict(control))
        assert "held GET" in (tmp_path / "control").read_text()


def _commits(bucket: Bucket) -> Calls:
    target = bucket.uri("commits")
    stores: list[CommitStore] = []

    def opened(**more: Any) -> None:
        stores.append(CommitStore.open(target, segment_versions=2, **more))

    yield "create", opened
    yield "open", lambda: opened(create=False)
    store, other = stores
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)

    def commit(by: CommitStore, offset: int) -> None:
        by.commit("g", epoch, "m", {P0: [(offset, offset)]})

    for offset in range(0, 8, 2):
        yield "append", lambda at=offset: commit(store, at)
    yield "read on", lambda: other.state("g")
    yield "append behind others", lambda: (commit(store, 10), commit(other, 12))
    yield "snapshot", store.compact
    engine: Any = store._engine
    yield "checkpoint", engine._checkpoint
    yield "remove entries", lambda: engine.tidy(3)
    yield "vacuum", lambda: store.vacuum(retention_hours=1)


def _opening(bucket: Bucket) -> Calls:
    target = bucket.uri("described")
    stores: list[CommitStore] = []
    store = CommitStore.open(target, segment_versions=2)
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)
    for offset in range(0, 8, 2):
        store.commit("g", epoch, "m", {P0: [(offset, offset)]})
    yield "open", lambda: stores.append(CommitStore.open(target, create=False))
    yield "history", lambda: stores[-1].history("g")
    yield "earlier commits", lambda: stores[-1].commits_at("g", 4)
    yield "check", lambda: check_table(target)
    yield "move", lambda: move_table(target, f"{target}-moved", quiet_seconds=0)


def _outputs(bucket: Bucket) -> Calls:
    for name, kind in (("outputs", OutputTable), ("merged", MergeTable)):
        path, tables = bucket.uri(name), list[Any]()
        yield "open", lambda t=tables, k=kind, p=path: t.append(k(p, _ROW))
        for number in range(2):
            yield "write", lambda t=tables, n=number: t[0].write(_rows(n))
        yield "open again", lambda k=kind, p=path: k(p, _ROW)
    store = CommitStore.open(bucket.uri("of-outputs"))
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)
    store.commit("g", epoch, "m", {P0: [(0, 0)]}, commit_id="run-0")
    path = bucket.uri("outputs")
    found: list[pa.Table] = []
    yield "read", lambda: found.append(committed_rows(path, store.target, "g"))
    assert found[0].num_rows == 1


def _exactly_once(bucket: Bucket) -> Calls:
    tables: list[Purgatory] = []
    yield "open", lambda: tables.append(Purgatory(bucket.uri("waiting"), ("g", "t")))
    yield "write", lambda: tables[0].write(_rows(0), _ROW)
    yield "write more", lambda: tables[0].write(_rows(1), _ROW)
    found: list[pa.Table] = []
    yield (
        "read",
        lambda: found.append(tables[0].chunk(_ORIGIN, 0, 2, 9, lambda _: True).rows),
    )
    assert found[0].num_rows == 2
    yield "forget", lambda: tables[0].forget(_ORIGIN, 1)


def _letters(bucket: Bucket) -> Calls:
    path, tables = bucket.uri("letters"), list[DeadLetterTable]()
    letter = DeadLetter("t", 0, 0, b"k", None, 0, (), 3, "reason", "trace")
    yield "open", lambda: tables.append(DeadLetterTable(path))
    yield "append", lambda: tables[0].append([letter], {"t": "id"}, "run-0")
    found: list[Letter] = []
    stored = _TableStore(path)
    yield "read", lambda: found.extend(stored.read(lambda _: True, whole=True))
    assert len(found) == 1
    # Marks of an earlier version have fewer columns.
    old = pa.schema([*list(_MARKS)[:2], *ORIGIN])
    write_deltalake(decisions_table(path), old.empty_table())
    yield "mark", lambda: stored.mark(found, "discard", DecidedBy("me", "", 1))


def _state(bucket: Bucket) -> Calls:
    path, schema = bucket.uri("state"), StateSchema(pa.int64())
    logs: list[Changelog] = []
    whole = [(0, MAX_KEY_HASH)]

    def change(offset: int) -> pa.Table:
        row = {
            "key": b"k", "value": offset, "_topic": "t", "_topic_id": _ORIGIN.topic_id,
            "_partition": 0, "_offset": offset, "_key_hash": 1, "_commit": f"run-{offset}",
        }  # fmt: skip
        return pa.Table.from_pylist([row], schema.changelog)

    def everybody(_: str) -> bool:
        return True

    yield "open", lambda: logs.append(Changelog(path, schema))
    log = logs[0]
    yield "belong", lambda: log.belong_to("g")
    for offset in range(3):
        yield "append", lambda at=offset: log.append(change(at))
    complete = log.version
    assert complete > 0
    yield "snapshot", lambda: log.write_snapshot(_ORIGIN, complete, everybody)
    yield "size of a version that it has not read", lambda: log.size(_ORIGIN, complete - 1)
    yield "trim", lambda: log.trim(_ORIGIN, 2, complete)
    known: list[bool] = []
    yield "notes", lambda: known.append(log.is_complete(_ORIGIN, complete - 1, log.version))
    assert known == [False]
    rows: list[pa.Table] = []
    yield "read", lambda: rows.append(log.changes(_ORIGIN, log.version, whole))
    assert rows[0].num_rows == 1
    yield "restore", lambda: log.snapshots.rows(_ORIGIN, whole)
    yield "set back", lambda: log.set_back(_ORIGIN, 0, everybody, 1)


def _others(bucket: Bucket) -> Calls:
    stores: list[DeltaStore] = []
    yield "open a registry", lambda: stores.append(DeltaStore(bucket.uri("registry")))
    registry = OwnershipRegistry(stores[0], lease=0)
    yield "own", lambda: registry.own("g", {"r": 1})
    yield "history of a registry", lambda: registry.history("g", "r")
    yield "release", registry.close
    queue = TableLog("g/t", bucket.uri("queue"))
    yield "open a queue", lambda: (queue.prepare(create=True), queue.begin_reading())
    yield "write", lambda: queue.write([encode(ReplicaRow("release", "a", 1))])
    read: list[object] = []
    yield "read", lambda: read.extend(queue.read(30.0) or ())
    assert len(read) == 1
    yield "delete", lambda: queue.delete_before(0)
    path = bucket.uri("batches")
    first = CommitProperties(custom_metadata={"userMetadata": '{"coopconsume.fenced.j": "id"}'})
    write_deltalake(path, pa.table({"number": [1]}), commit_properties=first)
    sink = FencedDeltaSink(path, "j", 1)
    yield "mark", sink.mark
    streams: list[str | None] = []
    yield "first stream", lambda: streams.append(sink._first_stream())
    assert streams == ["id"]


def _rows(offset: int) -> Outputs:
    """What a handler returned for one record."""
    row = pa.table({"key": ["k"], "value": ["v"]}).cast(_ROW)
    row = row.append_column("_part", pa.array([0], pa.int32()))
    row = row.append_column("_offset", pa.array([offset], pa.int64()))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    done = {P0: OffsetRanges([(offset, offset)])}
    topic_ids = {"t": _ORIGIN.topic_id}
    return Outputs([((P0,), sink.getvalue().to_pybytes())], done, topic_ids, f"run-{offset}")
