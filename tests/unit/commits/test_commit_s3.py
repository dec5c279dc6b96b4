"""The commit store on S3, as moto plays it: conditional puts decide who makes a version."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
    Epoch,
    PartitionCommits,
    Pending,
    UnsupportedTarget,
    check_table,
    move_table,
)
from commits.places import mount_kind, refuse_unsafe_spark
from commits.table_appender import TableAppender
from commits.table_files import StoreFiles
from coopconsume.fenced.ownership.delta_store import DeltaStore
from coopconsume.queue.rows import ReplicaRow, encode
from coopconsume.queue.table_log import TableLog
from coopconsume.testing.local.process import suspend
from tests.commit_suite import check_behaviour

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from coopconsume.queue.log_client import LogRecord

P0, P1 = ("t", 0), ("t", 1)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The requests that the server of `bucket` has got, a line each."""
    return tmp_path_factory.mktemp("requests") / "log"


@pytest.fixture(scope="module")
def bucket(log: Path) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, str]]]:
    """A server of its own with a bucket, and the storage options for it.

    It is a process, as `deltalake` lets no other thread run while it asks for a table.
    """
    pytest.importorskip("moto.server")
    # Somebody may take a port between our look at it and the server's.
    for _ in range(3):
        server, endpoint = _server(log)
        if _has_bucket(server, endpoint):
            break
    try:
        assert server.poll() is None
        options = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_ALLOW_HTTP": "true",
        }
        yield server, options
    finally:
        server.kill()
        server.wait()


@pytest.fixture
def options(bucket: tuple[subprocess.Popen[bytes], dict[str, str]]) -> dict[str, str]:
    """Storage options of a server of its own, with a bucket."""
    return bucket[1]


