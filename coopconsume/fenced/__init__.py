"""The fenced writer: one owner at a time of a Kafka log, and appends that know what they follow.

On unmodified Kafka (KIP-27, KAFKA-2260, Pulsar's PIP-68), and without Spark.

Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coopconsume.lazy_names import lazy_names

if TYPE_CHECKING:
    from coopconsume.fenced.auditing import Audit as Audit
    from coopconsume.fenced.auditing import MultiAudit as MultiAudit
    from coopconsume.fenced.auditing import audit as audit
    from coopconsume.fenced.auditing import audit_logs as audit_logs
    from coopconsume.fenced.auditing import repair as repair
    from coopconsume.fenced.election import Leader as Leader
    from coopconsume.fenced.election import LeaderElection as LeaderElection
    from coopconsume.fenced.exclusive import ExclusiveProducer as ExclusiveProducer
    from coopconsume.fenced.frames import accepted as accepted
    from coopconsume.fenced.frames import read_log as read_log
    from coopconsume.fenced.loading import Loaded as Loaded
    from coopconsume.fenced.loading import bulk_load as bulk_load
    from coopconsume.fenced.log import UNCHECKED as UNCHECKED
    from coopconsume.fenced.log import Appended as Appended
    from coopconsume.fenced.log import Consumed as Consumed
    from coopconsume.fenced.log import Entry as Entry
    from coopconsume.fenced.log import LogId as LogId
    from coopconsume.fenced.log import LogRecord as LogRecord
    from coopconsume.fenced.multi import MultiLogWriter as MultiLogWriter
    from coopconsume.fenced.multi import Write as Write
    from coopconsume.fenced.ownership import AccessMode as AccessMode
    from coopconsume.fenced.reader import LogReader as LogReader
    from coopconsume.fenced.writer import FencedWriter as FencedWriter
    from coopconsume.fenced.writer_config import EpochSource as EpochSource
    from coopconsume.fenced.writer_config import WriterConfig as WriterConfig

_HOME = {
    "AccessMode": "ownership",
    "Appended": "log",
    "Audit": "auditing",
    "Consumed": "log",
    "Entry": "log",
    "EpochSource": "writer_config",
    "ExclusiveProducer": "exclusive",
    "FencedWriter": "writer",
    "Leader": "election",
    "LeaderElection": "election",
    "Loaded": "loading",
    "LogId": "log",
    "LogReader": "reader",
    "LogRecord": "log",
    "MultiAudit": "auditing",
    "MultiLogWriter": "multi",
    "UNCHECKED": "log",
    "Write": "multi",
    "WriterConfig": "writer_config",
    "accepted": "frames",
    "audit": "auditing",
    "audit_logs": "auditing",
    "bulk_load": "loading",
    "read_log": "frames",
    "repair": "auditing",
}

__all__ = list(_HOME)

__getattr__, __dir__ = lazy_names(__name__, _HOME)
