"""Refusals of a cluster: the same error whichever client met them."""

from __future__ import annotations

import pickle
import threading
import types

import kafka.errors
import pytest

from coopconsume.errors import AuthenticationFailed, NotAuthorized
from coopconsume.kafka.call_limit import CallLimit
from coopconsume.kafka.cluster import Cluster
from coopconsume.kafka.security.access import refused, refused_by_spark

SETTINGS = {
    "bootstrap.servers": "a:1",
    "group.id": "g",
    "sasl.mechanism": "PLAIN",
    "sasl.jaas.config": 'x.PlainLoginModule required username="alice" password="hush";',
}
JAVA = "An error occurred while calling o1.count.\n: java.util.concurrent.ExecutionException: "
PACKAGE = "org.apache.kafka.common.errors"


@pytest.mark.parametrize(
    ("error", "java", "facts"),
    [
        (kafka.errors.TopicAuthorizationFailedError,
         "TopicAuthorizationException: Not authorized to access topics: [t, u]",
         ("READ", "TOPIC", "t,u")),
        (kafka.errors.GroupAuthorizationFailedError,
         "GroupAuthorizationException: Not authorized to access group: g", ("READ", "GROUP", "g")),
        (kafka.errors.ClusterAuthorizationFailedError,
         "ClusterAuthorizationException: Cluster authorization failed.",
         ("DESCRIBE", "CLUSTER", "kafka-cluster")),
        (kafka.errors.TransactionalIdAuthorizationFailedError,
         "TransactionalIdAuthorizationException: Transactional Id authorization failed.",
         ("WRITE", "TRANSACTIONAL_ID", "")),
    ],
)  # fmt: skip
def test_a_missing_right_is_the_same_error_from_both(error, java, facts):
    """Its operation, kind of resource, name and user."""
    text = f"{JAVA}{PACKAGE}.{java}\n\tat somewhere(Else.java:1)\n"
    for found in (
        refused(error(), SETTINGS, ["t", "u"]),
        refused_by_spark(OSError(text), SETTINGS),
    ):
        assert isinstance(found, NotAuthorized)
        assert (found.operation, found.resource_type, found.resource) == facts
        assert found.user == "alice"
        assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_a_right_is_named_as_kafkas_own_tool_takes_it():
    """Each resource, quoted for a shell."""
    text = str(NotAuthorized("READ", "TOPIC", "t,u", "o'brian"))
    assert text.endswith(
        """--allow-principal 'User:o'"'"'brian' --operation Read --topic t --topic u"""
    )
    assert str(NotAuthorized("DESCRIBE", "CLUSTER", "kafka-cluster")).endswith(" --cluster")


def test_a_refused_login_is_the_same_error_from_both():
    """Its mechanism, user and cause."""
    by_python = refused(kafka.errors.SaslAuthenticationFailedError("no such user"), SETTINGS)
    text = f"{JAVA}{PACKAGE}.SaslAuthenticationException: no such user\n\tat a.b(C.java)"
    by_spark = refused_by_spark(OSError(text), SETTINGS)
    for found in (by_python, by_spark):
        assert isinstance(found, AuthenticationFailed)
        assert found.args == ("a:1", "PLAIN", "alice", "no such user")
        assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_a_tls_connection_that_spark_does_not_get_is_reported():
    """By the same error, with the settings of TLS."""
    text = f"{JAVA}{PACKAGE}.SslAuthenticationException: SSL handshake failed\nCaused by: x"
    found = refused_by_spark(OSError(text), SETTINGS)
    assert isinstance(found, AuthenticationFailed)
    assert found.args == ("a:1", "TLS", None, "SSL handshake failed")
    assert "kafka.ssl.truststore.*" in found.settings


@pytest.mark.parametrize(
    "error",
    [
        kafka.errors.KafkaConnectionError("down"),
        kafka.errors.AuthorizationError(),
        OSError("TopicAuthorizationException"),
    ],
)
def test_other_errors_are_left_alone(error):
    """An error that is no refusal stays as it is."""
    assert refused(error, SETTINGS) is None
    assert refused_by_spark(error, SETTINGS) is None


@pytest.mark.parametrize(
    "passing",
    [
        kafka.errors.UnknownBrokerIdError(-1),
        kafka.errors.LeaderNotAvailableError(),
        kafka.errors.KafkaTimeoutError(),
        kafka.errors.KafkaConnectionError(),
    ],
)
def test_what_passes_is_asked_again(passing):
    """Among it a partition without a leader, as while a new one is elected."""
    cluster = object.__new__(Cluster)
    cluster.limit, cluster._here = CallLimit(), threading.local()
    coordinators = {"g": 1}
    inner = types.SimpleNamespace(_coordinators=coordinators)
    cluster._admin = types.SimpleNamespace(_manager=types.SimpleNamespace(cluster=inner))
    answers = [passing, passing]

    def ask():
        if answers:
            raise answers.pop()
        return 7

    assert cluster.call(ask, patience=600.0) == 7
    assert not coordinators  # they may be elsewhere by now
