"""Checks of a job before it starts: its settings and its handler."""

from __future__ import annotations

from importlib import import_module
from inspect import isasyncgenfunction
from typing import TYPE_CHECKING, Any

from commits.places import is_named
from coopconsume.decoding.columns import FrameDecoder
from coopconsume.decoding.declaration import label_of
from coopconsume.decoding.shipping import make_ready
from coopconsume.errors import HandlerNotUsable, InvalidOption
from coopconsume.runtime.dispatch.batch import rates_of
from coopconsume.runtime.pickling import unpicklable_part
from coopconsume.sinks.base import topic_of
from coopconsume.sinks.letters import letter_tables
from coopconsume.sinks.others import check_output
from coopconsume.sinks.purgatory import purgatory_path
from coopconsume.state.table import table_paths
from coopconsume.table_places import TablePlace, refuse_nested
from coopconsume.values.callables import NameNotFound, refused_call
from coopconsume.worker.frame_runner import FrameHandler
from coopconsume.worker.handler_life import enters, function_of, has_life, shown_handler
from coopconsume.worker.slot import resolve_handler

if TYPE_CHECKING:
    from coopconsume.decoding import Decoding
    from coopconsume.options import Options
    from coopconsume.runtime.job_spec import HandlerSettings

_MOST_HANDLERS = 1_000
_IN_OPEN = (
    "create it in the worker: in open(slot) of a handler that is an object, or inside a function"
)
_BY_NAME = "give module:function, of a module in the current folder or on Python's path"


def check_settings(options: Options, handler: Any, settings: HandlerSettings) -> None:
    """Checks the settings of a job, one beside the other.

    Args:
        options: Of the consumer.
        handler: The handler, or its name.
        settings: How it is run.

    Raises:
        InvalidOption: A setting is wrong, or does not fit another one.
        MissingOption: ``purgatory`` is missing for a transactional topic.
    """
    concurrency, ordering, on_dead = settings.concurrency, settings.ordering, settings.on_dead
    policy, dead_letter = settings.policy, settings.place_of_letters(options)
    if not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_HANDLERS:
        raise InvalidOption("concurrency", repr(concurrency), f"give 1 to {_MOST_HANDLERS}")
    if ordering not in ("key", "partition", "none"):
        raise InvalidOption("ordering", repr(ordering), "give key, partition or none")
    if options.uses_chunks and ordering != "none":
        raise InvalidOption(
            "sharing",
            f"'cooperative' with ordering={ordering!r}",
            "give ordering='none': members that share partitions by chunks keep no order; or "
            "sharing='keyRanges'",
        )
    if policy.may_give_up and dead_letter is None:
        raise InvalidOption(
            "retry",
            f"{policy} without dead_letter",
            "say by dead_letter=… (--dead-letter) where records go that are given up",
        )
    _check_output(options, settings)
    check_tables(options, settings)
    if ordering != "key" and options.max_records_per_second_per_key is not None:
        raise InvalidOption(
            "maxRecordsPerSecondPerKey", f"ordering={ordering!r}", "it needs ordering='key'"
        )
    if isinstance(handler, FrameHandler) and rates_of(options, 1):
        raise InvalidOption(
            "maxRecordsPerSecond", "a frame handler", "give maxOffsetsPerTrigger, or foreach"
        )
    if on_dead not in ("continue", "park"):
        raise InvalidOption("on_dead", repr(on_dead), "give continue or park")
    if on_dead == "park" and dead_letter is None:
        remedy = "give dead_letter=… (--dead-letter), too"
        raise InvalidOption("on_dead", "park without dead_letter", remedy)
    if policy.undecodable == "park" and dead_letter is None:
        remedy = "give dead_letter=… (--dead-letter), too"
        raise InvalidOption("undecodable", "park without dead_letter", remedy)
    check_decoding(settings.decoding, handler)
    _check_extras(options)


def _check_extras(options: Options) -> None:
    """Refuses options whose packages are not installed."""
    for option, is_set, module, extra in (
        ("traceHandlers", options.trace_handlers, "opentelemetry.trace", "otel"),
        ("emitLineage", options.emit_lineage, "openlineage.client.event_v2", "lineage"),
    ):
        if not is_set:
            continue
        try:
            import_module(module)
        except ImportError as error:
            remedy = f"{error.name} is not installed: pip install 'coopconsume[{extra}]'"
            raise InvalidOption(option, "true", remedy) from error


def check_decoding(decoding: Decoding | None, handler: Any = None) -> None:
    """Finds out now, not in a task, whether workers will be able to decode keys and values.

    Args:
        decoding: The declarations; None: handlers get bytes.
        handler: The handler, or its name; a frame handler gets columns.

    Raises:
        InvalidOption: A declaration is unknown, lacks a package, cannot be pickled, or has no
            columns.
    """
    from pyspark import cloudpickle

    if decoding is None:
        return
    decoding.check()
    if isinstance(handler, FrameHandler):
        FrameDecoder(decoding, handler.format, connects=False)
    for name, given in decoding.declared.items():
        make_ready(name, label_of(given), given)
        try:
            cloudpickle.dumps(given)
        except Exception as error:
            why = f"it cannot be pickled ({type(error).__name__}: {error})"
            remedy = f"{why}: give DecoderFactory(…) of a function that makes it, or module:name"
            raise InvalidOption(name, label_of(given), remedy) from error


