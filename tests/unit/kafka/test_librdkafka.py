"""Settings as librdkafka takes them."""

from __future__ import annotations

from contextlib import closing

import pytest

from coopconsume.errors import InvalidOption
from coopconsume.kafka.librdkafka import consumer_config, record_consumer, record_producer

SERVERS = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"retry.backoff.ms": "0"}, {"retry.backoff.ms": 1}),
        ({"metadata.max.age.ms": "99999999999"}, {"metadata.max.age.ms": 86_400_000}),
        ({"connections.max.idle.ms": "-1"}, {"connections.max.idle.ms": 0}),
        ({"fetch.max.bytes": "1000"}, {"fetch.max.bytes": 1_000_000}),
        ({"fetch.max.bytes": "2147483647"}, {"fetch.max.bytes": 2_147_483_135}),
        ({"fetch.min.bytes": "0"}, {"fetch.min.bytes": 1}),
        ({"max.partition.fetch.bytes": "0"}, {"max.partition.fetch.bytes": 1}),
        ({"fetch.max.wait.ms": "400000"}, {"fetch.wait.max.ms": 300_000}),
        ({"reconnect.backoff.ms": "20000"}, {"reconnect.backoff.max.ms": 20_000}),
        ({"reconnect.backoff.max.ms": "50"}, {"reconnect.backoff.ms": 50}),
        ({"fetch.min.bytes": "17"}, {"fetch.min.bytes": "17"}),
        ({"group.id": ""}, {"group.id": "none"}),
    ],
)
def test_what_other_clients_take_is_taken(
    given: dict[str, str], expected: dict[str, object]
) -> None:
    """As the nearest value."""
    config = consumer_config(SERVERS | given)
    assert {name: config[name] for name in expected} == expected
    with closing(record_consumer(SERVERS | given)):
        pass


def test_what_librdkafka_refuses_is_named() -> None:
    """With what it says."""
    with pytest.raises(InvalidOption, match=r"kafka\.fetch\.min\.bytes = 0: .* 1\.\.100000000"):
        record_consumer(SERVERS, {"fetch.min.bytes": 0})
    with pytest.raises(InvalidOption, match=r"batch\.size = 0"):
        record_producer(SERVERS, {"batch.size": 0})


def test_names_of_protocols_may_be_small() -> None:
    """As Kafka's clients take them."""
    login = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="p";'
    )
    kafka = SERVERS | {
        "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.jaas.config": login,
    }  # fmt: skip
    assert consumer_config(kafka)["sasl.username"] == "u"