# moto looks for an object and writes it in two steps: of two conditional puts at once both succeed.
# Each request is noted on standard output.
_ONE_AT_A_TIME = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
app = DomainDispatcherApplication(create_backend_app)
def noted(environ, respond):
    print(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"], flush=True)
    return app(environ, respond)
run_simple("127.0.0.1", int(sys.argv[1]), noted, threaded=False)
"""


# In front of it: each request takes this many seconds more. A process, so that what is measured
# here is this process alone.
_SLOW = """
import sys, time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Slow(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def carry(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(float(sys.argv[2]))
        store = HTTPConnection("127.0.0.1", int(sys.argv[1]))
        store.request(self.command, self.path, body, dict(self.headers))
        answer = store.getresponse()
        data = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length", str(len(data))))
        self.end_headers()
        self.wfile.write(data)
        store.close()
    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = carry
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Slow)
print(server.server_port, flush=True)
server.serve_forever()
"""
_DELAY = 0.2


@pytest.fixture
def slow(options: dict[str, str]) -> Iterator[dict[str, str]]:
    """Storage options of the same bucket, whose requests take `_DELAY` each."""
    port = options["AWS_ENDPOINT_URL"].rpartition(":")[2]
    command = [sys.executable, "-c", _SLOW, port, str(_DELAY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as proxy:
        assert proxy.stdout is not None
        try:
            yield {
                **options,
                "AWS_ENDPOINT_URL": f"http://127.0.0.1:{int(proxy.stdout.readline())}",
            }
        finally:
            proxy.kill()


@contextmanager
def pauses(running: Collection[str]) -> Iterator[list[tuple[float, list[str]]]]:
    """How long another thread of this process stood still, and what ran then; the longest last."""
    is_over, found = threading.Event(), list[tuple[float, list[str]]]()

    def tick() -> None:
        last = time.monotonic()
        while not is_over.wait(0.005):
            now = time.monotonic()
            if not found or now - last > found[-1][0]:
                found.append((now - last, sorted(running)))
            last = now

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def _server(log: Path) -> tuple[subprocess.Popen[bytes], str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-c", _ONE_AT_A_TIME, str(port)]
    with log.open("w") as requests:
        server = subprocess.Popen(command, stdout=requests, stderr=subprocess.DEVNULL)
    return server, f"http://127.0.0.1:{port}"


def _has_bucket(server: subprocess.Popen[bytes], endpoint: str) -> bool:
    """Whether the server came up and made a bucket; False if it ended."""
    deadline = time.monotonic() + 300
    while server.poll() is None:
        try:
            bucket = urllib.request.Request(f"{endpoint}/bucket", method="PUT")
            urllib.request.urlopen(bucket, timeout=60).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return True
    return False


def test_a_bucket_keeps_commits_as_a_disk_does(options: dict[str, str]) -> None:
    """Commits, snapshots, recovery and vacuum; a table that is there is opened again."""
    target = "s3://bucket/commits"
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


def test_a_table_in_a_bucket_behaves_as_all_do(options: dict[str, str]) -> None:
    """The suite that tables on paths and in catalogs pass, too."""
    check_behaviour(partial(CommitStore.open, "s3://bucket/suite", storage_options=options))


def test_a_commit_is_two_requests_and_a_look_is_one(options: dict[str, str], log: Path) -> None:
    """For a member alone; one more for each entry of others."""

    def requests_of(call: Callable[[], object]) -> list[str]:
        before = len(log.read_text().splitlines())
        call()
        return [line.split()[0] for line in log.read_text().splitlines()[before:]]

    target = "s3://bucket/requests"
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
    options: dict[str, str], log: Path, by: list[str] | None
) -> None:
    """Whatever the text of a partition is; readers find its file. A new handle opens the table."""
    uri = f"s3://bucket/outputs-{len(by or ())}"
    rows = pa.table({"number": [1], "text": ["ü =50%/x"]})
    write_deltalake(uri, rows, storage_options=options, partition_by=by)
    appender = TableAppender(uri, options)
    assert appender.append(rows) == 1
    for version in (2, 3):
        before = len(log.read_text().splitlines())
        assert appender.append(rows) == version
        asked = [line.split(" ")[0] for line in log.read_text().splitlines()[before:]]
        assert sorted(asked) == ["GET", "PUT", "PUT"]
        assert asked[-1] == "PUT"
    table = DeltaTable(uri, storage_options=options)
    assert table.to_pyarrow_table() == pa.concat_tables([rows] * 4)
    assert not table.vacuum(0, enforce_retention_duration=False, full=True)


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
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes as long as an answer of the store; only the first one is awaited alone."""
    target = "s3://bucket/beside"
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
    bucket: tuple[subprocess.Popen[bytes], dict[str, str]],
) -> None:
    """Every call says so, none speaks of damage; the commit is repeated with its id later.

    The server stops after a commit.
    """
    server, options = bucket
    quick = {"timeout": "500ms", "connect_timeout": "500ms", "max_retries": "0"}
    target, known = "s3://bucket/outage", {**options, **quick}
    with pytest.raises(CommitLogUnavailable, match="open failed"):
        CommitStore.open("s3://no-such-bucket/commits", storage_options=options)
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


@pytest.mark.slow
def test_no_call_holds_the_interpreter_while_a_bucket_answers(
    options: dict[str, str], slow: dict[str, str]
) -> None:
    """Heartbeats and leases of the driver go on, whatever is asked of a table.

    A call that holds it during a request stops all threads for as long as the request takes. Calls
    of different tables run at the same time, as there are many requests.
    """
    running: set[str] = set()
    stores: list[CommitStore] = []
    epochs: list[Epoch] = []

    def commit(number: int, *offsets: int, by: CommitStore | None = None) -> None:
        for offset in offsets:
            (by or stores[number]).commit("g", epochs[number], "m", {P0: [(offset, offset)]})

    for number in range(3):
        target = f"s3://bucket/slow-{number}"
        stores.append(CommitStore.open(target, storage_options=options, segment_versions=2))
        epochs.append(stores[-1].open_epoch("g", {"m": [P0]}, previous=None))
        commit(number, 0, 2, 4)

    def opened(number: int) -> CommitStore:
        return CommitStore.open(stores[number].target, storage_options=slow, create=False)

    def writing() -> Iterator[tuple[str, Callable[[], object]]]:
        store = opened(0)
        engine: Any = store._engine
        yield "append", lambda: commit(0, 6, by=store)
        commit(0, 8)
        yield "read on", lambda: store.state("g")
        yield "snapshot", store.compact
        yield "checkpoint", engine._checkpoint
        yield "remove entries", lambda: engine.tidy(3)
        yield "vacuum", lambda: store.vacuum(retention_hours=1)

    def reading() -> Iterator[tuple[str, Callable[[], object]]]:
        yield "open", lambda: stores.append(opened(1))
        yield "history", lambda: stores[-1].history("g")
        yield "earlier commits", lambda: stores[-1].commits_at("g", 4)
        yield "registry", lambda: DeltaStore("s3://bucket/registry", slow).rows()

    def moving(turn: int) -> Iterator[tuple[str, Callable[[], object]]]:
        source = stores[2].target
        to = f"{source}-moved-{turn}"
        yield "move", lambda: move_table(source, to, storage_options=slow, quiet_seconds=0)

    def run(calls: Iterator[tuple[str, Callable[[], object]]]) -> None:
        for name, call in calls:
            began = time.monotonic()
            running.add(name)
            call()
            running.remove(name)
            assert time.monotonic() - began >= _DELAY, f"{name} asked for nothing"

    for turn in range(3):  # a busy machine stops a thread as well, but not in each turn
        with pauses(running) as found, ThreadPoolExecutor(3) as pool:
            for _ in pool.map(run, [writing(), reading(), moving(turn)]):
                pass
        if found[-1][0] < _DELAY:
            break
    assert found[-1][0] < _DELAY, found[-1]
    with pauses(running) as found:  # a call that is known to hold it is seen
        DeltaTable.is_deltatable(stores[0].target, storage_options=slow)
    assert found[-1][0] >= _DELAY


def test_writers_of_a_bucket_lose_nothing(options: dict[str, str]) -> None:
    """Four at once: of two that make the same version one has to take the next."""
    target = "s3://bucket/four"
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
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of two writers have one order; a later reader begins with the snapshot."""
    logs = [TableLog("g/t", "s3://bucket/holds", options) for _ in range(3)]
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
    files = DeltaStorageHandler("s3://bucket/holds", options)
    for info in files.get_file_info_selector(FileSelector("", recursive=True)):
        if info.is_file:
            files.delete_file(info.path)
    with pytest.raises(CommitLogUnavailable, match="there is no table"):
        any(late.read(0.1) for _ in range(100))


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
