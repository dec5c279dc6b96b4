"""The commit store on S3 and Azure, as moto and Azurite play them: conditional puts decide."""

from __future__ import annotations

import random
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector

from commits import (
    CommitLogUnavailable,
    CommitStore,
    PartitionCommits,
    Pending,
    UnsupportedTarget,
    check_table,
)
from commits.place_trial import try_place
from commits.places import mount_kind, refuse_unsafe_spark
from commits.table_appender import TableAppender
from commits.table_files import StoreFiles
from coopconsume.queue.rows import ReplicaRow, encode
from coopconsume.queue.table_log import TableLog
from coopconsume.testing.local.process import suspend
from tests.commit_suite import check_behaviour
from tests.object_stores import KINDS, Bucket, behind_proxy, serve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from coopconsume.queue.log_client import LogRecord

P0, P1 = ("t", 0), ("t", 1)


# Most tests run on each kind of store.
@pytest.fixture(scope="module", params=KINDS)
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    """A bucket of a server of its own."""
    with serve(request.param, tmp_path_factory.mktemp("store")) as found:
        yield found


@pytest.fixture
def options(bucket: Bucket) -> dict[str, str]:
    """Storage options of the server."""
    return bucket.options


on_s3 = pytest.mark.parametrize("bucket", ["s3"], indirect=True)
on_azure = pytest.mark.parametrize("bucket", ["azure"], indirect=True)


def test_a_bucket_keeps_commits_as_a_disk_does(bucket: Bucket, options: dict[str, str]) -> None:
    """Commits, snapshots, recovery and vacuum; a table that is there is opened again."""
    target = bucket.uri("commits")
    store = CommitStore.open(target, storage_options=options, segment_versions=5,
                             snapshot_commits=5)  # fmt: skip
    epoch = store.open_epoch("g", {"m": [P0, P1]}, previous=None)
    for n in range(12):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]}, pending={P1: [Pending(n)]})
    assert len(store._engine.compactions()) >= 2
    again = CommitStore.open(target, storage_options=options, create=False)
    assert again.id == store.id
    assert again.state("g") == store.state("g")
    assert again.state("g")[P0].ranges.range_count == 11
    assert again.pending("g") == store.pending("g")
    assert store.vacuum(retention_hours=1) == 0
    assert check_table(target, storage_options=options).is_sound


def test_a_table_in_a_bucket_behaves_as_all_do(bucket: Bucket, options: dict[str, str]) -> None:
    """The suite that tables on paths and in catalogs pass, too."""
    check_behaviour(partial(CommitStore.open, bucket.uri("suite"), storage_options=options))


def test_a_commit_is_two_requests_and_a_look_is_one(
    bucket: Bucket, options: dict[str, str]
) -> None:
    """For a member alone; one more for each entry of others."""
    target = bucket.uri("requests")
    requests_of = bucket.requests_of
    assert len(requests_of(lambda: CommitStore.open(target, storage_options=options))) <= 10
    store, other = (CommitStore.open(target, storage_options=options) for _ in range(2))
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)
    offsets = iter(range(0, 1000, 2))

    def commit(of: CommitStore = store) -> object:
        at = next(offsets)
        return of.commit("g", epoch, "m", {P0: [(at, at)]})

    commit()
    for _ in range(3):
        assert requests_of(commit) == ["PUT", "PUT"]
        assert requests_of(lambda: store.state("g")) == ["GET"]
    other.state("g")
    commit(), commit()
    assert requests_of(lambda: other.state("g")) == ["GET"] * 3
    commit()
    assert requests_of(lambda: commit(other)) == ["PUT", "PUT", "GET", "PUT"]

    def opened() -> list[str]:
        return requests_of(lambda: CommitStore.open(target, storage_options=options, create=False))

    assert len(found := opened()) == 2 + store.version() + 1, found
    store.compact()
    # What points at the checkpoint, a listing, the checkpoint, the snapshot and its entry.
    assert len(found := opened()) == 5, found
    commit(), commit()
    assert len(found := opened()) == 5 + 2, found


