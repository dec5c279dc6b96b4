"""Options: checked at once, in Kafka's and Spark's words, with the closest name in the error."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from commits import Pending
from commits.model import MAX_SHORT_KEY
from coopconsume.consumer import CooperativeConsumer
from coopconsume.errors import InvalidOption, MissingOption, UnknownOption
from coopconsume.group.owned import to_keep
from coopconsume.kafka.settings import closest
from coopconsume.option_names import _REMEDIES, CLIENT_SETTINGS, REFUSED_SETTINGS, WITHOUT_EFFECT
from coopconsume.option_values import parse_seconds
from coopconsume.options import TABLE, Options
from coopconsume.record import shown_key

BASE = {
    "kafka.bootstrap.servers": "a:1, b:2",
    "kafka.group.id": "g",
    "commitTable": "somewhere",
}


def test_defaults_are_those_of_the_table():
    """What is not given has the default that the table says."""
    options = Options.parse(BASE)
    for option in TABLE:
        if option.name not in {"commitTable", "commitInterval"}:
            assert getattr(options, option.attribute) == option.default
    assert options.group_id == "g"
    assert options.batch_life == 70.0


def test_names_are_compared_without_regard_to_case():
    """As in Spark, case does not matter for names."""
    options = Options.parse(BASE | {"STARTINGOFFSETS": "Latest", "batchtime": "500ms"})
    assert options.starting_offsets == "latest"
    assert options.batch_time == 0.5


@pytest.mark.parametrize(
    ("given", "closest"),
    [
        ("startingOffset", "startingOffsets"),
        ("commit_table", "commitTable"),
        ("slot", "slots"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.sasl.mechanisms", "kafka.sasl.mechanism"),
        # The same name in another spelling, or with or without kafka.
        ("group_id", "kafka.group.id"),
        ("groupId", "kafka.group.id"),
        ("bootstrap.servers", "kafka.bootstrap.servers"),
        ("kafka.session_timeout_ms", "kafka.session.timeout.ms"),
        ("max.offsets.per.trigger", "maxOffsetsPerTrigger"),
        ("kafka.startingOffsets", "startingOffsets"),
        ("kafka.subscribe", "subscribe"),
        ("topics", "subscribe"),
    ],
)
def test_a_misspelt_option_names_the_closest(given, closest):
    """An unknown option is an error that names the known one nearest to it."""
    with pytest.raises(UnknownOption) as error:
        Options.parse(BASE | {given: "1"})
    assert error.value.closest == closest
    assert closest in str(error.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("sasl.password", "kafka.sasl.jaas.config"),
        ("sasl_username", "kafka.sasl_plain_username"),
        ("kafka.sasl.username", "kafka.sasl.jaas.config"),
        ("kafka.sasl.oauthbearer.client.secret", "kafka.sasl.jaas.config"),
        ("kafka.sasl.kerberos.keytab", "Kerberos is not supported"),
        ("kafka.ssl.ca.location", "kafka.ssl.truststore.location"),
        ("kafka.ssl_cafile", "kafka.ssl.truststore.location"),
        ("kafka.ssl.key.location", "kafka.ssl.keystore.location"),
        ("metadata.broker.list", "kafka.bootstrap.servers"),
        ("kafka.fetch.wait.max.ms", "kafka.fetch.max.wait.ms"),
        ("kafka.enable.auto.offset.store", "committed one by one"),
        ("auto.offset.reset", "use startingOffsets"),
        ("enable.auto.commit", "committed one by one"),
        ("checkpoint_location", "commitTable has what is done"),
        ("spark.hadoop.fs.s3a.secret.key", "--spark-conf"),
    ],
)
def test_a_name_of_another_library_names_what_stands_for_it(given, words):
    """Not the name that is most alike; and never its value, which may be a secret."""
    with pytest.raises(InvalidOption, match=words) as error:
        Options.parse(BASE | {given: "hush"})
    assert error.value.name == given
    assert "hush" not in str(error.value) or given == "checkpoint_location"


@pytest.mark.parametrize("given", ["kafka.sasl.passwort", "sasl.key.password", "ssl.mechanism"])
def test_no_name_of_sasl_stands_for_one_of_ssl(given):
    """They are different kinds of security, however alike their names are."""
    known = [f"kafka.{name}" for name in CLIENT_SETTINGS]
    found = closest(given, known, cutoff=0.3)
    assert found is not None
    assert found.split(".")[1] == given.removeprefix("kafka.").split(".")[0]


@pytest.mark.parametrize(
    "given", ["maxAttempts", "concurrency", "output", "trigger", "realTime", "processingTime"]
)
def test_a_name_that_is_unlike_all_options_names_none(given):
    """The words of other calls have no option that is alike: a guess would mislead."""
    with pytest.raises(UnknownOption) as error:
        Options.parse(BASE | {given: "1"})
    assert error.value.closest is None
    assert str(error.value) == f"unknown option {given!r}: see coopconsume run --help"


def test_all_misspelt_options_are_named_at_once():
    """A user corrects them in one go; the first one stands in the attributes."""
    with pytest.raises(UnknownOption) as error:
        Options.parse({"comitTable": "/x", "subscibe": "t", "qqqq": "1"})
    assert str(error.value) == (
        "unknown option 'comitTable': did you mean 'commitTable'?; "
        "unknown option 'subscibe': did you mean 'subscribe'?; "
        "unknown option 'qqqq': see coopconsume run --help"
    )
    assert error.value.name == "comitTable"
    assert error.value.more == (("subscibe", "subscribe"), ("qqqq", None))
    again = pickle.loads(pickle.dumps(error.value))
    assert (str(again), again.more) == (str(error.value), error.value.more)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("slots", "0", "whole number from 1"),
        ("slots", "many", "whole number"),
        ("handlerLogLines", "101", "whole number from 0 to 100"),
        ("showHandlerLines", "true", "give a whole number"),
        ("showHandlerLines", "1001", "whole number from 0 to 1000"),
        ("deadLetterPartitions", "-1", "whole number from 0"),
        ("deadLetterTopicConfig", "retention.ms=-1", "give JSON"),
        ("deadLetterTopicConfig", '["retention.ms"]', "give JSON"),
        ("deadLetterTopicConfig", '{"retention.ms": [1]}', "give JSON"),
        ("failOnDataLoss", "maybe", "true or false"),
        ("batchTime", "soon", "seconds"),
        ("batchTime", "0", "0.05"),
        ("commitInterval", "61", "0 to 60"),
        ("startingOffsets", "first", "earliest, latest or JSON"),
        ("startingOffsets", '{"t": {"0": -3}}', "-2 earliest"),
        ("assignor", "fair", "sticky, range, roundrobin"),
        ("onExternalReset", "ignore", "fail, honour"),
        ("subscribe", "a,,b", "separated by commas"),
        ("subscribePattern", "(a", "regular expression"),
        ("commitTable", " ", "not empty"),
        ("kafka.isolation.level", "none", "read_committed"),
        ("kafka.request.timeout.ms", "soon", "give a number"),
        ("kafka.key.deserializer", "x", "keys are bytes"),
        ("checkpointLocation", "/x", "commitTable has what is done"),
        ("startingtimestamp", "1", "offsets reset --create --to-datetime"),
        ("endingOffsets", "latest", "--available-now"),
        ("assign", "{}", "use subscribe"),
        ("kafkaConsumer.pollTimeoutMs", "5", "no meaning here"),
        ("kafka.auto.offset.reset", "earliest", "startingOffsets"),
        ("allow.individual.commit", "false", "no other commits"),
        ("allowKeys", "a,,b", "not empty"),
        ("denyKeys", "[1]", "JSON list"),
        ("denyKeysFile", "/nowhere/keys", "No such file"),
        ("keyEncoding", "utf-16", "text, hex, base64"),
        ("minRecordBytes", "0", "from 1"),
        ("headerEquals", "type", "name=value"),
        ("headerEquals", '{"type": 1}', "name=value"),
        ("where", "rand() < 0.5", "it contains rand"),
        ("where", " ", "not empty"),
    ],
)
def test_a_wrong_value_names_the_option_what_was_found_and_the_remedy(name, value, words):
    """A value of the wrong type or out of range is refused on the spot."""
    with pytest.raises(InvalidOption) as error:
        Options.parse(BASE | {name: value})
    assert name in str(error.value)
    assert words in str(error.value)
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)
    assert again.name == name


def test_an_option_of_spark_that_means_something_here_is_not_refused():
    """Those with a meaning of their own are in the table; none is in both."""
    assert not {option.name.lower() for option in TABLE} & set(_REMEDIES)
    assert not set(REFUSED_SETTINGS) & CLIENT_SETTINGS


def test_a_setting_without_effect_reaches_no_client():
    """Spark's source would refuse one of them, and Java's consumer would read in small pieces."""
    given = {f"kafka.{name}": "1" for name in WITHOUT_EFFECT}
    options = Options.parse(BASE | given)
    assert set(options.without_effect) == set(WITHOUT_EFFECT)
    plain = Options.parse(BASE)
    assert plain.without_effect == ()
    assert options.source_options() == plain.source_options()
    assert options.client_config() == plain.client_config()
    assert options.redacted() == plain.redacted()


def test_a_setting_without_effect_is_named_once(caplog, monkeypatch):
    """By the first consumer of a process; the warning says what has the effect."""
    monkeypatch.setattr("coopconsume.option_names._WARNED", set())

    def no_session():
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            CooperativeConsumer(BASE | {"kafka.max.poll.records": "9"}, no_session)
    assert [record.getMessage() for record in caplog.records] == [
        "kafka.max.poll.records has no effect: maxOffsetsPerTrigger limits a batch"
    ]


@pytest.mark.parametrize("name", list(BASE))
def test_what_must_be_given_is_asked_for(name):
    """The three options without a default are named when missing."""
    with pytest.raises(MissingOption, match=name):
        Options.parse({k: v for k, v in BASE.items() if k != name})


def test_an_operator_needs_no_group():
    """Without one all is as with one, until somebody asks for it; an empty one is no group."""
    without = {name: value for name, value in BASE.items() if name != "kafka.group.id"}
    options = Options.parse(without, group=False)
    assert options.commit_table == BASE["commitTable"]
    with pytest.raises(MissingOption, match=r"kafka\.group\.id"):
        _ = options.group_id
    with pytest.raises(MissingOption, match=r"kafka\.group\.id"):
        Options.parse(without | {"kafka.group.id": " "}, group=False)
    assert Options.parse(BASE, group=False).group_id == "g"


def test_topics_are_given_one_way():
    """Options subscribe and subscribePattern exclude each other."""
    with pytest.raises(InvalidOption, match="subscribePattern"):
        Options.parse(BASE | {"subscribe": "a", "subscribePattern": "a.*"})


def test_starting_offsets_as_json():
    """Spark's JSON with -2 for earliest and -1 for latest."""
    options = Options.parse(BASE | {"startingOffsets": '{"t": {"0": 23, "1": -2}}'})
    assert options.starting_offsets == {"t": {0: 23, 1: -2}}


