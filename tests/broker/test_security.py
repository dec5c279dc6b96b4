"""Users, rights and TLS on a real broker: what works, and how refusals are reported."""

from __future__ import annotations

import json
import logging
import time
import traceback
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    ResourcePattern,
    ResourceType,
)

from coopconsume import CooperativeConsumer, FencedWriter
from coopconsume.cli import main
from coopconsume.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    NotAuthorized,
    ProducerFenced,
    TopicNotFound,
)
from coopconsume.fenced import LogReader, audit
from coopconsume.group.membership import Membership
from coopconsume.kafka.cluster import Cluster
from coopconsume.option_names import COMMAND_CONFIG
from coopconsume.options import Options
from coopconsume.testing.local.broker import LocalKafka
from tests.broker.member_process import ReportingWorker
from tests.certificates import Party, party
from tests.spark.support import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from coopconsume import Record

pytestmark = pytest.mark.broker

PASSWORD = "a-well-known-secret"
ODD = 'o, "b"=\\', 'p;"\\ü'
OAUTH = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
#: Of transactional ids and of producers, after three seconds in which they did nothing.
FORGETFUL = {
    "transactional.id.expiration.ms": 3000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 500,
    "producer.id.expiration.ms": 3000,
    "producer.id.expiration.check.interval.ms": 500,
}
PATIENCE = 120.0


@dataclass(frozen=True)
class Guarded:
    """A broker that lets in users alone, by TLS, and what its clients need."""

    broker: LocalKafka
    authority: Party
    folder: Path

    def options(self, topic: str, password: str = PASSWORD, **more: str) -> dict[str, Any]:
        """Options of alice, who logs in by SCRAM; names of more have _ for a dot."""
        named = {f"kafka.{name.replace('_', '.')}": value for name, value in more.items()}
        return {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "kafka.group.id": "g",
            "kafka.security.protocol": "SASL_SSL",
            "kafka.sasl.mechanism": "SCRAM-SHA-512",
            "kafka.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required "
                f'username="alice" password="{password}";'
            ),
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": self.authority.certificate,
            "subscribe": topic,
            "commitTable": str(self.folder / f"commits-{topic}"),
            "slots": 2,
        } | named

    def admin(self) -> KafkaAdminClient:
        """An administration client that may do everything."""
        return KafkaAdminClient(bootstrap_servers=self.broker.admin_servers)

    def allow(self, operation: str, resource: str, name: str) -> None:
        """Give alice a right."""
        with closing(self.admin()) as admin:
            assert not admin.create_acls([_right(ACL, operation, resource, name)])["failed"]
            self._wait(admin, _right(ACLFilter, operation, resource, name), there=True)

    def allow_logs(self) -> None:
        """Let alice take logs: transactional ids by their prefix, as the documentation says."""
        prefix = ResourcePattern(
            ResourceType.TRANSACTIONAL_ID, "coopconsume-log.", ACLResourcePatternType.PREFIXED
        )
        allowed = ACL("User:alice", "*", ACLOperation.WRITE, ACLPermissionType.ALLOW, prefix)
        with closing(self.admin()) as admin:
            assert not admin.create_acls([allowed])["failed"]

    def log_options(self, **more: str) -> dict[str, Any]:
        """Options of a fenced writer that logs in as alice."""
        ours = ("kafka.group.id", "subscribe", "commitTable", "slots")
        return {name: v for name, v in self.options("", **more).items() if name not in ours}

    def take(self, operation: str, resource: str, name: str) -> None:
        """Take a right of alice away."""
        with closing(self.admin()) as admin:
            right = _right(ACLFilter, operation, resource, name)
            ((_, taken, _),) = admin.delete_acls([right])
            assert taken
            self._wait(admin, right, there=False)

    @staticmethod
    def _wait(admin: KafkaAdminClient, right: ACLFilter, *, there: bool) -> None:
        """Wait for a broker to know: the controller answers before that."""
        until = time.monotonic() + PATIENCE
        while bool(admin.describe_acls(right)[0]) != there:
            assert time.monotonic() < until
            time.sleep(0.02)

    def write(self, topic: str, count: int) -> None:
        """Write records."""
        servers = self.broker.admin_servers
        with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
            for number in range(count):
                producer.send(topic, key=b"%d" % (number % 5), value=b"%d" % number)
            producer.flush(timeout=PATIENCE)

    def topic(self, name: str, *operations: str, records: int = 0) -> str:
        """Create a topic with alice's rights to it."""
        self.broker.create_topic(name)
        for operation in operations:
            self.allow(operation, "TOPIC", name)
        self.write(name, records)
        return name


