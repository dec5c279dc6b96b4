"""Makes an OpenTelemetry span of each handler call. Task-side code.

It needs the packages of the extra ``otel``, which are imported in a worker whose job wants spans.
"""

from __future__ import annotations

import logging
import os
import threading
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from coopconsume.record import Record
from coopconsume.values.shown import clean, safely
from coopconsume.worker.handler_answers import error_text
from coopconsume.worker.handler_lines import column_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from coopconsume.record import Headers
    from coopconsume.worker.handler_calls import End, Watcher
    from coopconsume.worker.report import QueryIds

log = logging.getLogger(__name__)

#: Records of a frame that its span is linked to, at most: as many as the SDK keeps by default.
_MOST_LINKS: Final = 128
#: Seconds that the end of a task waits until its spans are exported.
_PATIENCE: Final = 1.0
_EXPORTERS: Final = "opentelemetry_traces_exporter"
#: The names of the exporters that ``otlp`` stands for, by protocol.
_OTLP: Final = {"grpc": ("otlp_proto_grpc",), "http/protobuf": ("otlp_proto_http",)}
_EITHER: Final = ("otlp_proto_http", "otlp_proto_grpc")

#: The provider of the spans that this process makes.
_used: Any = None
#: Exports the spans of the last task.
_export: threading.Thread | None = None


def span_watcher(query: QueryIds) -> Watcher | None:
    """Returns what makes a span of each call; None if nobody in this process wants spans.

    The spans are made by the tracer provider of the process: that which the handler's own code has
    set, else one that the environment variables ``OTEL_*`` describe.

    Args:
        query: The query of the calls.
    """
    global _used  # noqa: PLW0603 - the provider is that of the process
    try:
        _used = _provider()
        tracer = None if _used is None else _used.get_tracer("coopconsume")
    except ImportError as error:
        _warn(f"{error.name} is not installed: pip install 'coopconsume[otel]'")
        return None
    except Exception as error:  # noqa: BLE001 - of a provider or an exporter
        _warn(error_text(error))
        return None
    return None if tracer is None else partial(_begin, tracer, _of_query(query))


def export_spans() -> None:
    """Exports the spans that have ended, and waits for that for a second at most."""
    global _export  # noqa: PLW0603 - the provider is that of the process
    flush = getattr(_used, "force_flush", None)
    if flush is None or (_export is not None and _export.is_alive()):
        return
    # Processors of the SDK do not keep to a limit of time.
    export = partial(safely, flush)
    _export = threading.Thread(target=export, name="export-spans", daemon=True)
    _export.start()
    _export.join(_PATIENCE)


def _provider() -> Any:
    """Returns the tracer provider of this process; None if its spans would go nowhere."""
    from opentelemetry import trace

    found = trace.get_tracer_provider()
    if isinstance(found, trace.ProxyTracerProvider):
        return _from_environment()
    return None if isinstance(found, trace.NoOpTracerProvider) else found


