"""Reads a recorded history back: columns over all calls, each one a `Call` when asked for."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from coopconsume.testing.history.recorder import COLUMNS, FILE_PREFIX, FILE_SUFFIX, HEADER

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

OUTCOMES = ("done", "retry", "reject", "postponed")
NOT_ENDED = -1
"""In `History.end` and `History.outcome`: the call was running when its process died."""


class CorruptHistory(ValueError):
    """A history file is not what a `Recorder` writes.

    Attributes:
        path: The file.
        found: What is wrong with it.
    """

    retriable = False

    def __init__(self, path: str, found: str) -> None:
        super().__init__(path, found)
        self.path = path
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.path} is not a whole history file: {self.found}. Was the disk full, or was it "
            "written by another version? Record the run again into an empty directory."
        )


@dataclass(frozen=True, slots=True)
class Call:
    """One handler call as it recorded itself.

    Attributes:
        topic: The record's topic.
        partition: Its partition.
        offset: Its offset.
        key: Its key, or None.
        start_ns: When the call started, on the machine's monotonic clock.
        end_ns: When it ended; None if it was running when its process died.
        process: ``<pid>-<random>``, one for each process of the run.
        thread: Native thread id.
        slot: Number of the slot.
        attempt: The attempt that the handler got, from 1.
        outcome: ``done``, ``retry``, ``reject``, ``postponed``; None without an end.
        error: What was raised, escaped and cut short.
        saw: With state: the fingerprint of the value that the handler found; else empty.
        left: With state: that of the value that it left, if it is done; else empty.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    start_ns: int
    end_ns: int | None
    process: str
    thread: int = 0
    slot: int = 0
    attempt: int = 1
    outcome: str | None = "done"
    error: str = ""
    saw: str = ""
    left: str = ""

    def __str__(self) -> str:
        end = "no end" if self.end_ns is None else f"{self.end_ns}"
        why = f" ({self.error})" if self.error else ""
        if self.saw:
            why += f", saw state {self.saw}, left {self.left or 'nothing new'}"
        return (
            f"[{self.start_ns} - {end}] {self.topic}-{self.partition}@{self.offset} "
            f"attempt {self.attempt}, slot {self.slot}, process {self.process}, "
            f"thread {self.thread}: {self.outcome or 'running'}{why}"
        )


@dataclass(frozen=True, eq=False)
class History:
    """Calls in the order of their starts, as columns of equal length.

    Attributes:
        partitions: (topic, partition) by the numbers in ``partition``.
        keys: Keys by the numbers in ``key``.
        processes: Processes by the numbers in ``process``.
        partition, offset, key, start, end, process, thread, slot, attempt, outcome: The columns;
            ``outcome`` counts into `OUTCOMES`; `NOT_ENDED` stands for a missing end and outcome.
        errors: Error text by the position of the call.
        saw, left: With state: fingerprints of its value before and after the call, by the position
            of the call.
    """

    partitions: Sequence[tuple[str, int]]
    keys: Sequence[bytes | None]
    processes: Sequence[str]
    partition: NDArray[np.int64]
    offset: NDArray[np.int64]
    key: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    slot: NDArray[np.int64]
    attempt: NDArray[np.int64]
    outcome: NDArray[np.int64]
    errors: Mapping[int, str] = field(default_factory=dict)
    saw: Mapping[int, str] = field(default_factory=dict)
    left: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.start)

    def __iter__(self) -> Iterator[Call]:
        return map(self.call, range(len(self)))

    def call(self, index: int) -> Call:
        """The call at a position of the columns."""
        topic, partition = self.partitions[self.partition[index]]
        end, outcome = int(self.end[index]), int(self.outcome[index])
        return Call(
            topic=topic,
            partition=partition,
            offset=int(self.offset[index]),
            key=self.keys[self.key[index]],
            start_ns=int(self.start[index]),
            end_ns=None if end == NOT_ENDED else end,
            process=self.processes[self.process[index]],
            thread=int(self.thread[index]),
            slot=int(self.slot[index]),
            attempt=int(self.attempt[index]),
            outcome=None if outcome == NOT_ENDED else OUTCOMES[outcome],
            error=self.errors.get(index, ""),
            saw=self.saw.get(index, ""),
            left=self.left.get(index, ""),
        )

    @classmethod
    def of(cls, calls: Iterable[Call]) -> History:
        """A history of given calls."""
        ordered = sorted(calls, key=lambda call: call.start_ns)
        partitions: dict[tuple[str, int], int] = {}
        keys: dict[bytes | None, int] = {}
        processes: dict[str, int] = {}
        # In the order of the attributes.
        rows = [
            (
                partitions.setdefault((call.topic, call.partition), len(partitions)),
                call.offset,
                keys.setdefault(call.key, len(keys)),
                call.start_ns,
                NOT_ENDED if call.end_ns is None else call.end_ns,
                processes.setdefault(call.process, len(processes)),
                call.thread,
                call.slot,
                call.attempt,
                NOT_ENDED if call.outcome is None else OUTCOMES.index(call.outcome),
            )
            for call in ordered
        ]
        columns = np.array(rows, np.int64).reshape(-1, 10).T
        texts = (
            {i: text for i, call in enumerate(ordered) if (text := getattr(call, name))}
            for name in ("error", "saw", "left")
        )
        return cls([*partitions], [*keys], [*processes], *columns, *texts)


