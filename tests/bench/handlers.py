"""What the benchmarks do with a record, on either side."""

from __future__ import annotations

import asyncio
import os
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pandas as pd
    import pyarrow as pa
    from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

    from coopconsume import Record, State

#: The columns that a plain Spark user's loop needs to build the same records. The time is taken
#: as a number, as ours is: a column of timestamps would cost the plain side a good deal more.
PLAIN_COLUMNS = (
    "topic", "partition", "offset", "key", "value", "unix_millis(timestamp) as timestamp",
)  # fmt: skip


def handler(record: Record) -> None:
    """Do nothing."""


def total(record: Record, state: State) -> None:
    """Count the records of a key."""
    state.set(state.get(0) + 1)


class SparkTotal(StatefulProcessor):
    """The same for Spark; the total of a key comes out after each batch."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state."""
        self.total = handle.getValueState("total", "total bigint")

    def handleInputRows(  # noqa: N802 - PySpark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Count the rows of a key."""
        import pandas as pd

        before = self.total.get() if self.total.exists() else None
        now = (before[0] if before else 0) + sum(len(some) for some in rows)
        self.total.update((now,))
        yield pd.DataFrame({"key": [key[0]], "total": [now]})

    def close(self) -> None:
        """Nothing is open."""


class FirstCall:
    """Does nothing, but for a file that the first call in each process makes, unless it exists.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.noted_by = 0

    def __call__(self, record: Record) -> None:
        """Do nothing."""
        if self.noted_by != os.getpid():
            self.noted_by = os.getpid()
            with suppress(FileExistsError):
                Path(self.path).touch(exist_ok=False)


class Sleeper:
    """Sleeps 0 to 5 ms by a hash of the offset; notes when each process began.

    Args:
        folder: Where the notes go.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.noted_by = 0

    def note(self) -> None:
        """Note that this process handles records, once."""
        if self.noted_by != os.getpid():
            self.noted_by = os.getpid()
            Path(self.folder, f"{time.time_ns()}-{os.getpid()}").touch()

    def __call__(self, record: Record) -> None:
        """Handle one record."""
        self.note()
        time.sleep(zlib.crc32(b"%d" % record.offset) % 5_001 / 1_000_000)

    def first_start(self) -> float:
        """Seconds since the epoch at which the first handler began."""
        return min(int(path.name.partition("-")[0]) for path in Path(self.folder).iterdir()) / 1e9


class Wait:
    """Waits for so many seconds, as for a service; notes when each process began.

    Args:
        seconds: How long.
    """

    def __init__(self, seconds: float, notes: Sleeper | None = None) -> None:
        self.seconds = seconds
        self.notes = notes

    def noting(self, notes: Sleeper) -> Wait:
        """The same, with a place for its notes."""
        return type(self)(self.seconds, notes)

    def __call__(self, record: Record) -> Any:
        """Handle one record."""
        assert self.notes is not None
        self.notes.note()
        time.sleep(self.seconds)

    def first_start(self) -> float:
        """Seconds since the epoch at which the first handler began."""
        assert self.notes is not None
        return self.notes.first_start()


class AsyncWait(Wait):
    """The same as a coroutine."""

    async def __call__(self, record: Record) -> None:
        """Handle one record."""
        assert self.notes is not None
        self.notes.note()
        await asyncio.sleep(self.seconds)


class Stuck:
    """Takes 5 ms; the first record of one key takes longer.

    Args:
        folder: Where notes go.
        topic: The topic of the key.
        key: The key that is stuck.
        seconds: For how long.
    """

    def __init__(self, folder: str, topic: str, key: bytes, seconds: float) -> None:
        self.notes = Sleeper(folder)
        self.place = (topic, key)
        self.seconds = seconds

    def __call__(self, record: Record) -> None:
        """Handle one record."""
        self.notes.note()
        is_first = (record.topic, record.key) == self.place and record.offset < 1_000
        time.sleep(self.seconds if is_first else 0.005)

    def first_start(self) -> float:
        """Seconds since the epoch at which the first handler began."""
        return self.notes.first_start()


class PlainLoop:
    """The loop that a plain Spark user writes in ``mapInArrow``: a record a row, then the call."""

    def __init__(self, function: Callable[[Record], Any]) -> None:
        self.function = function

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Call the function with every row; yields how many there were."""
        import pyarrow as pa

        from coopconsume.record import Record

        function, make, rows = self.function, tuple.__new__, 0
        for batch in batches:
            columns = [column.to_pylist() for column in batch.columns]
            for row in zip(*columns, strict=True):
                function(make(Record, (*row, (), 1)))
            rows += batch.num_rows
        yield pa.RecordBatch.from_pydict({"rows": [rows]})


def to_lists(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Turn every column into a Python list; yields how many rows there were."""
    import pyarrow as pa

    rows = 0
    for batch in batches:
        columns = [column.to_pylist() for column in batch.columns]
        rows += len(columns[0])
    yield pa.RecordBatch.from_pydict({"rows": [rows]})


class Stamps:
    """Notes the offset, the time that the value begins with, and the time of the call.

    Args:
        folder: Where the notes go, in a file of each process.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.file: int | None = None

    def __reduce__(self) -> Any:
        return Stamps, (self.folder,)

    def __call__(self, record: Record) -> None:
        """Note them."""
        now = time.time_ns()
        if self.file is None:
            path = f"{self.folder}/{os.getpid()}"
            self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        intended = int((record.value or b"0").split(b" ", 1)[0])
        os.write(self.file, b"%d %d %d\n" % (record.offset, intended, now))


class StuckStamps(Stamps):
    """Notes them, too; the first call for one key from an offset on takes longer.

    Args:
        folder: Where the notes go.
        key: The key that is stuck.
        offset: From which offset on.
        seconds: For how long.
    """

    def __init__(self, folder: str, key: bytes, offset: int, seconds: float) -> None:
        super().__init__(folder)
        self.stuck = (key, offset, seconds)
        self.is_over = False

    def __reduce__(self) -> Any:
        return StuckStamps, (self.folder, *self.stuck)

    def __call__(self, record: Record) -> None:
        """Note them."""
        super().__call__(record)
        key, offset, seconds = self.stuck
        if record.key == key and record.offset >= offset and not self.is_over:
            self.is_over = True
            time.sleep(seconds)


class Timed:
    """Takes 5 ms; notes when each call began and ended, and whether it was for one key.

    Args:
        folder: Where the notes go, in a file of each process.
        key: The key.
    """

    def __init__(self, folder: str, key: bytes) -> None:
        self.folder = folder
        self.key = key
        self.file: int | None = None

    def __reduce__(self) -> Any:
        return Timed, (self.folder, self.key)

    def __call__(self, record: Record) -> None:
        """Handle one record."""
        began = time.time()
        time.sleep(0.005)
        if self.file is None:
            path = f"{self.folder}/{os.getpid()}"
            self.file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.write(self.file, b"%f %f %d\n" % (began, time.time(), record.key == self.key))
