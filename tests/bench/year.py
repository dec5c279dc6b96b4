"""``python -m tests.bench.year``: commits beside many entries, and a table after a year of commits.

The sizes are measured on a real table of a few segments; the year is a simulation in steps of one
snapshot, with the table's own rules of what is kept for how long.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import click
from deltalake import DeltaTable

from commits import CommitStore
from commits.log import VACUUM_SEGMENTS
from commits.path_engine import CHECKPOINT_VERSIONS
from commits.settings import DEFAULT_SNAPSHOT_COMMITS

_YEAR = 365 * 24 * 3600
_SEGMENT = 1000
#: Seconds that files, their removals in checkpoints, and entries of the log stay.
_FILES_KEPT, _REMOVALS_KEPT, _ENTRIES_KEPT = 3600, 900, 900
_BLOCK = 4096  # what a small file takes on most disks, at least


@dataclass(frozen=True)
class Sizes:
    """Bytes of each kind of file, measured.

    Attributes:
        row: The data file of one commit.
        entry: The entry of one commit in the table's log.
        snapshot: The data file of a snapshot.
        compaction: The entry of a snapshot, for each file that it removes.
        checkpoint: A checkpoint, for each file that it knows, removed ones too.
    """

    row: float
    entry: float
    snapshot: float
    compaction: float
    checkpoint: float


@dataclass(frozen=True)
class Disk:
    """What lies on the disk.

    Attributes:
        live: Data files of the newest version.
        files: All files.
        size: Their bytes.
        blocks: Their bytes in blocks of 4 KiB.
    """

    live: int
    files: int
    size: float
    blocks: float


def measured(commits: int) -> Sizes:
    """The sizes of a real table of so many commits of one scattered offset each."""
    with tempfile.TemporaryDirectory(prefix="coopconsume-year-") as folder:
        store = CommitStore.open(folder + "/t", segment_versions=commits // 4, snapshot_commits=0)
        epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
        for number in range(commits):
            store.commit("g", epoch, "m", {("t", 0): [(2 * number + 1, 2 * number + 1)]})
        root = Path(folder, "t")
        data, log = {*root.glob("segment=*/*.parquet")}, root / "_delta_log"
        entries = [*log.glob("*.json")]
        row = sum(file.stat().st_size for file in data) / len(data)
        entry = sum(file.stat().st_size for file in entries) / len(entries)
        at = store.compact()
        assert at is not None
        (snapshot,) = {*root.glob("segment=*/*.parquet")} - data
        removed = len(data) + 1 - len(DeltaTable(root).file_uris())
        checkpoint = max(log.glob("*.checkpoint.parquet"))
        return Sizes(
            row,
            entry,
            snapshot.stat().st_size,
            (log / f"{at:020d}.json").stat().st_size / removed,
            checkpoint.stat().st_size / (len(data) + 1),
        )


def simulated(seconds: int, sizes: Sizes, rate: int = 1) -> Disk:
    """The largest table between the last two vacuums, after so many seconds.

    Args:
        seconds: The time.
        sizes: The sizes of files.
        rate: Commits a second.
    """
    step, commits = DEFAULT_SNAPSHOT_COMMITS, seconds * rate
    live = stale = 0  # data files of the newest version, and those that wait for a vacuum
    removed: list[tuple[int, int]] = []  # when, and how many: as long as checkpoints know them
    checkpoints: list[tuple[int, float]] = []
    vacuumed = -1
    found: list[Disk] = []
    for now in range(step, commits + 1, step):
        live += step
        segment = (now - _SEGMENT // 2) // _SEGMENT - 1
        if segment >= 0:
            gone = max(0, live - (now - (segment + 1) * _SEGMENT))
            live += 1 - gone
            removed.append((now, gone))
            stale += gone
        removed = [(at, count) for at, count in removed if at > now - _FILES_KEPT * rate]
        known = live + sum(n for at, n in removed if at > now - _REMOVALS_KEPT * rate)
        each = step // CHECKPOINT_VERSIONS + 1  # and that of the snapshot
        checkpoints += [(now, each * sizes.checkpoint * known)]
        checkpoints = [one for one in checkpoints if one[0] > now - _ENTRIES_KEPT * rate]
        if now > commits - VACUUM_SEGMENTS * _SEGMENT:
            entries = min(now, max(step, _ENTRIES_KEPT * rate))
            written = sum(size for _, size in checkpoints)
            found.append(_disk(live, stale, entries, written, sizes))
        if segment // VACUUM_SEGMENTS > vacuumed // VACUUM_SEGMENTS:
            stale, vacuumed = sum(count for _, count in removed), segment
    return max(found, key=lambda disk: disk.files)


def _disk(live: int, stale: int, entries: int, checkpoints: float, sizes: Sizes) -> Disk:
    step = DEFAULT_SNAPSHOT_COMMITS
    folded = entries / step
    parts = [
        (live + stale, (live + stale) * sizes.row),
        (entries, entries * sizes.entry),
        (folded, folded * (sizes.snapshot + sizes.compaction * step)),
        (entries / CHECKPOINT_VERSIONS + folded, checkpoints),
    ]
    blocks = sum(
        max(size, count * _BLOCK * -(-(size / count) // _BLOCK)) for count, size in parts if count
    )
    return Disk(
        live, round(sum(count for count, _ in parts)), sum(size for _, size in parts), blocks
    )


def commit_ms(entries: int) -> float:
    """The median milliseconds of a commit to a table on a local disk whose log has more entries."""
    with tempfile.TemporaryDirectory(prefix="coopconsume-year-") as folder:
        store = CommitStore.open(folder + "/t")
        epoch = store.open_epoch("g", {"m": [("t", 0)]}, previous=None)
        first = store.version() + 1
        for version in range(first, first + entries):
            nothing = {"commitInfo": {"timestamp": 0, "operation": "NONE", "n": version}}
            Path(folder, f"t/_delta_log/{version:020d}.json").write_text(json.dumps(nothing))
        DeltaTable(folder + "/t").create_checkpoint()
        store, times = CommitStore.open(folder + "/t"), []
        for number in range(40):
            began = time.perf_counter()
            store.commit("g", epoch, "m", {("t", 0): [(number, number)]}, maintain=False)
            times.append(1_000 * (time.perf_counter() - began))
        return median(times)


@click.command()
@click.option("--commits", default=2000, show_default=True, help="Of the table that is measured.")
def main(commits: int) -> None:
    """Print what a commit takes, and a commit table after a day, a week and a year."""
    for entries in (0, 1_000, 10_000, 100_000):
        click.echo(f"a commit beside {entries:,} entries of the log: {commit_ms(entries):.1f} ms")
    sizes = measured(commits)
    click.echo(f"measured: {sizes}")
    for rate, (name, seconds) in product(
        (1, 5, 25), (("a day", 24 * 3600), ("a week", 7 * 24 * 3600), ("a year", _YEAR))
    ):
        disk = simulated(seconds, sizes, rate)
        click.echo(
            f"{rate} a second, after {name}: {disk.live:,} live files, {disk.files:,} in all, "
            f"{disk.size / 2**20:,.0f} MiB ({disk.blocks / 2**20:,.0f} MiB in blocks of 4 KiB)"
        )


if __name__ == "__main__":
    main()
