"""Secrets stay out of representations, and of what kafka-python and py4j log."""

from __future__ import annotations

import copy
import json
import logging
import pickle

import pytest
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from coopconsume.security.secrets import Secret, is_secret, keep_out_of_logs


def test_a_secret_is_a_text_that_does_not_show():
    """Alone and inside of others it is hidden; whoever uses it gets the text."""
    secret = Secret("hush")
    assert "hush" not in repr(secret) + repr({"password": secret}) + f"{[secret]}"
    assert secret == "hush"
    assert secret.encode() == b"hush"
    assert "\0".join(("u", secret)) == "u\0hush"  # noqa: FLY002 - as kafka-python does
    assert str(secret) == f"{secret}" == "hush"
    for again in (copy.deepcopy(secret), pickle.loads(pickle.dumps(secret))):
        assert again == secret
        assert isinstance(again, Secret)
    assert json.loads(json.dumps(secret)) == "hush"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("sasl.jaas.config", True),
        ("sasl.plain.password", True),
        ("ssl.key.password", True),
        ("ssl.keystore.key", True),
        ("ssl.keystore.certificate.chain", False),
        ("sasl.oauthbearer.assertion.private.key.passphrase", True),
        ("sasl.oauthbearer.token.endpoint.url", True),
        ("sasl.mechanism", False),
        ("plugin.api.token", True),
    ],
)
def test_which_settings_are_secret(name, secret):
    """Their names tell."""
    assert is_secret(name) is secret


def test_kafka_python_logs_no_login(caplog):
    """Requests that log in are left out at DEBUG, and so are their bytes; others stay."""
    keep_out_of_logs()
    keep_out_of_logs()
    caplog.set_level(logging.DEBUG, "kafka")  # which the command line silences
    protocol = KafkaProtocol(client_id="me")
    protocol.send_request(SaslHandshakeRequest(mechanism="PLAIN", version=1))
    protocol.send_bytes()
    protocol.send_request(SaslAuthenticateRequest(auth_bytes=b"\0u\0hush", version=1))
    sent = protocol.send_bytes()
    logging.getLogger("kafka.net.connection").debug(
        "%s Request %d: %s", "x", 2, SaslAuthenticateRequest(auth_bytes=b"hush")
    )
    assert b"hush" in sent
    assert "hush" not in caplog.text
    assert "PLAIN" in caplog.text
    assert caplog.text.count("(a login)") == 3


def test_py4j_logs_no_secret_option(caplog):
    """Calls that hand a secret setting to the JVM are left out at DEBUG; others stay."""
    keep_out_of_logs()
    caplog.set_level(logging.DEBUG, "py4j")
    logger = logging.getLogger("py4j.clientserver")
    logger.debug("Command to send: c\no12\noption\nskafka.sasl.jaas.config\nshush\ne\n")
    logger.debug("Command to send: c\no12\noption\nskafka.ssl.keystore.key\nshush\ne\n")
    logger.debug("Command to send: c\no12\noption\nsfailOnDataLoss\nstrue\ne\n")
    assert "hush" not in caplog.text
    assert "failOnDataLoss" in caplog.text
    assert caplog.text.count("(a secret option)") == 2
