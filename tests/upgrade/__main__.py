"""Moves a running group from an older version to this one and back, with real jobs and a broker.

    python -m tests.upgrade REVISION                 # batches
    python -m tests.upgrade REVISION --mode state    # or real-time, cooperative

Two applications of the older version handle records while more are produced. One after another is
stopped in order and started in this version; then both go back, and forward again, the last time
after a kill. The tables of `tests.upgrade.written` go the same way.

It prints what each step took, and fails unless each record was handled, in the order of its key,
and again only if it was in flight at the kill. Attempts and states go on, and parked records stay.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kafka import KafkaProducer

from commits import CommitStore
from coopconsume import Admin
from coopconsume.admin.records.actions import RecordChoice
from coopconsume.kafka.cluster import Cluster
from coopconsume.options import Options
from coopconsume.testing import LocalKafka
from tests.event_process import ROOT
from tests.upgrade import versions
from tests.upgrade.calls import longest_pause, problems, read_notes
from tests.upgrade.kept import written_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_HERE = Path(__file__).parent
_PATIENCE = 600.0
_PARTITIONS = 2
_KEYS = 40
_STEP_RECORDS = 100
_MODES = ("batches", "real-time", "state", "cooperative")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Application:
    """One application of the group as a process.

    Args:
        name: Its name, under which it notes its calls.
        root: The sources that it runs.
        settings: What it is given.
        folder: Where its output goes.
    """

    def __init__(self, name: str, root: Path, settings: dict[str, Any], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        given = {**settings, "name": name, "root": str(root)}
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_HERE / "app.py"), json.dumps(given)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, text=True,
                # Spark's workers find the modules of the current folder first.
                env=versions.environment(root), cwd=folder,
            )  # fmt: skip

    def check(self) -> None:
        """Make sure that it runs."""
        assert self._process.poll() is None, self._log.read_text()[-4000:]

    def kill(self) -> None:
        """Kill its driver."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Stop it in order."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(_PATIENCE) == 0, self._log.read_text()[-4000:]