def _right(kind: type, operation: str, resource: str, name: str) -> Any:
    return kind(
        "User:alice",
        "*",
        ACLOperation[operation],
        ACLPermissionType.ALLOW,
        ResourcePattern(ResourceType[resource], name),
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker with one user, who may read group g and, at first, nothing else."""
    folder = tmp_path_factory.mktemp("guarded")
    authority = party("authority")
    server = party("broker", authority)
    certificate = folder / "broker.pem"
    certificate.write_text(server.private_key() + server.certificate)
    (folder / "ca.pem").write_text(authority.certificate)
    config = {
        "listener.name.clients.ssl.client.auth": "requested",
        "listener.name.clients.ssl.truststore.type": "PEM",
        "listener.name.clients.ssl.truststore.location": folder / "ca.pem",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,PLAIN,OAUTHBEARER",
        "listener.name.clients.oauthbearer.sasl.jaas.config": f"{OAUTH} required;",
        **FORGETFUL,
    }
    users = {"alice": PASSWORD, ODD[0]: ODD[1]}
    with LocalKafka(
        users=users, certificate=certificate, config=config
    ) as broker:  # fmt: skip
        made = Guarded(broker, authority, folder)
        made.allow("READ", "GROUP", "g")
        yield made


def _text_of(error: BaseException) -> str:
    """The text of an error and of those before it, with their tracebacks."""
    text = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
    before = error.__context__
    return text if before is None else text + _text_of(before)


def _log_all(caplog: pytest.LogCaptureFixture) -> None:
    for name in (None, "kafka", "py4j"):  # the command line silences one of them
        caplog.set_level(logging.DEBUG, name)


def _done(record: Record) -> None:
    """Handle a record."""


@contextmanager
def closing_member(options: Options) -> Iterator[Membership]:
    """A member of a group, which leaves in the end."""
    membership = Membership(options, 1, ReportingWorker())
    try:
        yield membership
    finally:
        membership.leave()


@contextmanager
def at_once() -> Iterator[None]:
    """In it no client of kafka-python is made, which reports a refusal after ten seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KafkaAdminClient, "__init__", lambda *_, **__: pytest.fail("not at once"))
        yield