def test_the_same_settings_serve_both_clients():
    """Settings reach kafka-python in its words, and Spark unchanged."""
    options = Options.parse(
        BASE
        | {
            "kafka.client.id": "me",
            "kafka.request.timeout.ms": "4000",
            "kafka.fetch.max.bytes": "1000",
        }
    )
    assert options.client_config() == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
        "client_id": "me",
        "request_timeout_ms": 4000,
        "reconnect_backoff_max_ms": 1000,
    }
    source = options.source_options()
    assert source["kafka.client.id"] == "me"
    assert source["kafka.fetch.max.bytes"] == "1000"
    assert source["kafka.isolation.level"] == "read_committed"
    assert source["kafka.fetch.max.wait.ms"] == "10"  # What is read is there.
    patient = Options.parse(BASE | {"kafka.fetch.max.wait.ms": "700"}).source_options()
    assert patient["kafka.fetch.max.wait.ms"] == "700"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(3, 3.0), ("3", 3.0), ("10 seconds", 10.0), ("250ms", 0.25), ("2 minutes", 120.0)],
)
def test_times_are_seconds_or_a_text(text, seconds):
    """Numbers are seconds; units may be said as in Spark's triggers."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(("table", "seconds"), [
    ("/data/commits", 0.04), ("file:///data/commits", 0.04), ("s3://bucket/commits", 0.2),
    ("main.ops.commits", 0.2),
])  # fmt: skip
def test_commits_are_rarer_where_a_request_costs_money(table, seconds):
    """A table that is not on a local disk; a given interval counts everywhere."""
    given = BASE | {"commitTable": table}
    assert Options.parse(given).commit_interval == seconds
    assert Options.parse(given | {"commitInterval": "10 ms"}).commit_interval == 0.01


def test_what_has_no_commit_table_needs_none():
    """A queue, and an operator's calls."""
    without = {name: value for name, value in BASE.items() if name != "commitTable"}
    assert not Options.parse(without, table=False).commit_table


@pytest.mark.parametrize("given", [{}, {"keepFailedKeys": "false"}])
def test_keys_of_failed_records_are_kept_unless_the_option_says_no(given):
    """Nothing else of the record changes."""
    failed = Pending(3, 9, 2, 0, "y", headers=(("a", b"1"),), key="k")
    (kept,) = to_keep(Options.parse(BASE | given), {("t", 0): [failed]})["t", 0]
    assert kept == (replace(failed, key=None) if given else failed)


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        (None, None),
        (b"", ""),
        (b"a\xff", "a\\xff"),
        (b"k" * 64, "k" * 64),
        (b"k" * 65, "k" * 64 + "…"),
        ("😀".encode() * 64, "😀" * 64),
        ("😀".encode() * 65, "😀" * 64 + "…"),
        (b"\xff" * 17, "\\xff" * 16 + "…"),
    ],
)
def test_a_long_key_is_cut_and_marked(key, shown):
    """By characters; bytes that are not UTF-8 are escaped."""
    assert shown_key(key) == shown
    assert shown is None or len(shown) <= MAX_SHORT_KEY