@pytest.mark.parametrize("by", [None, ["text"]])
def test_an_append_to_an_output_table_is_two_puts_and_a_look(
    bucket: Bucket, options: dict[str, str], by: list[str] | None
) -> None:
    """Whatever the text of a partition is; readers find its file. A new handle opens the table."""
    uri = bucket.uri(f"outputs-{len(by or ())}")
    rows = pa.table({"number": [1], "text": ["ü =50%/x"]})
    write_deltalake(uri, rows, storage_options=options, partition_by=by)
    appender = TableAppender(uri, options)
    assert appender.append(rows) == 1
    for version in (2, 3):
        asked = bucket.requests_of(partial(appender.append, rows))
        assert DeltaTable(uri, storage_options=options).version() == version
        assert sorted(asked) == ["GET", "PUT", "PUT"]
        assert asked[-1] == "PUT"
    table = DeltaTable(uri, storage_options=options)
    assert table.to_pyarrow_table() == pa.concat_tables([rows] * 4)
    assert not table.vacuum(0, enforce_retention_duration=False, full=True)


def test_a_large_file_is_written_in_parts(bucket: Bucket, options: dict[str, str]) -> None:
    """As that of a snapshot may be."""
    files, data = StoreFiles(bucket.uri("large"), options), random.Random(1).randbytes(11 << 20)
    assert len(bucket.requests_of(partial(files.write, "one", data))) > 2
    assert files.read("one") == data


def test_an_answer_that_is_lost_is_no_second_commit(
    bucket: Bucket, options: dict[str, str], tmp_path: Path
) -> None:
    """The entry is there: by its id the commit is found when it is repeated."""
    target = bucket.uri("lost")
    epoch = CommitStore.open(target, storage_options=options).open_epoch(
        "g", {"m": [P0]}, previous=None
    )
    entry = "_delta_log/00000000000000000002.json"
    with behind_proxy(bucket, tmp_path / "proxy", loses=entry) as lossy:
        store = CommitStore.open(target, storage_options=lossy)
        for _ in range(2):
            with suppress(CommitLogUnavailable):  # whether the library asks again is its affair
                store.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id="run-1")
        assert store.state("g") == {P0: PartitionCommits(5)}
    assert f"lost {entry}" in (tmp_path / "proxy").read_text()
    found = CommitStore.open(target, storage_options=options)
    assert found.state("g") == {P0: PartitionCommits(5)}
    commits = [one for one in found.history("g") if one["kind"] == "commit" and one["counted"]]
    assert [(one["id"], one["version"]) for one in commits] == [("run-1", 2)]


def test_an_endpoint_without_encryption_has_to_be_allowed(
    bucket: Bucket, options: dict[str, str]
) -> None:
    """The error names the option."""
    encrypted = {name: value for name, value in options.items() if "allow" not in name.lower()}
    with pytest.raises(CommitLogUnavailable, match="set the option allow_http=true"):
        CommitStore.open(bucket.uri("plain"), storage_options=encrypted)
    CommitStore.open(bucket.uri("plain"), storage_options=encrypted | {"allow_http": "true"})