class Roll:
    """A group that is moved between two versions.

    Args:
        kafka: The broker.
        old: The sources of the older version.
        folder: A new folder.
        mode: How the applications work.
    """

    def __init__(self, kafka: LocalKafka, old: Path, folder: Path, mode: str) -> None:
        self._kafka = kafka
        self._old = old
        self._folder = folder
        self._mode = mode
        self._topic, self._group = f"roll-{mode}", f"group-{mode}"
        self._names = itertools.count(1)
        self._running: list[Application] = []
        self._produced = 0
        self._is_over = threading.Event()
        self._producer = threading.Thread(target=self._produce)
        self._killed: set[str] = set()
        self._options: dict[str, Any] = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": self._group,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
            "commitTable": str(folder / "commits"),
            "slots": 2,
            **({"sharing": "cooperative"} if mode == "cooperative" else {}),
        }

    def run(self) -> list[str]:
        """Move the group there and back; return what is wrong."""
        self._kafka.create_topic(self._topic, _PARTITIONS)
        Admin(self._options).set_shareable([self._topic])
        self._producer.start()
        try:
            self._start(self._old)
            self._step("two of the older version", self._old, replaces=False)
            for name, root in (("this", ROOT), ("the older", self._old)):
                self._step(f"one of {name} version", root)
                self._step(f"both of {name} version", root)
            self._step("one of this version, after a kill", ROOT, kills=True)
            self._step("both of this version", ROOT)
            self._end()
        finally:
            self._is_over.set()
            self._producer.join()
            for application in self._running:
                application.kill()
        notes = read_notes(self._folder)
        found = list(problems(notes, self._killed, in_order=self._mode != "cooperative"))
        handled = {(n.partition, n.offset) for n in notes if n.what == "end"}
        if len(handled) != self._produced:
            found.append(f"{len(handled)} of {self._produced} records were handled")
        repeats = sum(n.what == "end" for n in notes) - len(handled)
        attempts = max(n.attempt for n in notes)
        _say(f"{len(handled)} records, {repeats} repeated, up to {attempts} attempts")
        return found

    def _start(self, root: Path) -> Application:
        settings = {"options": self._options, "folder": str(self._folder), "mode": self._mode}
        name = f"{'new' if root == ROOT else 'old'}-{next(self._names)}"
        self._running.append(Application(name, root, settings, self._folder))
        return self._running[-1]

    def _step(self, what: str, root: Path, *, replaces: bool = True, kills: bool = False) -> None:
        begin = time.time_ns()
        if replaces:
            first = self._running.pop(0)
            if kills:
                self._killed.add(first.name)
                first.kill()
            else:
                first.stop()
        self._start(root)
        names = {application.name for application in self._running}
        begun = time.time_ns()
        self._wait(what, lambda: names <= self._at_work_since(begun))
        at = time.time_ns()
        self._wait(what, lambda: self._ended_since(at) >= _STEP_RECORDS)
        pause = longest_pause(read_notes(self._folder), begin, time.time_ns())
        _say(f"{what}: {(time.time_ns() - begin) / 1e9:.1f} s, longest pause {pause:.1f} s")

    def _end(self) -> None:
        self._is_over.set()
        self._producer.join()
        store = CommitStore.open(
            self._options["commitTable"], cluster=self._cluster(), create=False
        )
        self._wait("a parked record", lambda: any(self._parked(store)))
        (self._folder / "mended").touch()

        def all_done() -> bool:
            records = Admin(self._options).records(self._group)
            parked = RecordChoice()
            steps = records.plan("retry", parked)
            if steps.parked:
                records.carry_out(steps)
            stable = sum(commits.stable_offset for commits in store.state(self._group).values())
            return stable == self._produced

        self._wait("the end of all records", all_done)
        while self._running:
            self._running.pop().stop()

    def _parked(self, store: CommitStore) -> Iterator[int]:
        for records in store.pending(self._group).values():
            yield from (offset for offset, each in records.items() if each.is_parked)

    def _cluster(self) -> str:
        cluster = Cluster(Options.parse(self._options))
        try:
            return cluster.cluster_id
        finally:
            cluster.close()

    def _at_work_since(self, at_ns: int) -> set[str]:
        return {n.application for n in read_notes(self._folder) if n.at_ns > at_ns}

    def _ended_since(self, at_ns: int) -> int:
        return sum(n.what == "end" and n.at_ns > at_ns for n in read_notes(self._folder))

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not is_so():
            for application in self._running:
                application.check()
            assert time.monotonic() < deadline, f"no {what}: see {self._folder}"
            time.sleep(0.5)

    def _produce(self) -> None:
        producer = KafkaProducer(bootstrap_servers=self._kafka.bootstrap_servers)
        while not self._is_over.wait(0.02):
            number = self._produced
            key = b"fails" if number == 30 else b"key-%d" % (number % _KEYS)
            producer.send(self._topic, key=key, value=b"bad" if number == 35 else b"good")
            self._produced += 1
        producer.close()


def _tables(old: Path, folder: Path) -> Iterator[str]:
    """Have tables go to this version, back and forth; yields what is read differently."""
    written_by(old, folder)
    for what, root in (("this", ROOT), ("the older", old), ("this", ROOT)):
        before = json.loads((folder / "read.json").read_text())["after"]
        written_by(root, folder, "--go-on")
        found = json.loads((folder / "read.json").read_text())["before"]
        for name in before.keys() & found.keys():
            if before[name] != found[name]:
                yield f"{what} version reads {found[name]} of {name}, not {before[name]}"
    _say("tables: written, and continued by this version, the older one and this one")


def main() -> int:
    """Run it; 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.upgrade")
    parser.add_argument("revision")
    parser.add_argument("--mode", choices=_MODES, default="batches")
    given = parser.parse_args()
    if why := versions.History("", given.revision).missing:
        parser.error(why)
    with tempfile.TemporaryDirectory() as temporary:
        old = versions.unpacked(given.revision, Path(temporary, "old"))
        found = list(_tables(old, Path(temporary, "tables")))
        folder = Path(temporary, "group")
        folder.mkdir()
        with LocalKafka() as kafka:
            found += Roll(kafka, old, folder, given.mode).run()
    for each in found:
        _say(f"WRONG {each}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