@cache
def _from_environment() -> Any:
    """Sets the tracer provider of this process as the environment says; None: it wants no spans."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    exporters = [*_exporters()]
    if not exporters:
        return None
    provider = TracerProvider()
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return provider


def _exporters() -> Iterator[Any]:
    """Yields the exporters that ``OTEL_TRACES_EXPORTER`` names."""
    names = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    for name in map(str.strip, names.split(",")):
        if name == "none":
            continue
        found = [one for each in _installed_names(name) for one in _installed(each)]
        if not found:
            _warn(
                f"no exporter {name} is installed (OTEL_TRACES_EXPORTER): install one, such as "
                "opentelemetry-exporter-otlp-proto-http"
            )
            continue
        try:
            exporter = found[0].load()()
        except Exception as error:  # noqa: BLE001 - of a package or its settings
            _warn(f"the exporter {name} cannot be made: {error_text(error)}")
            continue
        yield exporter


def _installed(name: str) -> Iterable[Any]:
    from importlib.metadata import entry_points

    return entry_points(group=_EXPORTERS, name=name)


def _installed_names(name: str) -> tuple[str, ...]:
    """Returns the names under which an exporter may be installed, the preferred one first."""
    if name != "otlp":
        return (name,)
    of_traces = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "").strip()
    return _OTLP.get(of_traces or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", ""), _EITHER)


@cache
def _warn(why: str) -> None:
    """Logs, once a process, why calls have no spans."""
    log.warning("handler calls have no spans: %s", why)


def _of_query(query: QueryIds) -> dict[str, str]:
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": query.group_id,
        "messaging.client.id": query.client_id,
    }


def _begin(tracer: Any, of_query: Mapping[str, Any], given: Any) -> End:
    """Begins the span of a call, and makes it the current one."""
    start = _start_of_record if isinstance(given, Record) else _start_of_frame
    # Whatever an SDK does, it costs no record.
    begun = safely(lambda: start(tracer, of_query, given))
    return _ignore if begun is None else partial(_end, *begun)


def _ignore(_: Any) -> None:
    """Ends a call without a span."""


def _start_of_record(tracer: Any, of_query: Mapping[str, Any], record: Record) -> tuple[Any, Any]:
    from opentelemetry import propagate

    parent = propagate.extract(record.headers, getter=_LastHeader())
    attributes = {
        **of_query,
        **_of_partition(record.topic, record.partition),
        **_of_record(record.offset, record.attempt),
    }
    if record.value is None:
        attributes["messaging.kafka.message.tombstone"] = True
    return _start(tracer, record.topic, attributes, parent, _links(parent))


def _start_of_frame(tracer: Any, of_query: Mapping[str, Any], frame: Any) -> tuple[Any, Any]:
    from opentelemetry import propagate
    from opentelemetry.context import get_current

    first = frame[:_MOST_LINKS]
    topic, partition = column_of(first, "topic")[0], column_of(first, "partition")[0]
    links = []
    columns = (column_of(first, name) for name in ("headers", "offset", "attempt"))
    for headers, offset, attempt in zip(*columns, strict=True):
        pairs = [(one["key"], one["value"]) for one in headers] if headers is not None else []
        parent = propagate.extract(pairs, getter=_LastHeader())
        links += _links(parent, _of_record(offset, attempt))
    attributes = {
        **of_query,
        **_of_partition(topic, partition),
        "messaging.batch.message_count": len(frame),
    }
    return _start(tracer, topic, attributes, get_current(), links)


def _of_partition(topic: str, partition: Any) -> dict[str, Any]:
    return {
        "messaging.destination.name": topic,
        "messaging.destination.partition.id": str(partition),
    }


def _of_record(offset: Any, attempt: Any) -> dict[str, int]:
    return {"messaging.kafka.offset": int(offset), "coopconsume.attempt": int(attempt)}


def _links(parent: Any, attributes: Mapping[str, Any] | None = None) -> list[Any]:
    """Returns a link to the span in which a record was made; none if its headers name none."""
    from opentelemetry import trace

    made = trace.get_current_span(parent).get_span_context()
    return [trace.Link(made, attributes)] if made.is_valid and made.is_remote else []


def _start(
    tracer: Any, topic: str, attributes: Mapping[str, Any], parent: Any, links: list[Any]
) -> tuple[Any, Any]:
    """Starts a span in a context; returns it, and what ends its time as the current one."""
    from opentelemetry import context, trace

    span = tracer.start_span(f"process {topic}", parent, trace.SpanKind.CONSUMER, attributes, links)
    return span, context.attach(trace.set_span_in_context(span, parent))


def _end(span: Any, token: Any, answer: Any) -> None:
    """Ends the span of a call."""
    from opentelemetry import context

    safely(lambda: context.detach(token))
    if isinstance(answer, BaseException):
        safely(lambda: _fail(span, answer))
    safely(span.end)


def _fail(span: Any, error: BaseException) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", clean(type(error).__qualname__))
    span.set_status(Status(StatusCode.ERROR, error_text(error)))
    span.record_exception(error)


class _LastHeader:
    """Reads the headers of a record for a propagator: the last of a name counts, as in Java."""

    def get(self, carrier: Headers, key: str) -> list[str] | None:
        """Returns the value of a header, in a list; None without it."""
        found = [value for name, value in carrier if name == key and value is not None]
        return [found[-1].decode("utf-8", "replace")] if found else None

    def keys(self, carrier: Headers) -> list[str]:
        """Returns the names of all headers."""
        return [name for name, _ in carrier]
