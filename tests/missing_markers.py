"""Ends transactions that hang because their markers were not written, as their coordinator decided.

After 4.1, Kafka omits the markers of partitions that have no leader at that moment, as while a lone
broker starts again, and treats the transaction as complete (KAFKA-20734). Its commit may have been
acknowledged, so an abort would lose records.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from kafka import TopicPartition
from kafka.admin import AbortTransactionSpec

from coopconsume.fenced.auditing import blocked
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import OpenTransaction
from coopconsume.fenced.kafka_engine import Engine

_STATES: Final = "__transaction_state"
#: Version of the format, producer id, its epoch, timeout, and state of a transaction.
_HEAD: Final = struct.Struct(">hqhib")
_PREPARED: Final = {2: "commit", 3: "abort"}
_ENDED: Final = {0, 4, 5}  # Empty, CompleteCommit, CompleteAbort
_PATIENCE: Final = 120.0


def end_hanging(options: Mapping[str, Any], topic: str) -> list[str]:
    """Writes the markers that are missing in partition 0 of a topic of a lone broker.

    A transaction that its coordinator has not ended stays open.

    Returns:
        "commit" or "abort" for each transaction that was ended.
    """
    hanging = [t for t in blocked(options, topic).transactions if t.hangs]
    if not hanging:
        return []
    with closing(Engine(FencedSettings.parse(options))) as engine:
        found = [(t, _decision(engine, t)) for t in hanging]
        decided = [(t, decision) for t, decision in found if decision is not None]
        for transaction, decision in decided:
            _write_marker(engine, topic, transaction, is_commit=decision == "commit")
    return [decision for _, decision in decided]


def _decision(engine: Engine, transaction: OpenTransaction) -> str | None:
    """Returns what the coordinator decided on a transaction; None if it has not ended it."""
    decision, is_ended = None, False
    end = engine.ends(_STATES, 0).stable
    for rows in engine.read(_STATES, 0, engine.start(_STATES, 0), end, _PATIENCE):
        for value in (row.value for row in rows if row.value is not None):
            _, producer_id, epoch, _, state = _HEAD.unpack_from(value)
            if producer_id != transaction.producer_id:
                continue
            is_ended = state in _ENDED
            # An abort by others has the next epoch.
            if state in _PREPARED and epoch - transaction.producer_epoch in (0, 1):
                decision = _PREPARED[state]
    return decision if is_ended else None


def _write_marker(
    engine: Engine, topic: str, transaction: OpenTransaction, *, is_commit: bool
) -> None:
    """Writes a marker; kafka-python only has the request that aborts."""
    at, id_ = TopicPartition(topic, 0), transaction.producer_id
    with engine.asking(topic) as admin:
        producers = admin.describe_producers([at])[at].active_producers
        (coordinator_epoch,) = (p.coordinator_epoch for p in producers if p.producer_id == id_)
        spec = AbortTransactionSpec(at, id_, transaction.producer_epoch, max(0, coordinator_epoch))
        request = admin._abort_transaction_request(spec)
        request.markers[0].transaction_result = is_commit
        run = admin._manager.run
        (leader,) = run(admin._async_get_leader_for_partitions, [at])
        response = run(admin._manager.send, request, leader)
        admin._abort_transaction_process_response(response, spec)
