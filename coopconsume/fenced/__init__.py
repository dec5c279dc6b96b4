"""The fenced writer: one owner at a time of a Kafka log, and appends that know what they follow.

On unmodified Kafka (KIP-27, KAFKA-2260, Pulsar's PIP-68), and without Spark.
"""

from __future__ import annotations

from coopconsume.fenced.auditing import Audit, MultiAudit, audit, audit_logs, repair
from coopconsume.fenced.election import Leader, LeaderElection
from coopconsume.fenced.exclusive import ExclusiveProducer
from coopconsume.fenced.frames import accepted, read_log
from coopconsume.fenced.loading import Loaded, bulk_load
from coopconsume.fenced.log import UNCHECKED, Appended, Consumed, Entry, LogId, LogRecord
from coopconsume.fenced.multi import MultiLogWriter, Write
from coopconsume.fenced.ownership import AccessMode
from coopconsume.fenced.reader import LogReader
from coopconsume.fenced.writer import FencedWriter
from coopconsume.fenced.writer_config import EpochSource, WriterConfig

__all__ = [
    "UNCHECKED", "AccessMode", "Appended", "Audit", "Consumed", "Entry", "EpochSource",
    "ExclusiveProducer", "FencedWriter", "Leader", "LeaderElection", "Loaded", "LogId", "LogReader",
    "LogRecord", "MultiAudit", "MultiLogWriter", "Write", "WriterConfig", "accepted", "audit",
    "audit_logs", "bulk_load", "read_log", "repair",
]  # fmt: skip
