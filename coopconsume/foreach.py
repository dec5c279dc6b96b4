"""`HandlerMethods`: `foreach`, `foreach_with_state` and `foreach_frame` of a consumer."""

from __future__ import annotations

import inspect
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from coopconsume.errors import InvalidOption
from coopconsume.option_values import seconds_of
from coopconsume.query import CooperativeForeach
from coopconsume.record import MAX_WAIT
from coopconsume.runtime.commit.state_log import HISTORY, StateLog
from coopconsume.runtime.job_spec import HandlerSettings
from coopconsume.state.schema import StateSchema
from coopconsume.worker.frame_runner import FrameHandler

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from coopconsume.decoding.declaration import Declared
    from coopconsume.handler_types import (
        ForeachSettings,
        FrameFunction,
        FrameSettings,
        Handler,
        K,
        RecordSettings,
        StateHandler,
        StateSettings,
        V,
    )
    from coopconsume.subscription import Subscription
    from coopconsume.ui.page import PageOnDemand
    from coopconsume.worker.frame_runner import Format

Method = TypeVar("Method", bound="Callable[..., Any]")

_MOST_IN_A_FRAME = 100_000


def takes_settings(*, without: str = "") -> Callable[[Method], Method]:
    """Has the signature of a method show the arguments that `HandlerSettings` declares.

    They are checked against it, so that an unknown argument is refused in the method's name.

    Args:
        without: The argument that the method does not have.
    """

    def decorate(method: Method) -> Method:
        own = inspect.signature(method)
        declared = {
            field.name: inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default,
                annotation=field.type,
            )
            for field in fields(HandlerSettings)
            if field.name != without
        }  # fmt: skip
        others = [
            each
            for name, each in own.parameters.items()
            if each.kind is not each.VAR_KEYWORD and name not in declared
        ]
        shown = own.replace(parameters=[*others, *declared.values()])

        @wraps(method)
        def checked(*args: Any, **given: Any) -> Any:
            try:
                shown.bind(*args, **given)
            except TypeError as error:
                raise TypeError(f"CooperativeConsumer.{method.__name__}() {error}") from None
            return method(*args, **given)

        vars(checked)["__signature__"] = shown
        return cast("Method", checked)

    return decorate