@pytest.mark.slow
@pytest.mark.spark
def test_a_job_with_the_rights_works_and_shows_no_secret(
    guarded: Guarded, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """Driver and tasks log in; no log, progress, representation or plan holds the password."""
    topic = guarded.topic("whole", "READ", records=50)
    _log_all(caplog)
    shown: list[object] = []
    with CooperativeConsumer(guarded.options(topic), spark) as consumer:
        frame = consumer.poll(PATIENCE)
        assert frame.count() == 50
        shown += [frame, frame._jdf.queryExecution().toString(), consumer, consumer.options]
    with CooperativeConsumer(guarded.options(topic), spark) as consumer:
        building = consumer.foreach(_done).trigger(availableNow=True)
        query = building.onProgress(shown.append).start()
        assert query.awaitTermination(PATIENCE)
        assert query.lastProgress["totals"]["done"] == 50
        shown += [query, query.status, query.recentProgress, json.dumps(query.lastProgress)]
        assert consumer._subscription.joined().cluster.primary()[topic, 0].offset == 50
        assert consumer._subscription.joined().cluster.record_bytes([(topic, 0)]) is None, (
            "no right to that"
        )
    guarded.allow("DESCRIBE", "CLUSTER", "kafka-cluster")
    with closing(Cluster(Options.parse(guarded.options(topic)))) as cluster:
        assert cluster.record_bytes([(topic, 0)])
    assert PASSWORD not in "".join(map(repr, shown)) + "".join(map(str, shown))
    assert PASSWORD not in caplog.text
    assert "(a login)" in caplog.text, "kafka-python would have shown it"
    assert "(a secret option)" in caplog.text, "py4j would have shown it"
    assert PASSWORD not in guarded.broker.log_tail(100_000)


def test_retention_is_known_to_those_who_may_describe_settings(guarded: Guarded) -> None:
    """Others get none, and no error."""
    topic = guarded.topic("foreseen", "READ")
    with closing(guarded.admin()) as admin:
        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "60000000"})]
        )
    with closing(Cluster(Options.parse(guarded.options(topic)))) as cluster:
        assert cluster.retention([topic]) == {}
        guarded.allow("DESCRIBE_CONFIGS", "TOPIC", topic)
        assert cluster.retention([topic]) == {topic: 60_000.0}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_wrong_password_is_reported_at_once(
    guarded: Guarded, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One error, with the settings to look at, which holds no password; nor do logs."""
    _log_all(caplog)
    given = guarded.options("any", sasl_mechanism=mechanism)
    del given["kafka.sasl.jaas.config"]
    given |= {"kafka.sasl_plain_username": "alice", "kafka.sasl_plain_password": "wrong-secret"}
    with at_once(), pytest.raises(AuthenticationFailed, match=f"'alice' by {mechanism}") as caught:
        Cluster(Options.parse(given))
    error = caught.value
    assert (error.mechanism, error.user) == (mechanism, "alice")
    assert error.servers == guarded.broker.bootstrap_servers
    assert "kafka.sasl.jaas.config" in error.settings
    assert not error.retriable
    assert "wrong-secret" not in _text_of(error).replace(repr(given), "")
    assert "wrong-secret" not in caplog.text


def test_an_unsupported_mechanism_is_reported_with_the_supported_ones(guarded: Guarded) -> None:
    """The broker says which it takes."""
    given = guarded.options("any", sasl_mechanism="SCRAM-SHA-256")
    with pytest.raises(AuthenticationFailed, match=r"SHA-256 .*takes .*SCRAM-SHA-512"):
        Cluster(Options.parse(given))


def test_a_broker_without_logins_is_reported(guarded: Guarded) -> None:
    """A login without authentication on the broker points to the protocol."""
    given = guarded.options(
        "any",
        bootstrap_servers=guarded.broker.admin_servers,
        security_protocol="SASL_PLAINTEXT",
    )
    with pytest.raises(AuthenticationFailed, match=r"kafka\.security\.protocol") as caught:
        Cluster(Options.parse(given))
    assert PASSWORD not in _text_of(caught.value).replace(repr(given), "")


def test_a_client_without_a_login_learns_the_protocol(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that expects one does not answer it at all: that may be why."""
    monkeypatch.setattr("coopconsume.kafka.calls._CONNECT_MS", 1_000)  # of waiting for nothing
    given = guarded.options("any", security_protocol="PLAINTEXT")
    for name in [name for name in given if ".sasl" in name]:
        del given[name]
    with pytest.raises(
        BrokerUnreachable, match=r"kafka\.security\.protocol is the one that the broker expects"
    ):
        Cluster(Options.parse(given))


def _refused(guarded: Guarded, topic: str, **more: str) -> NotAuthorized:
    with (
        closing(Cluster(Options.parse(guarded.options(topic, **more)))) as cluster,
        pytest.raises(NotAuthorized) as caught,
    ):
        cluster.topics([topic])
    assert caught.value.user == "alice"
    return caught.value


def test_a_missing_right_is_named(guarded: Guarded) -> None:
    """Topic unseen, topic seen and not read, group not read: each with the ACL that is needed."""
    none = guarded.topic("unseen")
    error = _refused(guarded, none)
    assert (error.operation, error.resource_type, error.resource) == ("READ", "TOPIC", none)
    assert f"--allow-principal User:alice --operation Read --topic {none}" in str(error)
    seen = guarded.topic("seen", "DESCRIBE")
    error = _refused(guarded, seen)
    assert (error.operation, error.resource_type, error.resource) == ("READ", "TOPIC", seen)
    topic = guarded.topic("readable", "READ")
    for right in ((), ("DESCRIBE", "GROUP", "other")):
        if right:
            guarded.allow(*right)
        error = _refused(guarded, topic, group_id="other")
        assert (error.operation, error.resource_type, error.resource) == ("READ", "GROUP", "other")
        assert "--operation Read --group other" in str(error)


def test_a_topic_that_the_leader_may_not_see_is_assigned(guarded: Guarded) -> None:
    """The member that subscribes to it reports it; it grows, and is still all assigned."""
    seen, hidden = guarded.topic("leaders", "READ"), guarded.topic("hidden")
    options = guarded.options(seen) | {"kafka.metadata.max.age.ms": 500}
    unguarded = {
        "kafka.bootstrap.servers": guarded.broker.admin_servers, "subscribe": hidden,
        **{name: options[name] for name in ("kafka.group.id", "commitTable")},
        "kafka.metadata.max.age.ms": 500,
    }  # fmt: skip
    with ExitStack() as stack:
        leader, other = (
            stack.enter_context(closing_member(Options.parse(given)))
            for given in (options, unguarded)
        )
        leader.subscribe([seen], None)
        other.subscribe([hidden], None)
        until(lambda: list(other.owned) == [(hidden, 0)], PATIENCE)
        until(lambda: list(leader.owned) == [(seen, 0)], PATIENCE)
        with closing(guarded.admin()) as admin:
            admin.create_partitions({hidden: 2, seen: 2})
        until(lambda: list(other.owned) == [(hidden, 0), (hidden, 1)], PATIENCE)
        until(lambda: list(leader.owned) == [(seen, 0), (seen, 1)], PATIENCE)


def test_rights_are_looked_at_without_a_trace(guarded: Guarded) -> None:
    """The look leaves no offset behind; a missing topic is reported as such."""
    topic = guarded.topic("looked-at", "READ")
    guarded.allow("READ", "GROUP", "fresh")
    guarded.allow("READ", "TOPIC", "not-there")
    given = Options.parse(guarded.options(topic, group_id="fresh"))
    with closing(Cluster(given)) as cluster:
        (found,) = cluster.topics([topic])
        assert (found.name, found.partitions) == (topic, 1)
        assert [t.name for t in cluster.topics(pattern="looked-.*")] == [topic]
        with pytest.raises(TopicNotFound, match="not-there"):
            cluster.topics(["not-there"])
        assert cluster.primary() == {}
    with closing(guarded.admin()) as admin:
        assert "fresh" not in [group["group_id"] for group in admin.list_groups()]


@pytest.mark.spark
def test_a_right_that_is_lost_ends_a_job(guarded: Guarded, spark: SparkSession) -> None:
    """Spark's tasks find out: the job ends with the same error, and does not try again."""
    topic = guarded.topic("lost", "DESCRIBE", "READ", records=5)
    with CooperativeConsumer(guarded.options(topic), spark) as consumer:
        query = consumer.foreach(_done).start()
        query.processAllAvailable()
        guarded.take("READ", "TOPIC", topic)
        guarded.write(topic, 5)
        with pytest.raises(NotAuthorized) as caught:
            query.awaitTermination(PATIENCE)
    error = caught.value
    assert (error.operation, error.resource_type, error.resource) == ("READ", "TOPIC", topic)
    assert PASSWORD not in _text_of(error)


@pytest.mark.spark
def test_tokens_and_client_certificates_serve_both(guarded: Guarded, spark: SparkSession) -> None:
    """OAUTHBEARER, and a client's certificate, on driver and tasks alike."""
    topic = guarded.topic("tokens", "READ", records=7)
    client = party("client", guarded.authority)
    own = guarded.folder / "client.pem"
    own.write_text(client.private_key() + client.certificate)
    given = guarded.options(
        topic,
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{OAUTH} required unsecuredLoginStringClaim_sub="alice";',
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(own),
    )
    with CooperativeConsumer(given, spark) as consumer:
        assert consumer.poll(PATIENCE).count() == 7
    config = Options.parse(given).client_config()
    with closing(KafkaConsumer(topic, group_id="g", **config)) as consumer:
        assert consumer.partitions_for_topic(topic) == {0}


@pytest.mark.spark
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_slots_in_real_time_log_in_as_batches_do(
    guarded: Guarded, spark: SparkSession, caplog: pytest.LogCaptureFixture, mechanism: str
) -> None:
    """With the same settings; a right that is lost ends the job, and no secret is shown."""
    topic = guarded.topic(f"live-{mechanism.lower()}", "DESCRIBE", "READ", records=5)
    _log_all(caplog)
    tokens = {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_jaas_config": f'{OAUTH} required unsecuredLoginStringClaim_sub="alice";',
    }
    given = guarded.options(topic, **(tokens if mechanism == "OAUTHBEARER" else {}))
    shown: list[object] = []
    with CooperativeConsumer(given, spark) as consumer:
        building = consumer.foreach(_done).trigger(realTime="10 minutes")
        query = building.onProgress(shown.append).start()
        until(lambda: (query.lastProgress or {}).get("mode") == "realTime")
        guarded.write(topic, 20)
        query.processAllAvailable()
        assert query.lastProgress["totals"]["done"] == 25
        until(lambda: query.lastProgress["mode"] == "realTime")
        guarded.take("READ", "TOPIC", topic)
        guarded.write(topic, 5)
        with pytest.raises(NotAuthorized):
            query.awaitTermination(PATIENCE)
    assert PASSWORD not in "".join(map(str, shown)) + caplog.text


def test_tls_failures_are_reported_at_once(guarded: Guarded) -> None:
    """A broker that is not trusted, another name, a certificate that it does not trust, no TLS."""
    stranger = party("stranger")
    own = {
        "ssl_keystore_type": "PEM",
        "ssl_keystore_key": stranger.private_key(),
        "ssl_keystore_certificate_chain": stranger.certificate,
    }
    port = guarded.broker.bootstrap_servers.rpartition(":")[2]
    for more, cause in (
        ({"ssl_truststore_certificates": stranger.certificate}, "self-signed|issuer"),
        ({"bootstrap_servers": f"localhost:{port}"}, "localhost"),
        (own, "(?i)unknown.ca|certificate"),
        ({"bootstrap_servers": guarded.broker.admin_servers}, "(?i)wrong.version|eof"),
    ):
        with at_once(), pytest.raises(AuthenticationFailed, match=cause) as caught:
            Cluster(Options.parse(guarded.options("any", **more)))
        assert caught.value.mechanism == "TLS"
        assert "kafka.ssl.truststore.*" in str(caught.value)
    anywhere = {"bootstrap_servers": f"localhost:{port}"}
    anywhere["ssl_endpoint_identification_algorithm"] = ""
    Cluster(Options.parse(guarded.options("any", **anywhere))).close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_odd_names_and_passwords_work(guarded: Guarded, mechanism: str) -> None:
    """Whatever needs an escape in JAAS or SCRAM arrives as it is."""
    given = guarded.options("any", sasl_mechanism=mechanism)
    del given["kafka.sasl.jaas.config"]
    given |= {"kafka.sasl.plain.username": ODD[0], "kafka.sasl.plain.password": ODD[1]}
    Cluster(Options.parse(given)).close()


def test_passwords_of_the_broker_are_private(guarded: Guarded) -> None:
    """What holds them on disk is for its owner alone."""
    assert guarded.broker.log_path is not None
    settings = guarded.broker.log_path.parent / "server.properties"
    assert PASSWORD in settings.read_text()
    assert settings.stat().st_mode & 0o077 == 0
    assert PASSWORD not in repr(guarded.broker)
    assert guarded.broker.admin_servers != guarded.broker.bootstrap_servers


def test_a_fenced_writer_logs_in(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    """By SCRAM or a token over TLS, in both visibilities, with the documented rights; no secret."""
    _log_all(caplog)
    topic = guarded.topic("log", "READ", "WRITE", "DESCRIBE_CONFIGS")
    guarded.allow_logs()
    options = guarded.log_options()
    for first, visibility in enumerate(("read_committed", "filter")):
        with FencedWriter(options, topic, visibility=visibility) as writer:  # type: ignore[arg-type]
            assert (writer.epoch, writer.next_seq) == (first + 1, first)
            writer.append([visibility.encode()], expected_seq=first)
            assert PASSWORD not in repr(writer) + repr(vars(writer))
    by_token = options | {
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.jaas.config": f'{OAUTH} required unsecuredLoginStringClaim_sub="alice";',
    }
    with LogReader(by_token, topic) as reader:
        assert [record.value for record in reader.read()] == [b"read_committed", b"filter"]
    with FencedWriter(by_token, topic) as writer:
        writer.append([b"token"], expected_seq=2)
    assert audit(options, topic)[1].ok
    assert PASSWORD not in caplog.text


def test_commands_log_in_by_a_file_that_kafkas_tools_read_too(
    guarded: Guarded, tmp_path: Path
) -> None:
    """One file for jobs, operators and logs, named by the variable; the command line counts."""
    topic = guarded.topic("by-file", "READ", "DESCRIBE_CONFIGS", records=3)
    lines = []
    for name, value in guarded.options(topic).items():
        text = str(value).replace("\\", "\\\\").replace("\n", "\\n\\\n    ")
        lines.append(f"{name.removeprefix('kafka.')} = {text}\n")
    file = tmp_path / "client.properties"
    file.write_text("".join(lines))
    runner = CliRunner(env={COMMAND_CONFIG: str(file)})
    altered = runner.invoke(main, ["topics", "alter", topic, "--accept-range-fetch"])
    assert altered.exit_code == 0, altered.output
    described = runner.invoke(main, ["topics", "describe", topic, "--json"])
    assert [(t["name"], t["is_shareable"]) for t in json.loads(described.stdout)] == [(topic, True)]
    head = runner.invoke(main, ["log", "head", topic, "--json"])
    assert head.exit_code == 0, head.output
    assert json.loads(head.stdout)["end"] == 3
    wrong = ["-o", "kafka.sasl.mechanism=PLAIN", "-o", "kafka.sasl.jaas.config=PlainLoginModule x;"]
    assert runner.invoke(main, ["topics", "describe", *wrong]).exit_code == 2
    assert PASSWORD not in altered.output + described.output + head.output


def test_a_fenced_writer_without_login_or_right_is_refused(guarded: Guarded) -> None:
    """A wrong password, no right to read, none to write; none of it is tried for ever."""
    topic = guarded.topic("no-log", "READ")
    guarded.allow_logs()
    wrong = guarded.log_options(sasl_mechanism="PLAIN")
    del wrong["kafka.sasl.jaas.config"]
    wrong |= {"kafka.sasl.plain.username": "alice", "kafka.sasl.plain.password": "wrong-secret"}
    with pytest.raises(AuthenticationFailed) as login:
        FencedWriter(wrong, topic, timeout=10).acquire()
    assert "wrong-secret" not in _text_of(login.value).replace(repr(wrong), "")
    with pytest.raises(NotAuthorized) as right:
        FencedWriter(guarded.log_options(), topic, timeout=60).acquire()
    assert (right.value.operation, right.value.resource) == ("WRITE", topic)


def test_an_idle_owner_that_the_broker_forgot_is_still_the_owner(guarded: Guarded) -> None:
    """Transactional and producer ids expire (H11): it writes on under its epoch; a zombie does not.

    Also one that was taken over before all of it was forgotten.
    """
    options = {"kafka.bootstrap.servers": guarded.broker.admin_servers}
    with ExitStack() as opened, closing(guarded.admin()) as admin:
        writers = []
        for visibility in ("read_committed", "filter"):
            topic = guarded.topic(f"idle-{visibility}")
            zombie, owner = (
                opened.enter_context(
                    FencedWriter(options, topic, visibility=visibility, timeout=100)  # type: ignore[arg-type]
                )
                for _ in range(2)
            )
            owner.append([b"a"], expected_seq=0)
            writers.append((zombie, owner, owner._session.channel))
        logs = [owner.log for _, owner, _ in writers]
        places = [TopicPartition(log.topic, log.partition) for log in logs]

        def forgotten() -> bool:
            producers = admin.describe_producers(places)
            listed = admin.list_transactions().values()
            left = {each.transactional_id for of_broker in listed for each in of_broker}
            ids = {log.transactional_id() for log in logs}
            return not ids & left and not any(producers[at].active_producers for at in places)

        until(forgotten, 120)
        for zombie, owner, channel in writers:
            with pytest.raises(ProducerFenced):
                zombie.append([b"late"])
            assert owner.append([b"b"], expected_seq=1).first_seq == 1
            assert owner.epoch == 2
            if not owner._session.is_filtered:
                assert owner._session.channel is not channel, "the broker took forgotten ids"
            with LogReader(options, owner.log.topic) as reader:
                assert [record.value for record in reader.read()] == [b"a", b"b"]
