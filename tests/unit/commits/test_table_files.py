"""The files of a table: how they are created, what is synced, and which settings a store gets."""

from __future__ import annotations

import os
import resource
import socket
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from commits import (
    CommitLogUnavailable,
    CommitStore,
    CommitTableFormat,
    CorruptCommitLog,
    OffsetRanges,
    Pending,
)
from commits.entry_rows import MOST_BYTES, rows_of_plain, rows_to_plain, with_versions
from commits.errors import UnsupportedTarget
from commits.rows import SCHEMA, Event, Part, encode
from commits.table_files import DiskFiles, StoreFiles, _settings
from tests.commit_suite import P0, P1, as_written_before, opened, seen


def test_a_file_is_created_once(tmp_path: Path) -> None:
    """The second one gets to know that it is there; nothing else is left in the folder."""
    files = DiskFiles(str(tmp_path))
    files.prepare()
    assert files.create("_delta_log/1", b"one")
    assert not files.create("_delta_log/1", b"two")
    assert files.read("_delta_log/1") == b"one"
    assert files.names("_delta_log") == ["1"]
    assert files.names("_delta_log/none") == []
    assert (files.has("_delta_log/1"), files.has("_delta_log/2")) == (True, False)
    with pytest.raises(FileNotFoundError):
        files.read("_delta_log/2")
    with pytest.raises(FileNotFoundError):  # of a disk that is not mounted
        DiskFiles(str(tmp_path / "away")).create("_delta_log/1", b"one")
    assert not (tmp_path / "away").exists()


def test_an_append_of_many_files_opens_few_at_once(tmp_path: Path) -> None:
    """As one to a table with many partitions; all are there before its entry."""
    files = DiskFiles(str(tmp_path))
    files.prepare()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    written = {f"by={number}/rows": b"%d" % number for number in range(300)}
    taken = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 200, before[1]))
    try:
        assert files.create("_delta_log/1", b"entry", written)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert all(files.read(name) == data for name, data in written.items())


def test_drafts_of_killed_processes_are_removed_after_a_day(tmp_path: Path) -> None:
    """A younger one may become an entry yet."""
    store = CommitStore.open(tmp_path / "commits")
    folder = tmp_path / "commits" / "_delta_log"
    old, young = folder / ".1.json.a.tmp", folder / ".1.json.b.tmp"
    for draft in (old, young):
        draft.write_text("{")
    os.utime(old, (0, os.stat(young).st_mtime - 90_000))
    opened(store)
    store.compact()
    opened(store, previous=store.current_epoch("g"))
    store.compact()
    assert (old.exists(), young.exists()) == (False, True)
    assert CommitStore.open(tmp_path / "commits").current_epoch("g") == store.current_epoch("g")


@pytest.mark.parametrize("synced", [True, False])
def test_what_is_written_is_synced_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool
) -> None:
    """Rows, their folders and the entry are safe before it appears, then its folder; or nothing.

    The disk is waited for once for all that is safe before: each waits until the others began.
    """
    steps: list[str] = []
    fsync, link, together = os.fsync, os.link, threading.Barrier(4, timeout=60)

    def noted(handle: int) -> None:
        name = Path(f"/proc/self/fd/{handle}").resolve().name.split(".")[0] or "draft"
        if name != "_delta_log":
            together.wait()
        fsync(handle)
        steps.append(name)

    def linked(source: Any, target: Any) -> None:
        steps.append("entry is there")
        link(source, target)

    files = DiskFiles(str(tmp_path))
    files.is_synced = synced
    files.prepare()
    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(os, "link", linked)
    files.create("_delta_log/1", b"entry", {"segment=0/rows": b"rows"})
    assert (tmp_path / "segment=0/rows").read_bytes() == b"rows"
    before = sorted(["rows", tmp_path.name, "segment=0", "draft"]) if synced else []
    assert sorted(steps[: len(before)]) == before
    assert steps[len(before) :] == ["entry is there", *(["_delta_log"] if synced else [])]


