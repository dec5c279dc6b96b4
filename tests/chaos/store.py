"""``python -m tests.chaos.store [--rounds N] [--seed S]``: writers of a commit table are killed.

Four processes commit to one table, open epochs and write snapshots. In each round one of them is
killed, or frozen while the others go on. Afterwards a checker compares the answers that they got
with the log.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commits import CommitStore
from commits.fold import LogState
from commits.rows import decode
from tests.chaos.frame import Report, run
from tests.chaos.store_writer import MEMBERS

_ROOT = Path(__file__).parents[2]
_PATIENCE = 120.0


@dataclass
class Writers:
    """The processes of a run.

    Attributes:
        table: The commit table.
        logs: The folder of their logs.
        source: Decides what happens.
    """

    table: Path
    logs: Path
    source: random.Random
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: int = 0

    def start(self, member: str) -> None:
        """Start a member's next process."""
        self.started += 1
        book = self.logs / f"{self.started}.jsonl"
        command = [sys.executable, "-m", "tests.chaos.store_writer", str(self.table), str(book),
                   member, str(self.source.randrange(2**31))]  # fmt: skip
        self.running[member] = subprocess.Popen(command, cwd=_ROOT)

    def round(self) -> None:
        """Kill one, or freeze it until an epoch that it does not know is open."""
        self.wait_for_more()
        member = self.source.choice(MEMBERS)
        process = self.running[member]
        if self.source.random() < 0.5:
            process.kill()
            process.wait()
            self.start(member)
        else:
            process.send_signal(signal.SIGSTOP)
            self.wait_for_more()
            process.send_signal(signal.SIGCONT)

    def wait_for_more(self) -> None:
        """Wait until twelve more commits were acknowledged: at least one snapshot is due."""
        wanted = len(self.events("acknowledged")) + 12
        deadline = time.monotonic() + _PATIENCE
        while len(self.events("acknowledged")) < wanted:
            dead = [name for name, process in self.running.items() if process.poll() is not None]
            if dead or time.monotonic() > deadline:
                raise AssertionError(f"no more commits: {dead} ended by themselves")
            time.sleep(0.05)

    def events(self, what: str) -> list[dict[str, Any]]:
        """What the processes wrote down; a last line may be cut short."""
        found = []
        for book in sorted(self.logs.glob("*.jsonl")):
            for line in book.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if entry["what"] == what:
                        found.append(entry)
        return found

    def end(self) -> None:
        """Kill all of them."""
        for process in self.running.values():
            process.kill()
            process.wait()


def play(folder: Path, rounds: int, seed: int) -> str:
    """Run some rounds and check them.

    Returns:
        What was checked, in a sentence.

    Raises:
        AssertionError: If a promise was broken.
    """
    (folder / "logs").mkdir()
    writers = Writers(folder / "table", folder / "logs", random.Random(seed))
    CommitStore.open(writers.table, segment_versions=10)
    try:
        for member in MEMBERS:
            writers.start(member)
        for _ in range(rounds):
            writers.round()
        writers.wait_for_more()
    finally:
        writers.end()
    return check(writers)


def check(writers: Writers) -> str:
    """Compare the answers that the writers got with the log."""
    store = CommitStore.open(writers.table)
    state, counted = store.state("g"), set(store.counted_commits("g"))
    acknowledged = writers.events("acknowledged")
    for one in acknowledged:
        commits = state[tuple(one["at"])]
        done = (o < commits.stable_offset or o in commits.ranges
                for o in range(one["first"], one["last"] + 1))  # fmt: skip
        assert all(done), f"an acknowledged commit is missing: {one}"
    for one in writers.events("fenced"):
        assert one["id"] not in counted, f"a commit of a fenced writer counts: {one}"
    opened = writers.events("opened")
    numbers = [one["epoch"] for one in opened]
    assert len(numbers) == len(set(numbers)), "an epoch has two owners"
    # The whole log, folded from its first row, comes to what the snapshots say.
    engine = store._engine
    version = engine.refresh()
    whole = LogState()
    folded = list(whole.fold(e for _, e in decode(engine.tail(-1, version).rows, "")))
    assert whole.groups == store._log.state.groups, "the snapshots differ from the log"
    in_force = None
    for event, answer in folded:
        if event.kind == "epoch" and answer.counted:
            in_force = event.epoch
        elif event.kind == "commit" and answer.counted:
            assert event.epoch == in_force, f"a commit counts under another epoch: {event.id}"
    snapshots = len(engine.compactions())
    assert snapshots > 0
    return (
        f"{len(acknowledged)} acknowledged commits, {len(writers.events('fenced'))} fenced ones, "
        f"{len(opened)} epochs, {snapshots} snapshots, {writers.started} processes: nothing wrong"
    )


def play_and_report(folder: Path, rounds: int, seed: int, report: Report) -> bool:
    """Play the rounds and say what was checked; a promise that is broken is raised."""
    report(play(folder, rounds, seed))
    return True


if __name__ == "__main__":
    sys.exit(run("chaos.store", __doc__, 20, play_and_report))
