"""Makes the records of a slot's rows, one at a time. Task-side code."""

from __future__ import annotations

from functools import partial
from itertools import chain, count, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

from coopconsume.record import Record
from coopconsume.worker.input_rows import HASH, KEY, OFFSET, STAMP, VALUE, InputRow, headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from coopconsume.record import Fields
    from coopconsume.values.callables import HandlerParts
    from coopconsume.worker.outcome import TaskOutcome

#: Where the value is in the fields of a record.
_VALUE: Final = Record._fields.index("value")
#: Where the field is that is drawn last.
_LAST: Final = len(Record._fields) - 1
#: So many cells are decoded at once: where a decoder and a handler are called in turn, the code of
#: each has to be read again by the processor.
_AT_ONCE: Final = 16


class RowRecords:
    """The records of an Arrow batch, in the order of its rows.

    Args:
        batch: The rows.
        outcome: The outcome of the slot.
        handler: A handler and the functions that decode keys or values for it; others stay bytes.

    Attributes:
        parts: The part of each row.
        offsets: The offset of each row.
        made: Makes the record of the next row. It calls nothing but the library's or the user's
            decoder: there is no line of Python for a record. Another one takes its place behind a
            record that was not made, or that waits.
    """

    def __init__(self, batch: pa.RecordBatch, outcome: TaskOutcome, handler: HandlerParts) -> None:
        self._rows, self._hashes = batch.num_rows, batch.column(HASH)
        rows, names, history = batch.num_rows, outcome.spec.partitions, outcome.history
        self.offsets: list[int]
        self.offsets, keys, values, stamps = (
            batch.column(n).to_pylist() for n in (OFFSET, KEY, VALUE, STAMP)
        )
        self.parts: list[int]
        if len(outcome.work) == 1:
            (part,) = outcome.work
            self.parts = [part] * rows
            topics, numbers = ([name] * rows for name in names[part])
        else:
            self.parts = batch.column(0).to_pylist()
            topics, numbers = ([names[part][n] for part in self.parts] for n in (0, 1))
        attempts, headers = [1] * rows, [*headers_of(batch)]
        if history.is_known:
            attempts = [*map(history.attempt, self.parts, self.offsets)]
            headers = [*map(history.headers, self.parts, self.offsets, headers)]
        #: Of each field of a record, the cells of all rows, and an iterator over them.
        self._columns = (topics, numbers, self.offsets, keys, values, stamps, headers, attempts)
        self._cells = [*map(iter, self._columns)]
        fields: list[Iterator[Any]] = list(self._cells)
        self._fields = fields
        #: The function that reads ahead, the place of its field, and its results from some row on.
        self._reads_ahead: tuple[Callable[[Any], Any], int] | None = None
        self._ahead: Iterator[Any] = iter(())
        self._only = next(iter(handler.decode)) if len(handler.decode) == 1 else None
        for name, function in handler.decode.items():
            place = Record._fields.index(name)
            context: list[Iterator[Any]] = []
            if name in handler.with_context:
                context = [iter(topics), iter(headers)]
                self._cells += context
            fields[place] = map(function, fields[place], *context)
            if handler.reads_ahead:
                self._reads_ahead = function, place
        self.made: Iterator[Record[Any, Any]]
        self._make(0)

    def _make(self, number: int) -> None:
        """Has `made` begin with a row; the cells of all rows before it are drawn."""
        if self._reads_ahead is not None:
            function, place = self._reads_ahead
            self._ahead = _in_blocks(function, self._columns[place], number)
            self._fields[place] = self._ahead
        # `Record._make` is Python. What a decoder raises may be StopIteration: not strict.
        self.made = map(tuple.__new__, repeat(Record), zip(*self._fields, strict=False))

    def skip(self, number: int) -> Iterator[Record[Any, Any]]:
        """Has `made` continue behind a row; it has drawn all cells of the row, some or none.

        Returns:
            `made`.
        """
        rest, is_ahead = self._rows - number - 1, True
        if length_hint(self._cells[0]) > rest:
            try:
                next(self._ahead, None)
            except Exception:  # noqa: BLE001 - it may be one that does not decode
                is_ahead = False
        elif length_hint(self._cells[_LAST]) > rest:
            is_ahead = False
        for cells in self._cells:
            if length_hint(cells) > rest:
                next(cells)
        if not is_ahead:
            # What was raised, such as by a handler of a signal, may have come between two cells,
            # and would have the records behind it get values of others.
            self._make(number + 1)
        return self.made

    def error_of(self, number: int, error: BaseException) -> BaseException:
        """Returns the error of a row: if its record was not made, that of its decoder."""
        rest = self._rows - number - 1
        try:
            if isinstance(error, Exception) and length_hint(self._cells[_LAST]) > rest:
                from coopconsume.decoding.failures import refusal

                has_drawn_value = length_hint(self._cells[_VALUE]) == rest
                name = self._only or ("value" if has_drawn_value else "key")
                return refusal(name, error)
        except Exception as odd:  # noqa: BLE001 - an error of the user's can raise as it is looked at
            return odd
        finally:
            self.skip(number)
        return error

    def row(self, number: int) -> InputRow:
        """Returns a row of the batch."""
        _, _, offsets, keys, values, stamps, headers, _ = self._columns
        return InputRow(
            self.parts[number], offsets[number], self._hashes[number].as_py(), keys[number],
            values[number], stamps[number], headers[number],
        )  # fmt: skip

    def fields(self, number: int) -> Fields:
        """Returns the record of a row as it is in Kafka."""
        cells: Any = tuple([column[number] for column in self._columns])
        return cells  # type: ignore[no-any-return]


def _in_blocks(function: Callable[[Any], Any], cells: list[Any], first: int) -> Iterator[Any]:
    """Yields the results of a function for cells; it is called for several of them at once.

    Args:
        function: The function.
        cells: The cells.
        first: The place of the first cell that it is called for.
    """
    ends = range(first + _AT_ONCE, len(cells) + _AT_ONCE, _AT_ONCE)
    blocks = map(slice, count(first, _AT_ONCE), ends)
    return chain.from_iterable(map(partial(_results, function), map(cells.__getitem__, blocks)))


def _results(function: Callable[[Any], Any], cells: list[Any]) -> Iterable[Any]:
    try:
        return [*map(function, cells)]
    except Exception:  # noqa: BLE001 - it is raised at its own cell
        return map(function, cells)
