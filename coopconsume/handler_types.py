"""The types of handlers and their answers, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from coopconsume.record import Record
from coopconsume.state.value import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from coopconsume.decoding.declaration import Declared
    from coopconsume.record import OnDead, RetryPolicy
    from coopconsume.runtime.job_spec import OutputMode
    from coopconsume.worker.report import Ordering

K = TypeVar("K")
V = TypeVar("V")

#: What asks for another outcome than done: `Retry`, `Reject`, or any other exception.
Outcome = BaseException | type[BaseException]
#: What a handler returns: nothing, an output row, an outcome, or several of them.
Answer = (
    Mapping[str, Any] | Outcome | Iterable[Mapping[str, Any] | tuple[Any, ...] | Outcome] | None
)
_Answered = Answer | Coroutine[Any, Any, Answer]
#: A handler of records, plain or ``async``, or its name as ``module:function``.
Handler = Callable[[Record[K, V]], _Answered] | str
#: A handler of records and the state of their keys, or its name.
StateHandler = Callable[[Record[K, V], State], _Answered] | str
#: What a frame handler returns: nothing, an outcome for all rows, a column, or a list with an
#: outcome for each row.
FrameAnswer = Outcome | Iterable[Any] | None
#: A handler of frames, or its name. A frame is a `pyarrow.RecordBatch` or a pandas DataFrame.
FrameFunction = Callable[[Any], FrameAnswer | Coroutine[Any, Any, FrameAnswer]] | str


class OutcomeSettings(TypedDict, total=False):
    """The arguments that all handlers have in common, and that may be left out."""

    retry: RetryPolicy | None
    dead_letter: str | None
    on_dead: OnDead
    output: str | Callable[[DataFrame, str], object] | None
    output_schema: Any
    output_mode: OutputMode
    output_partition_by: str | Sequence[str]


class RecordSettings(OutcomeSettings, total=False):
    """Those of handlers of records."""

    concurrency: int


class ForeachSettings(RecordSettings, total=False):
    """The other arguments of `CooperativeConsumer.foreach`."""

    ordering: Ordering


class StateSettings(RecordSettings, total=False):
    """The arguments of `CooperativeConsumer.foreach_with_state` that may be left out."""

    ttl: float | str | None
    history: int


class FrameSettings(OutcomeSettings, total=False):
    """The arguments of `CooperativeConsumer.foreach_frame` that `foreach` has, too."""

    ordering: Ordering
    value: Declared[Any] | None
    key: Declared[Any] | None
