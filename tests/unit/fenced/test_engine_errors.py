"""Errors of brokers mean the same from both clients."""

from __future__ import annotations

import pytest
from kafka.errors import for_code

from coopconsume.errors import AppendRefused, AuthenticationFailed, NotAuthorized
from coopconsume.fenced import failures
from coopconsume.fenced.config import FencedSettings

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