@on_azure
@pytest.mark.parametrize("by", ["options", "prefixed", "environment", "emulator", "signature"])
def test_options_of_azure_are_those_of_deltalake(
    bucket: Bucket, options: dict[str, str], by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, snapshots and a checkpoint of `deltalake`: the same options reach the store."""
    bare = {re.sub("^azure_(storage_)?", "", n.lower()): value for n, value in options.items()}
    key, account = bare["account_key"], bare["account_name"]
    signature = {name: value for name, value in bare.items() if value != key}
    given = {
        "options": bare,
        "prefixed": options,
        "environment": {},
        "emulator": {"use_emulator": "true"},
        "signature": signature | {"sas_token": bucket.signed_access},
    }[by]
    if by == "environment":
        for name, value in options.items():
            monkeypatch.setenv(name, value)
    if by == "emulator":
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", bucket.address)
    path = f"azure-{by}"
    store = CommitStore.open(bucket.uri(path), storage_options=given, segment_versions=2)
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)
    for n in range(5):
        store.commit("g", epoch, "m", {P0: [(2 * n, 2 * n)]})
    store.compact()
    files = StoreFiles(bucket.uri(path), given)
    assert any("checkpoint" in name for name in files.names("_delta_log"))
    for uri in (
        f"abfss://bucket@{account}.dfs.core.windows.net/{path}",
        f"azure://bucket/{path}",
    ):
        assert CommitStore.open(uri, storage_options=given, create=False).id == store.id
        rows = DeltaTable(uri, storage_options=given).to_pyarrow_table()
        assert "snapshot" in rows["kind"].to_pylist()


@on_azure
def test_an_error_of_a_store_has_no_signature(bucket: Bucket, options: dict[str, str]) -> None:
    """Azure's is a part of the address of each request, and errors have that."""
    signed = bucket.signed_access.replace("sig=", "sig=A")
    del options["AZURE_STORAGE_ACCOUNT_KEY"]
    with pytest.raises(CommitLogUnavailable, match="403 Forbidden") as caught:
        CommitStore.open(bucket.uri("secret"), storage_options=options | {"sas_token": signed})
    assert signed.partition("sig=")[2][:20] not in str(caught.value)


@on_s3
def test_credentials_may_be_those_of_a_profile(
    options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As deltalake takes them; without boto3 the error says what to install."""
    keys = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    for name in keys:
        monkeypatch.delenv(name, raising=False)
    shared = tmp_path / "credentials"
    shared.write_text("[mine]\naws_access_key_id = a\naws_secret_access_key = b\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(shared))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    known = {name: value for name, value in options.items() if name not in keys}
    files = StoreFiles("s3://bucket/profile", known)
    assert files.create("one", b"1")
    assert files.read("one") == b"1"
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(UnsupportedTarget, match="pip install boto3"):
        StoreFiles("s3://bucket/profile", known)


def test_the_entries_of_a_bucket_are_read_side_by_side(
    bucket: Bucket, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes as long as an answer of the store; only the first one is awaited alone."""
    target = bucket.uri("beside")
    store = CommitStore.open(target, storage_options=options)
    epoch = store.open_epoch("g", {"m": [P0]}, previous=None)
    for n in range(3):
        store.commit("g", epoch, "m", {P0: [(n, n)]})
    both, read, names = threading.Barrier(2, timeout=60), StoreFiles.read, []

    def beside(files: StoreFiles, name: str) -> bytes:
        names.append(name)
        if name.endswith(("3.json", "4.json")):
            both.wait()
        return read(files, name)

    monkeypatch.setattr(StoreFiles, "read", beside)
    assert CommitStore.open(target, storage_options=options).state("g") == store.state("g")
    assert {name[-6:] for name in names} >= {"0.json", "3.json", "4.json"}


def test_a_bucket_that_does_not_answer_is_unavailable(
    bucket: Bucket, options: dict[str, str]
) -> None:
    """Every call says so, none speaks of damage; the commit is repeated with its id later.

    The server stops after a commit.
    """
    server = bucket.server
    quick = {"timeout": "500ms", "connect_timeout": "500ms", "max_retries": "0"}
    target, known = bucket.uri("outage"), {**options, **quick}
    with pytest.raises(CommitLogUnavailable, match="open failed"):
        CommitStore.open(bucket.uri("commits", "no-such-bucket"), storage_options=options)
    epoch = CommitStore.open(target, storage_options=options).open_epoch(
        "g", {"m": [P0]}, previous=None
    )
    store = CommitStore.open(target, storage_options=known)
    engine: Any = store._engine
    append = engine.append

    def stopped_after(*args: Any, **more: Any) -> int:
        version = append(*args, **more)
        suspend(server.pid)
        return int(version)

    def commit(commit_id: str = "run-2") -> object:
        return store.commit("g", epoch, "m", {P0: [(0, 4)]}, commit_id=commit_id)

    calls: list[Callable[[], object]] = [
        commit, lambda: store.state("g"), store.compact,
        lambda: CommitStore.open(target, storage_options=known),
        lambda: check_table(target, storage_options=known),
    ]  # fmt: skip
    engine.append = stopped_after
    try:
        commit("run-1")  # the answer needs no other request
        engine.append = append
        for call in calls:
            with pytest.raises(CommitLogUnavailable) as caught:
                call()
            assert caught.value.retriable
            assert not {"repair", "damaged"} & set(str(caught.value).split())
    finally:
        server.send_signal(signal.SIGCONT)
    assert CommitStore.open(target, storage_options=options).state("g") == {P0: PartitionCommits(5)}
    commit("run-1")
    assert store.state("g") == {P0: PartitionCommits(5)}


def test_writers_of_a_bucket_lose_nothing(bucket: Bucket, options: dict[str, str]) -> None:
    """Four at once: of two that make the same version one has to take the next."""
    target = bucket.uri("four")
    epoch = CommitStore.open(target, storage_options=options).open_epoch(
        "g", {member: [P0] for member in "abcd"}, previous=None
    )
    barrier = threading.Barrier(4)

    def write(lane: int) -> None:
        store = CommitStore.open(target, storage_options=options)
        barrier.wait()
        for offset in range(lane, 24, 4):
            store.commit("g", epoch, "abcd"[lane], {P0: [(offset, offset)]})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    found = CommitStore.open(target, storage_options=options)
    assert found.state("g") == {P0: PartitionCommits(24)}
    assert found._engine.version == 25


def test_the_log_of_a_queue_may_be_in_a_bucket(
    bucket: Bucket, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two writers have one order; a later reader begins with the snapshot."""
    logs = [TableLog("g/t", bucket.uri("holds"), options) for _ in range(3)]
    one, two, late = logs
    for log in (one, two):
        log.prepare(create=True)
    start, _ = one.begin_reading()
    assert start == 0
    rows = [encode(ReplicaRow("release", "a", number)) for number in range(6)]
    for number, log in enumerate((one, two, one)):
        log.write(rows[2 * number : 2 * number + 2])
    seen: list[LogRecord] = []
    while len(seen) < len(rows):
        seen += one.read(5.0) or ()
    assert [value for _, _, value in seen] == rows
    snapshot = encode(ReplicaRow("snapshot", "a", positions=(seen[3][0] + 1,), state={}))
    two.write([snapshot])
    late.prepare(create=False)
    late.begin_reading()
    found = [record for _ in range(2) for record in late.read(5.0) or ()]
    assert [value for _, _, value in found] == [snapshot, *rows[4:], snapshot]
    # A reader that finds nothing new opens the table again now and then: it may be gone.
    monkeypatch.setattr("coopconsume.queue.table_log._REOPEN", 0.0)
    monkeypatch.setattr("coopconsume.queue.table_log._LONGEST_LOOK", 0.04)
    files = DeltaStorageHandler(bucket.uri("holds"), options)
    for info in files.get_file_info_selector(FileSelector("", recursive=True)):
        if info.is_file:
            files.delete_file(info.path)
    with pytest.raises(CommitLogUnavailable, match="there is no table"):
        any(late.read(0.1) for _ in range(100))


def test_a_bucket_is_tried_and_left_as_it_was(bucket: Bucket, options: dict[str, str]) -> None:
    """A file is created once alone there, and removed."""
    found = try_place(bucket.uri("tried"), options)
    assert (found.has_table, found.is_local) == (False, False)
    assert StoreFiles(bucket.uri("tried"), options).names("") == []
    CommitStore.open(bucket.uri("tried-table"), storage_options=options)
    assert try_place(bucket.uri("tried-table"), options).has_table


@on_s3
def test_places_that_are_not_safe_are_refused(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 by unsafe renames, and file systems without a rename that fails: each with a remedy."""
    unsafe = {**options, "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    with pytest.raises(UnsupportedTarget, match="conditional puts"):
        CommitStore.open("s3://bucket/unsafe", storage_options=unsafe)
    for path in ("/dbfs/commits", "/Volumes/a/b/commits"):
        with pytest.raises(UnsupportedTarget, match="object store behind it"):
            CommitStore.open(path)
    mounts = ["/dev/a / ext4 rw 0 0", "x /mnt/two\\040words fuse.s3fs rw 0 0", "nonsense"]
    assert mount_kind("/mnt/two words/commits", mounts) == "fuse.s3fs"
    assert mount_kind("/mnt/two", mounts) == "ext4"
    assert mount_kind("/mnt/two", []) == ""
    monkeypatch.setattr("commits.places._mounts", lambda: mounts)
    with pytest.raises(UnsupportedTarget, match=r"fuse\.s3fs"):
        CommitStore.open("/mnt/two words/commits")
    with pytest.raises(UnsupportedTarget, match=r"fuse\.s3fs.*LOCATION"):
        refuse_unsafe_spark("a.b", "file:/mnt/two words/commits", None)
    refuse_unsafe_spark("a.b", "file:/mnt/two/commits", None)
