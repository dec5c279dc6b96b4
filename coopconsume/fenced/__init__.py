"""The fenced writer: one owner at a time of a Kafka log, and appends that know what they follow.

On unmodified Kafka (KIP-27, KAFKA-2260, Pulsar's PIP-68), and without Spark. Names are imported
when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

_NAMES = {
    "auditing": ("Audit", "MultiAudit", "audit", "audit_logs", "repair"),
    "election": ("Leader", "LeaderElection"), "exclusive": ("ExclusiveProducer",),
    "frames": ("accepted", "read_log"), "loading": ("Loaded", "bulk_load"),
    "log": ("UNCHECKED", "Appended", "Consumed", "Entry", "LogId", "LogRecord"),
    "multi": ("MultiLogWriter", "Write"), "ownership": ("AccessMode",), "reader": ("LogReader",),
    "writer": ("FencedWriter",), "writer_config": ("EpochSource", "WriterConfig"),
}  # fmt: skip
_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "UNCHECKED", "AccessMode", "Appended", "Audit", "Consumed", "Entry", "EpochSource",
    "ExclusiveProducer", "FencedWriter", "Leader", "LeaderElection", "Loaded", "LogId", "LogReader",
    "LogRecord", "MultiAudit", "MultiLogWriter", "Write", "WriterConfig", "accepted", "audit",
    "audit_logs", "bulk_load", "read_log", "repair",
]  # fmt: skip


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
