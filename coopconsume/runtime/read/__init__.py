"""Kafka's records as DataFrames over explicit offsets, dealt by key hash."""

from coopconsume.runtime.read.audit import HoleAudit
from coopconsume.runtime.read.offset_frames import WantedRows, batch_frame, read_spans
from coopconsume.runtime.read.poll_frames import poll_frame
from coopconsume.runtime.read.spans import Span

__all__ = ["HoleAudit", "Span", "WantedRows", "batch_frame", "poll_frame", "read_spans"]
