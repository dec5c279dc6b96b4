"""Secrets stay out of representations, and of what kafka-python and py4j log."""

from __future__ import annotations

import copy
import json
import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.parser import KafkaProtocol
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from commits import (
    CommitLogUnavailable,
    CommitStore,
    CommitTableNotFound,
    CorruptCommitLog,
    UnsupportedTarget,
)
from commits.secrets import SecretUri, hidden
from coopconsume.errors import InvalidOption, OutputNotWritten, TableUnusable
from coopconsume.errors.fenced import OwnershipUnavailable
from coopconsume.kafka.security.secrets import Secret, is_secret, keep_out_of_logs
from coopconsume.options import Options


def test_a_secret_is_a_text_that_does_not_show():
    """Alone and inside of others it is hidden; its user gets the text."""
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
    """Their names say so."""
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


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://AKIA:se/c+r=et@bucket/a/b", "s3://AKIA:***@bucket/a/b"),
        ("s3:/AKIA:se/cret@bucket/a", "s3:/AKIA:***@bucket/a"),
        ("s3://bucket/user@x:y/b", "s3://bucket/user@x:y/b"),
        ("https://token@host/t", "https://***@host/t"),
        ("abfss://box@account.dfs.core.windows.net/t", "abfss://box@account.dfs.core.windows.net/t"),
        ("abfss://box@account/t?sv=1&sig=a%2Fb", "abfss://box@account/t?sv=1&sig=***"),
        ("jdbc:postgresql://host:5432/db?user=me&password=hush", "jdbc:postgresql://host:5432/db?user=me&password=***"),
        ("gs://b/t?X-Goog-Signature=abc&X-Goog-Date=1", "gs://b/t?X-Goog-Signature=***&X-Goog-Date=1"),
        ("GET 'https://u:p@h/x?sas=1': 403, https://v:q@h", "GET 'https://u:***@h/x?sas=***': 403, https://v:***@h"),
        ("/data/a:b@c/commits?key=1", "/data/a:b@c/commits?key=1"),
        ("main.shop.commits", "main.shop.commits"),
    ],
)  # fmt: skip
def test_what_a_uri_shows(uri, shown):
    """Everything but passwords, keys, tokens and signatures; paths and names as they are."""
    assert hidden(uri) == shown
    assert hidden(shown) == shown
    assert repr(SecretUri(uri)) == repr(shown)
    assert str(SecretUri(uri)) == uri == pickle.loads(pickle.dumps(SecretUri(uri)))


safe = st.text("abcXYZ019-_.~%+=", min_size=6, max_size=20)


@given(
    safe, st.text("abcXYZ019-_.~%+/=", min_size=6, max_size=20), st.sampled_from(["s3", "https"])
)
def test_no_error_shows_a_secret(name, secret, scheme):
    """Whatever is said of a place: neither text nor representation, data or pickle has it."""
    secret = f"#{secret}#".replace("#", "QQ")
    uri = f"{scheme}://{name}:{secret}@host/t?sv=1&sig={secret}"
    errors = [
        CommitLogUnavailable(uri, "append", f"Generic error: GET {uri} failed"),
        CorruptCommitLog(uri, "it cannot be opened"),
        UnsupportedTarget(uri, "it is empty"),
        CommitTableNotFound(uri),
        OutputNotWritten("rows", uri, f"no answer from {uri}"),
        TableUnusable("table", uri, uri),
        InvalidOption("output", repr(uri), "give a path"),
        OwnershipUnavailable(uri, "reading", uri),
    ]
    for error in errors:
        again = pickle.loads(pickle.dumps(error))
        shown = f"{error} {error!r} {vars(error)} {again} {vars(again)}"
        assert secret not in shown
        assert "host/t" in str(error)
    options = Options.parse(
        {
            "kafka.bootstrap.servers": "a:1", "kafka.group.id": "g", "commitTable": uri,
            "deadLetter": uri, "purgatory": uri,
        }
    )  # fmt: skip
    assert options.commit_table == uri
    assert secret not in f"{options} {options!r} {options.redacted()}"
    assert secret not in json.dumps(options.redacted())


def test_a_table_that_cannot_be_reached_shows_no_secret(caplog):
    """Neither what deltalake says of it, nor what is logged."""
    caplog.set_level(logging.DEBUG)
    options = {"aws_endpoint_url": "http://127.0.0.1:1", "aws_region": "x", "max_retries": "0",
               "allow_http": "true", "access_key_id": "a", "secret_access_key": "b"}  # fmt: skip
    with pytest.raises(CommitLogUnavailable) as error:
        CommitStore.open("s3://AKIA:hush@bucket/x", storage_options=options)
    assert "s3://AKIA:***@bucket/x" in str(error.value)
    assert "hush" not in f"{error.value} {error.value!r} {vars(error.value)} {caplog.text}"