def test_a_commit_behind_others_waits_for_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their entries are read before its own is written, which would come too late."""
    stores = [CommitStore.open(tmp_path / "commits") for _ in range(4)]
    epochs = [
        store.open_epoch(f"g{n}", {"m": [P0]}, previous=None) for n, store in enumerate(stores)
    ]
    for group, (store, epoch) in enumerate(zip(stores, epochs, strict=True)):
        store.commit(f"g{group}", epoch, "m", {P0: [(0, 0)]})
    created: list[str] = []
    create = DiskFiles.create

    def noted(files: DiskFiles, name: str, *args: Any) -> bool:
        created.append(name)
        return create(files, name, *args)

    monkeypatch.setattr(DiskFiles, "create", noted)
    result = stores[0].commit("g0", epochs[0], "m", {P0: [(1, 1)]})
    assert result[P0].stable_offset == 2
    assert created == [f"_delta_log/{stores[0].version():020d}.json"]


@pytest.mark.parametrize("content", [b"", b'{"commitInfo":{"oper', b"\0" * 300])
def test_an_entry_that_a_loss_of_power_has_torn_is_damage_with_a_remedy(
    tmp_path: Path, content: bytes
) -> None:
    """For who is reading on, and for who opens the table."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    reader = CommitStore.open(tmp_path / "commits")
    store.commit("g", epoch, "m", {P0: [(0, 0)]})
    entry = tmp_path / "commits" / "_delta_log" / f"{store.version():020d}.json"
    entry.write_bytes(content)
    for look in (lambda: reader.state("g"), lambda: CommitStore.open(tmp_path / "commits")):
        with pytest.raises((CorruptCommitLog, CommitLogUnavailable)) as caught:
            look()
        assert isinstance(caught.value, CorruptCommitLog), caught.value
        assert "coopconsume store repair" in str(caught.value)


