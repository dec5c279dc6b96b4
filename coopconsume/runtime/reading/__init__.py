"""Kafka's records as DataFrames over explicit offsets, dealt by key hash."""

from coopconsume.runtime.reading.audit import HoleAudit
from coopconsume.runtime.reading.source import WantedRows, batch_frame, poll_frame, read_spans
from coopconsume.runtime.reading.spans import Span

__all__ = ["HoleAudit", "Span", "WantedRows", "batch_frame", "poll_frame", "read_spans"]
