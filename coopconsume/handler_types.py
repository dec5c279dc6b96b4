"""The types of handlers and their answers, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

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
RecordT_contra = TypeVar("RecordT_contra", contravariant=True)
AnswerT_co = TypeVar("AnswerT_co", covariant=True)

#: What asks for another outcome than done: `Retry`, `Reject`, or any other exception.
Outcome = BaseException | type[BaseException]
#: What a handler returns: nothing, an output row, an outcome, or several of them.
Answer = (
    Mapping[str, Any] | Outcome | Iterable[Mapping[str, Any] | tuple[Any, ...] | Outcome] | None
)
_Answered = Answer | Coroutine[Any, Any, Answer]


class _Called(Protocol[RecordT_contra, AnswerT_co]):
    """A handler that is an object."""

    def __call__(self, given: RecordT_contra, /) -> AnswerT_co: ...


class _CalledWithState(Protocol[RecordT_contra]):
    """The same with the state of the record's key."""

    def __call__(self, record: RecordT_contra, state: State, /) -> _Answered: ...


CalledT = TypeVar("CalledT")
#: A context manager whose entering returns the handler.
_Managed = AbstractContextManager[CalledT, Any] | AbstractAsyncContextManager[CalledT, Any]
#: An object or a class that is opened, for a handler of some type.
_Alive = type[CalledT] | _Managed[CalledT] | type[_Managed[CalledT]]
#: A handler of records, plain or ``async``, its class, a context manager of one, or its name as
#: ``module:function``.
Handler = Callable[[Record[K, V]], _Answered] | _Alive[_Called[Record[K, V], _Answered]] | str
#: The same for a handler of records and the state of their keys.
StateHandler = (
    Callable[[Record[K, V], State], _Answered] | _Alive[_CalledWithState[Record[K, V]]] | str
)
#: What a frame handler returns: nothing, an outcome for all rows, a column, or a list with an
#: outcome for each row.
FrameAnswer = Outcome | Iterable[Any] | None
_FrameAnswered = FrameAnswer | Coroutine[Any, Any, FrameAnswer]
#: The same for a handler of frames. A frame is a `pyarrow.RecordBatch` or a pandas DataFrame.
FrameFunction = Callable[[Any], _FrameAnswered] | _Alive[_Called[Any, _FrameAnswered]] | str


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
