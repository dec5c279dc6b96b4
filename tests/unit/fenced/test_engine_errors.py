"""Errors of brokers mean the same from both clients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from kafka.errors import for_code

from coopconsume.errors import AppendRefused, AuthenticationFailed, NotAuthorized
from coopconsume.fenced import failures, kafka_engine
from coopconsume.fenced.config import FencedSettings
from coopconsume.fenced.engine import EngineDoubt

SETTINGS = FencedSettings.parse({"kafka.bootstrap.servers": "a:1"})


@pytest.mark.parametrize(
    ("code", "refusal"),
    [
        (10, AppendRefused), (18, AppendRefused), (87, AppendRefused), (29, NotAuthorized),
        (30, NotAuthorized), (53, NotAuthorized), (58, AuthenticationFailed), (1, None), (47, None),
        (90, None), (1000, None),
    ],
)  # fmt: skip
def test_an_error_of_a_broker_means_the_same_from_both_clients(
    code: int, refusal: type[Exception] | None
) -> None:
    """Both refuse the same permanently; the rest is a doubt."""
    import confluent_kafka as client

    error = client.KafkaError(code)
    one = failures.doubt_of(SETTINGS, "t", for_code(code)(error.str()))
    other = failures.doubt_of_confluent(SETTINGS, "t", client.KafkaException(error))
    assert one is not None
    assert other is not None
    assert type(other.refusal) is (type(None) if refusal is None else refusal)
    assert (one.problem, str(one.refusal)) == (other.problem, str(other.refusal))
    assert one.is_out_of_range == other.is_out_of_range == (code == 1)


def test_an_error_of_the_client_is_a_doubt() -> None:
    """Where the offset is gone, the client says so in its own words."""
    import confluent_kafka as client

    for name, is_gone in (("_AUTO_OFFSET_RESET", True), ("_TIMED_OUT", False), ("_FENCED", False)):
        error = client.KafkaException(client.KafkaError(getattr(client.KafkaError, name)))
        doubt = failures.doubt_of_confluent(SETTINGS, "t", error)
        assert doubt is not None
        assert (doubt.refusal, doubt.is_out_of_range) == (None, is_gone)
    assert failures.doubt_of_confluent(SETTINGS, "t", KeyError("x")) is None


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_coordinator_that_loads_its_transactions_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    """As after the start of its broker; within a time."""
    asked: list[object] = []

    def open_transactions(admin: object, _at: object) -> list[object]:
        asked.append(admin)
        if is_loaded and len(asked) == 3:
            return []
        raise for_code(14)("it loads")

    monkeypatch.setattr(kafka_engine, "_open_transactions", open_transactions)
    monkeypatch.setattr(kafka_engine, "_LOADS_IN", 60.0 if is_loaded else 0.05)
    engine = kafka_engine.Engine(SETTINGS)
    engine._admin = SimpleNamespace(close=lambda: None)
    if is_loaded:
        assert engine.open_transactions("t", 0) == []
        assert len(asked) == 3
    else:
        with pytest.raises(EngineDoubt, match="it loads"):
            engine.open_transactions("t", 0)
