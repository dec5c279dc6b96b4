"""Writers of one Delta log over a store that loses, repeats and delays requests.

The store's only way to decide between writers is to create a file that does not exist. Each request
is a step; the writer that takes the next one is drawn.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import secrets
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from commits.delta_log import DeltaLog
from commits.engine import AppendConflict
from commits.entries import VersionEntry
from commits.errors import CorruptCommitLog
from commits.table_files import _NO_FILES, TableFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: How many schedules are played, from which one on; `make chaos-store` plays 100,000.
_SCHEDULES = int(os.environ.get("SCHEDULES", "1500"))
_FIRST = int(os.environ.get("SCHEDULE") or secrets.randbits(40))
_WRITERS, _APPENDS = 3, 4


class Turns:
    """Threads that run one at a time; at each step another one may be drawn."""

    def __init__(self, source: random.Random) -> None:
        self._source = source
        self._waiting: dict[int, threading.Semaphore] = {}
        self._running = -1
        self._done = threading.Semaphore(0)

    def step(self) -> None:
        """Lets somebody take the next turn."""
        me = self._running
        self._next()
        self._waiting[me].acquire()

    def _next(self) -> None:
        self._running = self._source.choice([*self._waiting])
        self._waiting[self._running].release()

    def run(self, calls: list[Callable[[], None]]) -> None:
        """Runs calls side by side to their ends."""
        failed: list[BaseException] = []

        def body(me: int, call: Callable[[], None]) -> None:
            self._waiting[me].acquire()
            try:
                call()
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
            del self._waiting[me]
            if self._waiting:
                self._next()
            else:
                self._done.release()

        self._waiting = {me: threading.Semaphore(0) for me in range(len(calls))}
        threads = [threading.Thread(target=body, args=one) for one in enumerate(calls)]
        for thread in threads:
            thread.start()
        self._next()
        self._done.acquire()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]


@dataclass
class Store(TableFiles):
    """Files in memory, with the faults of a network."""

    source: random.Random
    turns: Turns
    faults: float = 0.2
    files: dict[str, bytes] = field(default_factory=dict)
    late: list[tuple[str, bytes]] = field(default_factory=list)
    arrived: int = 0

    def _step(self) -> None:
        self.turns.step()
        while self.late and self.source.random() < 0.3:
            # A request whose sender has given up arrives.
            self.files.setdefault(*self.late.pop(self.source.randrange(len(self.late))))
            self.arrived += 1

    def read(self, name: str) -> bytes:
        self._step()
        if self.source.random() < self.faults / 4:
            raise OSError("no answer")
        if name not in self.files:
            raise FileNotFoundError(name)
        return self.files[name]

    def prepare(self) -> None:
        """There are no folders."""

    def remove_drafts(self) -> None:
        """There are no drafts."""

    def remove(self, name: str) -> None:
        del self.files[name]

    def has(self, name: str) -> bool:
        return name in self.files

    def write(self, name: str, data: bytes) -> None:
        self._step()
        assert name not in self.files, "a file is written twice"
        self.files[name] = data
        if self.source.random() < self.faults / 4:
            raise OSError("the answer is lost")

    def create(self, name: str, data: bytes, files: Mapping[str, bytes] = _NO_FILES) -> bool:
        for other, content in files.items():
            self.write(other, content)
        self._step()
        drawn = self.source.random()
        if drawn < self.faults / 4:
            raise OSError("not sent")
        if drawn < self.faults / 2:
            self.late.append((name, data))
            raise OSError("no answer, and it arrives later")
        is_new = name not in self.files
        self.files.setdefault(name, data)
        self._step()
        if drawn < 3 * self.faults / 4:
            raise OSError("the answer is lost")
        # The client repeats a request whose answer is lost: the file is there then.
        return is_new and drawn >= self.faults

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(folder))


@dataclass
class Writer:
    """Appends, and notes what it was answered and which versions it has seen before that."""

    name: str
    store: Store
    log: DeltaLog
    answers: dict[str, int] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    seen: dict[int, str] = field(default_factory=dict)

    def __call__(self) -> None:
        """Appends some rows; what is not known to be written is written again."""
        for number in range(_APPENDS):
            while True:
                token = f"{self.name}-{number}-{self.store.source.random()}"
                try:
                    actions, files = [{"add": {"path": token}}], {token: b"rows"}
                    version = self.log.append(actions, {}, token, files=files)
                except OSError:
                    self.unknown.add(token)
                    continue
                self.answers[token] = version
                self._take(version)
                break
            if self.store.source.random() < 0.3:
                with contextlib.suppress(OSError):
                    self.log.read_on(3)
                    self._take(self.log.version)

    def _take(self, upto: int) -> None:
        versions = range(len(self.seen) + 1, upto + 1)
        entries = self.log.known(versions)
        assert [*entries] == [*versions], "an answer without all versions before it"
        self.seen |= {version: entry.token for version, entry in entries.items()}


def _played(seed: int, faults: float = 0.2) -> tuple[Store, list[Writer]]:
    source = random.Random(seed)
    store = Store(source, Turns(source), faults)
    store.is_far = bool(seed % 2)
    store.files["_delta_log/00000000000000000000.json"] = b'{"commitInfo":{"operation":"CREATE"}}'
    writers = [Writer(name, store, DeltaLog(store, "t", 0)) for name in "abc"[:_WRITERS]]
    store.turns.run([*writers])
    return store, writers


def _entries(store: Store) -> list[VersionEntry]:
    names = store.names("_delta_log")
    assert names == [f"_delta_log/{number:020d}.json" for number in range(len(names))]
    return [VersionEntry.parse(store.files[name]) for name in names]


def test_each_append_is_once_in_one_order_and_no_answer_is_wrong() -> None:
    """By three writers with lost, repeated and delayed requests.

    Each run has schedules of its own. `SCHEDULE=<number> SCHEDULES=1` plays one that failed.
    """
    for seed in range(_FIRST, _FIRST + _SCHEDULES):
        store, writers = _played(seed)
        entries = _entries(store)
        tokens = [entry.token for entry in entries]
        assert len(set(tokens)) == len(tokens), seed
        answers = {token: v for writer in writers for token, v in writer.answers.items()}
        unknown = set().union(*(writer.unknown for writer in writers))
        assert len(answers) == _WRITERS * _APPENDS, seed
        assert all(tokens[version] == token for token, version in answers.items()), seed
        assert set(tokens) - {""} <= {*answers, *unknown}, seed
        assert all(file in store.files for entry in entries for file in entry.files), seed
        for writer in writers:
            assert all(tokens[version] == token for version, token in writer.seen.items()), seed
        for before, entry in itertools.pairwise(entries):
            assert entry.before == before.digest, seed


def test_the_store_of_the_model_has_all_faults() -> None:
    """Else the model would show little."""
    unknown = late = taken = 0
    for seed in range(200):
        store, writers = _played(seed)
        tokens = {entry.token for entry in _entries(store)}
        unknown += sum(len(writer.unknown - tokens) for writer in writers)
        taken += sum(len(writer.unknown & tokens) for writer in writers)
        late += store.arrived
    assert min(unknown, late, taken) > 20


def test_a_reader_that_reads_on_notices_another_table() -> None:
    """A copy of the table from before that was put in its place and written on."""
    source = random.Random(1)
    store = Store(source, Turns(source), 0.0)
    store.turns.step = lambda: None  # type: ignore[method-assign]
    store.files["_delta_log/00000000000000000000.json"] = b"{}"
    one, other = DeltaLog(store, "t", 0), DeltaLog(store, "t", 0)
    for number in range(3):
        one.append([{"add": {"path": "a"}}], {}, f"one-{number}")
    assert not other.read_on(3)
    assert other.read_on(1)
    assert other.version == 3
    for version in (2, 3):
        del store.files[f"_delta_log/{version:020d}.json"]
    again = DeltaLog(store, "t", 1)
    for number in range(3):
        again.append([{"add": {"path": "a"}}], {}, f"again-{number}")
    for log in (one, other):
        with pytest.raises(CorruptCommitLog, match="version 3 is another one than it was"):
            log.read_on(9)
        with pytest.raises(CorruptCommitLog, match="version 3 is another one"):
            log.append([{"add": {"path": "a"}}], {}, "late")


@pytest.mark.parametrize(
    "line",
    [
        b'{"commitInfo":{"operation":"DELETE"}}\n{"remove":{"path":"a"}}',
        b'{"commitInfo":{"operation":"SET TBLPROPERTIES"}}\n{"metaData":{}}',
        (
            b'{"commitInfo":{"operation":"WRITE","operationParameters":{"mode":"Append"}}}\n'
            b'{"add":{"path":"a"}}\n{"protocol":{}}'
        ),
    ],
)
def test_what_is_no_append_is_a_conflict(line: bytes) -> None:
    """An append goes on behind appends alone; other changes have to be looked at first."""
    source = random.Random(1)
    store = Store(source, Turns(source), 0.0)
    store.turns.step = lambda: None  # type: ignore[method-assign]
    store.files["_delta_log/00000000000000000000.json"] = b"{}"
    log = DeltaLog(store, "t", 0)
    store.files["_delta_log/00000000000000000001.json"] = line
    with pytest.raises(AppendConflict, match="version 1"):
        log.append([{"add": {"path": "b"}}], {}, "b")
    assert log.append([{"add": {"path": "b"}}], {}, "b") == 2
    assert log.is_changed == (b"remove" not in line)