class HandlerMethods:
    """The methods of `CooperativeConsumer` that give it a handler."""

    _subscription: Subscription
    _page: PageOnDemand

    @overload
    def foreach(
        self,
        handler: Handler[bytes | None, bytes | None],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach(
        self,
        handler: Handler[bytes | None, V],
        *,
        value: Declared[V],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach(
        self,
        handler: Handler[K, bytes | None],
        *,
        key: Declared[K],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach(
        self,
        handler: Handler[K, V],
        *,
        value: Declared[V],
        key: Declared[K],
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach: ...

    @takes_settings()
    def foreach(
        self,
        handler: Handler[Any, Any],
        *,
        value: Declared[Any] | None = None,
        key: Declared[Any] | None = None,
        **settings: Unpack[ForeachSettings],
    ) -> CooperativeForeach:
        """Call a handler with every record, in the order of its key.

        Args:
            handler: A function of a `Record`, plain or ``async``, or its name as
                ``module:function``; or an object or a class with ``open(slot)``, ``__call__`` and
                ``close(error)``, which each worker opens once. It returns nothing, an output row
                (a dictionary) or several; it raises, or answers `Retry` or `Reject`, when a record
                is not done. Without ``output`` any other answer is ignored. With it, an answer
                that does not fit ``output_schema`` fails its record.
            concurrency: Handlers at once in a slot, plain ones on threads, ``async`` ones on one
                event loop; in all ``slots`` times so many.
            ordering: What is handled strictly one after another: ``key``, ``partition`` or
                ``none``. With ``partition`` the member takes whole partitions alone.
            retry: By default a failed record is tried again for ever, 1 s to 60 s apart.
            dead_letter: Where records go that are given up, if not by the option ``deadLetter``:
                path of a Delta table, or ``kafka:`` and a topic.
            on_dead: ``continue`` with the key of a record that is given up, or ``park`` it: later
                records of the key wait, over restarts too, until ``coopconsume dead-letters``
                replays or discards the record.
            output: Where rows go that handlers return, before the commit of their records: path of
                a Delta table; ``kafka:`` and a topic, for rows with the columns ``value`` and
                perhaps ``key``, ``partition``, ``headers``; or a function of a DataFrame and the
                commit's id, as for ``foreachBatch``.
            output_schema: Their columns, as DDL, Spark or Arrow schema.
            output_mode: ``append``, to be read by `committed_rows`; ``merge``: slower, for a
                Delta table that has each record's rows once as it lies; ``transactional``, for a
                topic in which readers of ``read_committed`` see them once, when the stable offset
                has passed the record. It needs the option ``purgatory``.
            output_partition_by: The columns, of ``output_schema`` or of those that the library
                adds, that partition a Delta table which the first rows create. A table that exists
                must have the same; empty: it may have any.
            value: What ``record.value`` is, decoded in the slot: a pydantic model, a dataclass or a
                ``msgspec.Struct``, which are read from JSON; ``"json"`` or ``"text"``; a function
                of bytes, which gets null as None; a `SchemaRegistryDecoder`; a `DecoderFactory`; or
                the name of one as ``module:name``. Where a class is declared as ``Order``, null
                does not decode, and as ``Order | None`` it is None for the handler. What does not
                decode is a dead letter at once, unless the retry policy's ``undecodable`` says
                otherwise. None: bytes.
            key: What ``record.key`` is, declared as for ``value``. The order is that of the bytes.

        Raises:
            HandlerNotUsable: The handler cannot be found, called with one argument, or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: A table has other columns.
        """
        given = HandlerSettings(value=value, key=key, **settings)
        return CooperativeForeach(self._subscription, self._page, handler, given)

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[bytes | None, bytes | None],
        *,
        state_schema: Any,
        state: str,
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[bytes | None, V],
        *,
        state_schema: Any,
        state: str,
        value: Declared[V],
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[K, bytes | None],
        *,
        state_schema: Any,
        state: str,
        key: Declared[K],
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @overload
    def foreach_with_state(
        self,
        handler: StateHandler[K, V],
        *,
        state_schema: Any,
        state: str,
        value: Declared[V],
        key: Declared[K],
        **settings: Unpack[StateSettings],
    ) -> CooperativeForeach: ...

    @takes_settings(without="ordering")
    def foreach_with_state(
        self,
        handler: StateHandler[Any, Any],
        *,
        state_schema: Any,
        state: str,
        ttl: float | str | None = None,
        history: int = HISTORY,
        value: Declared[Any] | None = None,
        key: Declared[Any] | None = None,
        **settings: Unpack[RecordSettings],
    ) -> CooperativeForeach:
        """Calls a handler with every record and the state of its key, in the order of the key.

        A change of the state counts if and only if the commit of its record counts. After a crash
        the state of a key is that of its committed records, each applied once. A failed record and
        a dead letter change nothing. A record without a key fails.

        Args:
            handler: A function of a `Record` and a `State`, plain or ``async``, its name as
                ``module:function``, or an object or a class that is opened, as in `foreach`. It
                answers as in `foreach`.
            state_schema: The type of a value: DDL of a type (``"long"``) or of columns
                (``"count long, total double"``, whose values are dictionaries), ``"bytes"``, or a
                Spark or Arrow type.
            state: Path or URI of a folder for the Delta tables of the state; see
                docs/explanation/state.
            ttl: The time after which a value is gone that a handler sets: seconds, or text such as
                ``"1 day"``; `State.ttl` sets another one. None: it stays.
            history: The number of the last changes of a partition that are kept at least, or those
                of its last 1,000 commits, so that offsets can be reset with the state and earlier
                states can be read. 0: only the newest state, which takes the least space. If
                members differ, the owner of hash 0 of a partition decides.
            concurrency: As in `foreach`.
            retry: As in `foreach`.
            dead_letter: As in `foreach`.
            on_dead: As in `foreach`.
            output: As in `foreach`.
            output_schema: As in `foreach`.
            output_mode: As in `foreach`.
            value: As in `foreach`.
            key: As in `foreach`. The state is that of the key's bytes.

        Raises:
            HandlerNotUsable: The handler cannot be found, called with two arguments, or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: There is a state of another schema at the path, or something else.
        """
        if isinstance(handler, FrameHandler):
            raise InvalidOption("handler", "a frame handler", "give a function of (record, state)")
        log = _state_log(state, state_schema, ttl, history)
        given = HandlerSettings(value=value, key=key, **settings)
        return CooperativeForeach(self._subscription, self._page, handler, given, log)

    @takes_settings(without="concurrency")
    def foreach_frame(
        self,
        handler: FrameFunction,
        *,
        max_records: int = 1_000,
        format: Format = "arrow",  # noqa: A002 - as in PySpark
        **settings: Unpack[FrameSettings],
    ) -> CooperativeForeach:
        """Call a handler with many records at once, in their order, and settle each by itself.

        A frame holds records of one partition and slot, with the columns ``topic``, ``partition``,
        ``offset``, ``key``, ``value``, ``timestamp``, ``attempt`` and, with ``includeHeaders``,
        ``headers``. A slot handles one frame after another.

        Args:
            handler: A function of a frame, plain or ``async``, its name as ``module:function``,
                or an object or a class that is opened, as in `foreach`. It returns None if all
                are done; or a list of outcomes, one a row: None, an output row or several, `Retry`,
                `Reject` or another exception; or a column, in which, as in the list, null and true
                are done, false and texts are tried again. What it raises holds for every row. A row
                behind a failed one of its key waits, even if its own outcome is done.
            max_records: In one frame, 1 to 100,000.
            format: ``arrow`` for a `pyarrow.RecordBatch`, ``pandas`` for a DataFrame.
            ordering: As in `foreach`.
            retry: As in `foreach`; its ``timeout`` holds for a frame.
            dead_letter: As in `foreach`.
            on_dead: As in `foreach`.
            output: As in `foreach`.
            output_schema: As in `foreach`.
            output_mode: As in `foreach`.
            value: As in `foreach`. A class has a column for each field instead of the column
                ``value``, as ``value.amount``. ``"text"`` is a column of text. In pandas frames,
                all else is a column of objects; Arrow frames have no such columns.
            key: As for ``value``.

        Raises:
            HandlerNotUsable: The handler cannot be found, called with one argument, or pickled.
            InvalidOption: An argument is out of its range, or lacks its counterpart.
            TableUnusable: A table has other columns.
        """
        if not isinstance(max_records, int) or not 1 <= max_records <= _MOST_IN_A_FRAME:
            hint = f"give 1 to {_MOST_IN_A_FRAME:,}"
            raise InvalidOption("max_records", repr(max_records), hint)
        if format not in ("arrow", "pandas"):
            raise InvalidOption("format", repr(format), "give arrow or pandas")
        in_frames = FrameHandler(handler, max_records, format)
        given = HandlerSettings(**settings)
        return CooperativeForeach(self._subscription, self._page, in_frames, given)


def _state_log(state: str, schema: Any, ttl: float | str | None, history: int) -> StateLog:
    """Returns the state that `foreach_with_state` names.

    Raises:
        InvalidOption: An argument is out of its range.
        TableUnusable: There is a state of another schema at the path, or something else.
    """
    if not isinstance(state, str) or not state:
        raise InvalidOption("state", repr(state), "give the path of a folder")
    lifetime = None if ttl is None else seconds_of("ttl", ttl)
    if lifetime is not None and not 0 < lifetime <= MAX_WAIT:
        raise InvalidOption("ttl", repr(ttl), "give a time above 0, up to 365 days")
    if not isinstance(history, int) or isinstance(history, bool) or history < 0:
        raise InvalidOption("history", repr(history), "give a number of changes, from 0")
    return StateLog(state, StateSchema.parse(schema), lifetime, history)
