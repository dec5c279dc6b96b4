"""The decisions of the fenced Delta sink: runs of a job at once, stopped and woken anywhere."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from coopconsume.errors import CheckpointReplaced
from coopconsume.sinks import fenced_delta
from coopconsume.sinks.fenced_delta import FencedDeltaSink, SinkProgress, decide, is_conflict


class Table:
    """Delta's promise: one number a job; equal or lower ones are skipped, silently."""

    def __init__(self) -> None:
        self.version = 0
        self.batches: list[tuple[int, int]] = []  # epoch and batch of each that was written

    def append(self, mark: SinkProgress, read: int, *, batch: tuple[int, int] | None) -> bool:
        if self.version != read:
            return False  # a concurrent change of the same number
        if mark.version > self.version:
            self.version = mark.version
            if batch is not None:
                self.batches.append(batch)
        return True


def run(epoch: int, first: int, table: Table):
    """A run of a job as a generator that stops before each look and each write."""
    batch = first
    while True:
        yield
        read = table.version
        found = SinkProgress.of(read)
        mark = decide(found, epoch, batch)
        if mark is None:
            return
        if mark == found:
            batch += 1
            continue
        yield
        has_rows = mark.batches > found.batches
        table.append(mark, read, batch=(epoch, batch) if has_rows else None)


@settings(max_examples=500)
@given(
    st.lists(st.integers(0, 3), max_size=80), st.lists(st.integers(0, 2), min_size=3, max_size=3)
)
def test_each_batch_is_there_once_and_epochs_do_not_mix(turns: list, behind: list) -> None:
    """Each run starts at a batch that may have been written before, in any interleaving."""
    table = Table()
    runs = {}
    for turn in turns:
        if turn not in runs:
            done = len(table.batches)
            first = max(0, done - behind[turn]) if turn < 3 else done
            runs[turn] = run(len(runs) + 1, first, table)
        next(runs[turn], None)
    written = [batch for _, batch in table.batches]
    assert written == list(range(len(written)))
    epochs = [epoch for epoch, _ in table.batches]
    assert epochs == sorted(epochs)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(1, 5), st.integers(0, 5))
def test_a_run_is_refused_if_and_only_if_its_epoch_is_over(
    in_force: int, batches: int, epoch: int, batch: int
) -> None:
    """Also for a batch that is in the table: it must stop, not go on."""
    assert (decide(SinkProgress(in_force, batches), epoch, batch) is None) == (epoch < in_force)


@given(st.integers(0, 2**23 - 1), st.integers(0, 2**40 - 1))
def test_a_mark_is_one_number(epoch: int, batches: int) -> None:
    """In the order of epochs, then batches; and it fits into Delta's."""
    mark = SinkProgress(epoch, batches)
    assert SinkProgress.of(mark.version) == mark
    assert mark.version < 2**63
    assert (SinkProgress(epoch, 2**40 - 1).version < SinkProgress(epoch + 1, 0).version) is True


def test_a_sink_needs_an_epoch_and_a_name() -> None:
    """Before anything is written."""
    for epoch in (0, 2**23):
        with pytest.raises(ValueError, match="epoch"):
            FencedDeltaSink("table", "job", epoch)
    with pytest.raises(ValueError, match="name"):
        FencedDeltaSink("table", "", 1)


@pytest.mark.parametrize(("batches", "batch", "first", "is_other"), [
    (5, 4, "other", False), (5, 3, "this", True), (2, 0, "this", True),
    (1, 0, "this", False), (1, 0, "other", True), (1, 0, None, False),
])  # fmt: skip
def test_another_checkpoint_is_noticed(
    batches: int, batch: int, first: str | None, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream repeats no more than its last batch, and has an id; the table is not written."""
    sink = FencedDeltaSink("nowhere", "job", 3)
    monkeypatch.setattr(sink, "mark", lambda: SinkProgress(3, batches))
    monkeypatch.setattr(sink, "_first_stream", lambda: first)
    monkeypatch.setattr(fenced_delta, "stream_id", lambda _: "this")
    with pytest.raises(CheckpointReplaced) if is_other else nullcontext():
        sink(SimpleNamespace(sparkSession=None), batch)  # type: ignore[arg-type]


def test_the_oldest_version_that_names_the_job_has_its_first_stream(tmp_path: Path):
    """Of those whose entries are there; other writers may note whatever they like."""
    notes = ["{}", "[1]", "no JSON", None, '{"coopconsume.fenced.j": "first"}',
             '{"coopconsume.fenced.k": "other"}', '{"coopconsume.fenced.j": "second"}']  # fmt: skip
    path, rows = str(tmp_path / "table"), pa.table({"number": [1]})
    for note in notes:
        said = None if note is None else CommitProperties(custom_metadata={"userMetadata": note})
        write_deltalake(path, rows, mode="append", commit_properties=said)
    streams = {job: FencedDeltaSink(path, job, 1)._first_stream() for job in "jkl"}
    assert streams == {"j": "first", "k": "other", "l": None}
    (tmp_path / "table" / "_delta_log" / f"{4:020d}.json").unlink()
    assert FencedDeltaSink(path, "j", 1)._first_stream() == "second"


def test_a_conflict_is_known_with_and_without_deltas_package_for_python():
    """Its class has the name, or PySpark's error has it in its text."""
    kind = type("ConcurrentAppendException", (Exception,), {})
    java = "io.delta.exceptions.ConcurrentTransactionException: This error occurs when"
    assert is_conflict(kind("files were added"))
    assert is_conflict(RuntimeError(java))
    assert not is_conflict(RuntimeError("java.io.IOException: No space left on device"))
