"""The settings of a fenced log's producers."""

from __future__ import annotations

from typing import Any

import pytest

from coopconsume.fenced import LogId, kafka_channel
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.kafka_channel import KafkaChannel


def settings_of(
    monkeypatch: pytest.MonkeyPatch, transactional_id: str | None, timeout: float, **given: str
) -> dict[str, Any]:
    """What a producer is made with."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(kafka_channel, "record_producer", lambda _, config: made.append(config))
    options = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    settings = FencedSettings.parse({"kafka.bootstrap.servers": "a:1"} | options)
    KafkaChannel(settings, LogId("t", "id", 0), transactional_id, timeout, lambda *_: None)
    return made[0]


@pytest.mark.parametrize(("given", "waits"), [({}, 10_000), ({"request_timeout_ms": "700"}, 700)])
def test_a_broker_that_does_not_answer_is_left_in_the_time_that_the_user_says(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], waits: int
) -> None:
    """And in ten seconds by default, not in librdkafka's sixty."""
    assert settings_of(monkeypatch, None, 30, **given)["socket.timeout.ms"] == waits


def test_only_a_producer_with_transactions_connects_to_all_brokers_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It needs the coordinator at once; each append of another one would wake more threads."""
    assert settings_of(monkeypatch, "an id", 30)["enable.sparse.connections"] is False
    assert "enable.sparse.connections" not in settings_of(monkeypatch, None, 30)


@pytest.mark.parametrize(("timeout", "wanted"), [(30, 60_000), (120, 60_000), (5, 60_000)])
def test_a_transaction_outlives_the_delivery_of_its_records(
    monkeypatch: pytest.MonkeyPatch, timeout: float, wanted: int
) -> None:
    """Librdkafka refuses a shorter one; a transaction may still end by its own timeout."""
    config = settings_of(monkeypatch, "an id", timeout)
    assert config["transaction.timeout.ms"] == wanted
    assert config["delivery.timeout.ms"] <= wanted