def test_a_table_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its entries have neither rows nor digests; both versions write to it in turn."""
    path = tmp_path / "commits"
    store = CommitStore.open(path)
    epoch = opened(store)
    for n in range(60):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]}, pending={P1: [Pending(5, n)]})
    expected = seen(store)
    as_written_before(path)
    before = CommitStore.open(path)
    assert seen(before) == expected
    event = Event("commit", "old-1", "", "g", epoch, member="m",
                  parts=(Part("t", 0, "id", offsets=OffsetRanges([(999, 999)])),))  # fmt: skip
    write_deltalake(path, encode([event], 0), mode="append")  # as earlier versions append
    before.commit("g", epoch, "m", {P0: [(1, 1)]})
    write_deltalake(path, encode([event], 0), mode="append")
    assert seen(before) == seen(CommitStore.open(path))
    assert "old-1" in before.counted_commits("g")
    assert DeltaTable(path).to_pyarrow_table().num_rows == 1 + 2 * 60 + 3


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"delta.enableInCommitTimestamps": "true"}, "delta.enableInCommitTimestamps=true"),
        ({"delta.columnMapping.mode": "name"}, "columnMapping"),
        ({"delta.appendOnly": "true"}, "delta.appendOnly=true"),
        ({"delta.constraints.few": "format < 9"}, "the constraint few"),
    ],
)
def test_a_table_that_asks_more_of_a_writer_is_refused(
    tmp_path: Path, change: dict[str, str], says: str
) -> None:
    """At its opening, and by a running store as it reads the change."""
    path = tmp_path / "commits"
    store = CommitStore.open(path)
    epoch = opened(store)
    entry = path / "_delta_log" / f"{0:020d}.json"
    newest = path / "_delta_log" / f"{store.version() + 1:020d}.json"
    lines = [line for line in entry.read_text().splitlines() if "metaData" in line]
    for name, value in change.items():
        lines = [
            line.replace('"configuration":{', f'"configuration":{{"{name}":"{value}",')
            for line in lines
        ]
    newest.write_text("\n".join(['{"commitInfo":{"operation":"SET TBLPROPERTIES"}}', *lines]))
    with pytest.raises(CommitTableFormat, match=says):
        CommitStore.open(path)
    for _ in range(2):
        with pytest.raises(CommitTableFormat, match=says):
            store.commit("g", epoch, "m", {P0: [(0, 0)]})


_OFFSETS = st.lists(st.integers(0, 2**62), max_size=4, unique=True)


@given(st.lists(st.tuples(st.text(max_size=5), _OFFSETS, st.booleans()), min_size=1, max_size=5))
def test_the_rows_in_an_entry_are_those_in_the_file(
    drawn: list[tuple[str, list[int], bool]],
) -> None:
    """Whatever is in them."""
    events = [
        Event(
            "commit", f"id-{n}", "c", text, member=text, detail={"x": text} if flag else {},
            parts=(Part("t", n, pending=tuple(Pending(at, n, 3, 4, text) for at in offsets)),),
        )
        for n, (text, offsets, flag) in enumerate(drawn)
    ]  # fmt: skip
    rows = encode(events, 0)
    plain = rows_to_plain(rows)
    assert plain is not None
    other = encode([Event("setting", "s", detail={"x": "y"})], 0)
    plains = {7: plain, 9: rows_to_plain(other) or {}, 10: plain}
    parts = [with_versions(one, {v: len(one)}) for v, one in ((7, rows), (9, other), (10, rows))]
    found = rows_of_plain(plains, SCHEMA)
    assert found.equals(pa.concat_tables(parts).cast(found.schema).combine_chunks())


def test_entries_with_too_few_and_too_many_values_do_not_make_up_for_each_other() -> None:
    """One that was cut would give its rows to the next one."""
    plain = rows_to_plain(encode([Event("setting", "s", detail={"x": "y"})] * 2, 0)) or {}
    cut = {name: values[:1] for name, values in plain["columns"].items()}
    longer = {name: [*values, values[0]] for name, values in plain["columns"].items()}
    with pytest.raises(ValueError, match="should have 2 rows and has 1"):
        rows_of_plain({7: plain | {"columns": cut}, 8: plain | {"columns": longer}}, SCHEMA)


def test_rows_that_are_too_many_for_an_entry_are_in_the_file_alone() -> None:
    """A reader of another group has to read an entry, too."""
    event = Event("setting", "s", detail={"x": "y" * MOST_BYTES})
    assert rows_to_plain(encode([event], 0)) is None


def test_a_setting_turns_off_the_sync_of_commits(tmp_path: Path) -> None:
    """Of commits alone, for all handles, and with the next one."""
    store = CommitStore.open(tmp_path / "commits", segment_versions=2)
    other = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    with mock.patch("os.fsync") as sync:
        for n, setting in enumerate([True, False, None]):
            store.set_setting("syncCommits", setting)
            other.settings()
            for offset, one in ((2 * n, store), (2 * n + 1, other)):
                sync.reset_mock()
                one.commit("g", epoch, "m", {P0: [(offset, offset)]}, maintain=False)
                assert bool(sync.called) is (setting is not False)
        store.set_setting("syncCommits", value=False)
        for synced in (store.compact, lambda: opened(store, previous=epoch)):
            store.commit("g", epoch, "m", {P1: [(1, 1)]}, maintain=False, too_old="report")
            sync.reset_mock()
            synced()
            assert sync.called
    with pytest.raises(ValueError, match="syncCommits must be true or false, not 1"):
        store.set_setting("syncCommits", 1)


def test_settings_of_a_store_keep_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options and environment of deltalake: of the store, of its client, and of repeats."""
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    given_ = {"AWS_ENDPOINT_URL": "http://x", "timeout": "2s", "max_retries": "1"}
    config, more = _settings(given_)
    assert config == {"AWS_ENDPOINT_URL": "http://x"}
    assert more["client_options"] == {
        "timeout": "2s", "connect_timeout": "20s", "allow_http": "true",
    }  # fmt: skip
    assert more["retry_config"]["max_retries"] == 1
    twice = {"region": "a", "AWS_REGION": "b"}
    StoreFiles(
        "s3://bucket/table",
        {**twice, **given_, "AWS_S3_LOCKING_PROVIDER": "dynamodb"},
    )
    # obstore knows the others, in which deltalake could write no checkpoint.
    for place in ("hdfs", "https", "http", "memory", "s3n"):
        with pytest.raises(UnsupportedTarget, match=f"no storage for {place}://"):
            StoreFiles(f"{place}://account.blob.core.windows.net/container/table", {})
    with pytest.raises(UnsupportedTarget, match="Account must be specified"):
        StoreFiles("az://container/table", {})


