"""Kafka's records as DataFrames over explicit offsets, dealt by key hash."""

from coopconsume.runtime.reading.audit import Audit
from coopconsume.runtime.reading.source import Wanted, batch_frame, poll_frame, read_spans
from coopconsume.runtime.reading.spans import Span

__all__ = ["Audit", "Span", "Wanted", "batch_frame", "poll_frame", "read_spans"]