def read_history(directory: str | os.PathLike[str]) -> History:
    """Read all files that recorders wrote into ``directory``.

    A torn last line of a file is left out; it belongs to a call that had not begun, or to one that
    had not reported its end.

    Raises:
        FileNotFoundError: There is no such directory.
        CorruptHistory: A file is not a recorder's, or is damaged before its last line.
    """
    if not Path(directory).is_dir():
        raise FileNotFoundError(f"no history directory {directory}: was anything recorded there?")
    tables = []
    for path in sorted(Path(directory).glob(f"{FILE_PREFIX}*{FILE_SUFFIX}")):
        calls = _read_file(path)
        name = path.name.removeprefix(FILE_PREFIX).removesuffix(FILE_SUFFIX)
        process = pa.DictionaryArray.from_arrays(pa.array([0] * len(calls), pa.int32()), [name])
        tables.append(calls.append_column("process", process))
    if not tables:
        return History.of([])
    return _as_history(pa.concat_tables(tables).unify_dictionaries().sort_by("ns"))


#: Columns of a file that are those of a `History` as they are.
_NUMBERS = ("offset", "end", "thread", "slot", "attempt", "outcome")
_TYPES = {name: pa.int64() for name in COLUMNS}
_TYPES |= {name: pa.dictionary(pa.int32(), pa.string()) for name in ("topic", "key")}
_TYPES |= {name: pa.string() for name in ("event", "outcome", "error", "saw", "left")}


def _read_file(path: Path) -> pa.Table:
    """One process's calls: a table of its ``S`` lines with ``end``, ``outcome`` and ``error``."""
    data = path.read_bytes()
    data = data[: data.rfind(b"\n") + 1]
    if data and not data.startswith(HEADER):
        raise CorruptHistory(str(path), f"its first line is {data.splitlines()[0][:80]!r}")
    try:
        lines = csv.read_csv(
            io.BytesIO(data or HEADER),
            parse_options=csv.ParseOptions(delimiter="\t", quote_char=False),
            convert_options=csv.ConvertOptions(column_types=_TYPES, null_values=[""]),
        )
    except pa.ArrowInvalid as problem:
        raise CorruptHistory(str(path), str(problem)) from problem
    starts = lines.filter(pc.equal(lines["event"], "S")).sort_by("call")
    ends = lines.filter(pc.equal(lines["event"], "E"))
    number = starts["call"].to_numpy()
    ended = ends["call"].to_numpy()
    position = np.searchsorted(number, ended)
    if np.any(position >= len(number)) or np.any(number[position] != ended):
        raise CorruptHistory(str(path), "a call ends that never started")
    end = np.full(len(number), NOT_ENDED, np.int64)
    end[position] = ends["ns"].to_numpy()
    outcome = np.full(len(number), NOT_ENDED, np.int64)
    code = pc.index_in(ends["outcome"], pa.array(OUTCOMES))
    if code.null_count:
        raise CorruptHistory(str(path), f"an outcome is not one of {', '.join(OUTCOMES)}")
    outcome[position] = code.to_numpy()
    texts = {name: np.full(len(number), "", object) for name in ("error", "left")}
    for name, text in texts.items():
        text[position] = ends[name].to_numpy(zero_copy_only=False)
    kept = starts.drop_columns(["event", "call", "outcome", *texts])
    for name, column in (
        ("end", end),
        ("outcome", outcome),
        *((name, pa.array(text, pa.string())) for name, text in texts.items()),
    ):
        kept = kept.append_column(name, pa.array(column))
    return kept


def _as_history(table: pa.Table) -> History:
    table = table.combine_chunks()

    def numbers(name: str) -> NDArray[np.int64]:
        column: NDArray[np.int64] = table[name].to_numpy().astype(np.int64)
        return column

    def codes(name: str) -> tuple[list[str], NDArray[np.int64]]:
        column = table[name].combine_chunks()
        return column.dictionary.to_pylist(), column.indices.to_numpy().astype(np.int64)

    topics, topic = codes("topic")
    keys, key = codes("key")
    processes, process = codes("process")
    partition = numbers("partition")
    places, place = np.unique(np.stack([topic, partition]), axis=1, return_inverse=True)

    def texts(name: str) -> dict[int, str]:
        there = np.flatnonzero(pc.greater(pc.utf8_length(table[name]), 0).fill_null(False))
        return {int(i): table[name][int(i)].as_py() for i in there}

    return History(
        partitions=[(topics[t], int(p)) for t, p in places.T],
        keys=[None if text == "-" else bytes.fromhex(text) for text in keys],
        processes=processes,
        partition=place.reshape(-1).astype(np.int64),
        key=key,
        start=numbers("ns"),
        process=process,
        **{name: numbers(name) for name in _NUMBERS},
        errors=texts("error"),
        saw=texts("saw"),
        left=texts("left"),
    )