_PLACE = {"AWS_REGION": "us-east-1", "AWS_SKIP_SIGNATURE": "true", "AWS_ALLOW_HTTP": "true"}


def test_settings_of_repeats_are_those_of_deltalake() -> None:
    """Each of its options has its effect; without them a request has its limits."""
    given_ = {
        "max_retries": "3",
        "retry_timeout": "1m 30s",
        "backoff_config.init_backoff": "50ms",
        "backoff_config.max_backoff": "2 seconds",
        "backoff_config.base": "2.5",
    }
    assert StoreFiles("s3://bucket/table", _PLACE | given_)._store.retry_config == {
        "max_retries": 3,
        "retry_timeout": timedelta(seconds=90),
        "backoff": {
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(seconds=2),
            "base": 2.5,
        },
    }
    usual = StoreFiles("s3://bucket/table", _PLACE)._store
    assert usual.retry_config["retry_timeout"] == timedelta(seconds=60)
    assert usual.client_options["timeout"] == usual.client_options["connect_timeout"] == "20s"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_retries", "many"),
        ("max_retries", "-1"),
        ("max_retries", "9" * 30),
        ("retry_timeout", "5"),
        ("retry_timeout", "1 lightyear"),
        ("retry_timeout", "soon 5s"),
        ("backoff_config.init_backoff", ""),
        ("backoff_config.max_backoff", "-1s"),
        ("backoff_config.base", "1"),
        ("backoff_config.base", "two"),
        ("timeout", "5"),
        ("AWS_ALLOW_HTTP", "perhaps"),
    ],
)
def test_a_setting_of_a_store_that_makes_no_sense_is_named(name: str, value: str) -> None:
    """By its name and what was found, before a request is made."""
    with pytest.raises(UnsupportedTarget) as caught:
        StoreFiles("s3://bucket/table", _PLACE | {name: value})
    assert f'"{value}"' in str(caught.value)
    assert f"change {name}" in str(caught.value)


def test_a_store_that_refuses_is_asked_again_as_often_as_is_said() -> None:
    """And not for longer than is said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        place = _PLACE | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{listener.getsockname()[1]}"}
        asked = []

        def refuse() -> None:
            with suppress(OSError):
                while True:
                    one, _ = listener.accept()
                    asked.append(one.recv(10_000))
                    one.sendall(
                        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                    )
                    one.close()

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        quick = {"backoff_config.init_backoff": "1ms", "backoff_config.max_backoff": "2ms"}
        files = StoreFiles("s3://bucket/table", place | quick | {"max_retries": "4"})
        with pytest.raises(OSError, match="503"):
            files.read("a")
        assert len(asked) == 5
        before = len(asked)
        short = {"max_retries": "100000000", "retry_timeout": "300ms"}
        with pytest.raises(OSError, match="503"):
            StoreFiles("s3://bucket/table", place | quick | short).read("a")
        assert len(asked) > before
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize(
    "line",
    [
        '{"add":null}',
        '{"commitInfo":null}',
        '{"commitInfo":{"operation":"WRITE","operationParameters":"x"}}',
    ],
)
def test_an_entry_of_odd_json_is_damage(tmp_path: Path, line: str) -> None:
    """And no error of Python's."""
    store = CommitStore.open(tmp_path / "commits")
    opened(store)
    newest = tmp_path / "commits" / "_delta_log" / f"{store.version() + 1:020d}.json"
    newest.write_text(line)
    for look in (lambda: store.state("g"), lambda: CommitStore.open(tmp_path / "commits")):
        with pytest.raises(CorruptCommitLog):
            look()


def test_a_forked_process_does_not_commit(tmp_path: Path) -> None:
    """Its commits would have the ids of the other process's next ones, and count as repeats."""
    store = CommitStore.open(tmp_path / "commits")
    epoch = opened(store)
    child = os.fork()
    if child == 0:
        try:
            store.commit("g", epoch, "m", {P0: [(50, 50)]})
        except UnsupportedTarget as error:
            os._exit(7 if "before a fork" in str(error) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store.commit("g", epoch, "m", {P0: [(51, 51)]})[P0].committed == 1
    assert CommitStore.open(tmp_path / "commits").state("g")[P0].ranges.pairs() == [(51, 51)]
