"""Offsets of an input that are committed by an append, on a real broker."""

from __future__ import annotations

import time

import pytest
from kafka.admin import KafkaAdminClient
from kafka.errors import UnstableOffsetCommitError

from coopconsume.errors import OffsetMismatch
from coopconsume.fenced import Consumed, FencedWriter
from coopconsume.kafka import coordinator
from coopconsume.testing.local.broker import LocalKafka
from tests.conftest import TopicFactory

pytestmark = pytest.mark.broker


def test_offsets_are_committed_with_the_records(kafka: LocalKafka, topic: TopicFactory) -> None:
    """And not with records that are refused."""
    options = {"kafka.bootstrap.servers": kafka.bootstrap_servers}
    source, name, group = topic(), topic(), "input"
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def committed() -> int | None:
        """As a consumer reads it: not while the markers of a transaction are being written."""
        deadline = time.monotonic() + 60
        while True:
            try:
                found = coordinator.stable_offsets(admin, group, [(source, 0)])
            except UnstableOffsetCommitError:
                assert time.monotonic() < deadline, "a transaction stayed open for a minute"
                time.sleep(0.02)
            else:
                return found[source, 0][0] if found else None

    with FencedWriter(options, name) as writer:
        writer.append([b"a"], consumed=Consumed(group, {(source, 0): 3}))
        assert committed() == 3
        with pytest.raises(OffsetMismatch):
            writer.append([b"b"], expected_seq=9, consumed=Consumed(group, {(source, 0): 5}))
        assert committed() == 3
        writer.append([b"b"], consumed=Consumed(group, {(source, 0): 5}))
        assert committed() == 5
    admin.close()