def check_tables(
    options: Options,
    settings: HandlerSettings | None = None,
    state: str | None = None,
    *,
    commit_table: str | None = None,
) -> None:
    """Checks that no table of a job or a consumer is inside another one.

    Args:
        options: Of the consumer.
        settings: How the handler is run; None without a job.
        state: The folder or URI of the job's state.
        commit_table: The location of the commit table; by default the option, unless it is the
            name of a table in a catalog.

    Raises:
        InvalidOption: A table is inside another one, or two are the same.
    """
    if commit_table is None and not is_named(options.commit_table):
        commit_table = options.commit_table
    letters, output, mode = options.dead_letter, None, "append"
    if settings is not None:
        letters, mode = settings.place_of_letters(options), settings.output_mode
        output = settings.output if isinstance(settings.output, str) else None
    topic = topic_of(output)
    tables = [] if commit_table is None else [TablePlace("commitTable", commit_table)]
    tables += [TablePlace("deadLetter", path) for path in letter_tables(letters)]
    tables += [TablePlace("state", path) for path in table_paths(state)] if state else []
    if output is not None and topic is None:
        tables.append(TablePlace("output", output))
    if mode == "transactional" and topic is not None and options.purgatory is not None:
        path = purgatory_path(options.purgatory, (options.group_id, topic))
        tables.append(TablePlace("purgatory", path))
    refuse_nested(tables)


def _check_output(options: Options, settings: HandlerSettings) -> None:
    output, schema, mode = settings.output, settings.output_schema, settings.output_mode
    partition_by = settings.output_partition_by
    if (output is None) != (schema is None):
        both = [("output", output), ("output_schema", schema)]
        (given, value), (missing, _) = sorted(both, key=lambda one: one[1] is None)
        raise InvalidOption(given, f"{value!r} without {missing}", f"give {missing}, too")
    if output is None and mode != "append":
        raise InvalidOption("output_mode", f"{mode!r} without output", "give output=…, too")
    if output is None and partition_by:
        found = f"{partition_by!r} without output"
        raise InvalidOption("output_partition_by", found, "give output=…, too")
    if output is not None:
        check_output(output, mode, options, partition_by=partition_by)


def check_handler(handler: Any, *, with_state: bool = False) -> None:
    """Finds out now, not in a task, whether workers will be able to run a handler.

    Args:
        handler: The handler.
        with_state: Whether it is called with a record and its state.

    Raises:
        HandlerNotUsable: It is not callable, takes something else than one argument, cannot be
            imported or cannot be pickled.
    """
    from pyspark import cloudpickle

    named, shown = function_of(handler), shown_handler(handler)
    try:
        found: Any = resolve_handler(named)
    except NameNotFound as error:
        raise HandlerNotUsable(shown, str(error), _BY_NAME) from error
    except Exception as error:
        raise HandlerNotUsable(shown, f"{type(error).__name__}: {error}", _BY_NAME) from error
    try:
        cloudpickle.dumps(handler)
    except Exception as error:
        part, why = unpicklable_part(named), f"{type(error).__name__}: {error}"
        if part is None:
            raise HandlerNotUsable(shown, why) from error
        raise HandlerNotUsable(shown, f"{part[0]}: {part[1]}", _IN_OPEN) from error
    if not (callable(found) or enters(found)):
        raise HandlerNotUsable(shown, "it is not callable")
    arguments = ("frame",) if isinstance(handler, FrameHandler) else ("record",)
    wrong = _wrong_with(found, (*arguments, "state") if with_state else arguments)
    if wrong:
        raise HandlerNotUsable(shown, wrong)


def _wrong_with(function: Any, arguments: tuple[str, ...]) -> str:
    """Returns why a handler cannot be called with some arguments; empty if it can."""
    own: tuple[str, ...] = ()
    called = function
    if isinstance(function, type):
        is_called = any("__call__" in base.__dict__ for base in function.__mro__)
        if not (is_called or enters(function)):
            return "it is a class whose instances cannot be called: define __call__"
        if wrong := refused_call(function, (), function.__name__):
            return f"{wrong}; give an instance, as {function.__name__}(…)"
        own, called = ("self",), function.__call__
    call = getattr(function, "__call__", None)  # noqa: B004 - a method's kind, not its being there
    if isasyncgenfunction(function) or isasyncgenfunction(call):
        return "it is an async generator: return rows as a list instead of yielding them"
    if has_life(function):
        for name, argument in (("open", "slot"), ("close", "error")):
            method = getattr(function, name, None)
            if callable(method) and (wrong := refused_call(method, (*own, argument), name)):
                return f"{name}: {wrong}"
    return refused_call(called, (*own, *arguments), "handler")
