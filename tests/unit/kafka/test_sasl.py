"""SASL settings: in whatever words a login is given, both clients get what they need."""

from __future__ import annotations

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient

from coopconsume.errors import InvalidOption, UnknownOption
from coopconsume.kafka.security.jaas import parse
from coopconsume.options import Options

PACKAGE = "org.apache.kafka.common.security"
PLAIN = f"{PACKAGE}.plain.PlainLoginModule"
SCRAM = f"{PACKAGE}.scram.ScramLoginModule"
OAUTH = f"{PACKAGE}.oauthbearer.OAuthBearerLoginModule"
HANDLER = f"{PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
JAAS = "kafka.sasl.jaas.config"
BASE = {
    "kafka.bootstrap.servers": "a:1,b:2",
    "kafka.group.id": "g",
    "commitTable": "somewhere",
    "kafka.security.protocol": "SASL_SSL",
}


def given(mechanism: str | None, **more: str) -> dict[str, str]:
    """Options with a mechanism and more settings, whose names have _ for a dot."""
    named = {} if mechanism is None else {"kafka.sasl.mechanism": mechanism}
    return BASE | named | {f"kafka.{name.replace('__', '.')}": v for name, v in more.items()}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [("PLAIN", PLAIN), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM),
     ("PLAIN", f"kafkashaded.{PLAIN}")],
)  # fmt: skip
def test_a_jaas_text_serves_both(mechanism, module):
    """Java's words reach Spark as they are, and kafka-python in its own."""
    text = f'{module} required username="u" password="p\\"w";'
    options = Options.parse(given(mechanism, sasl__jaas__config=text))
    client = options.client_config()
    assert client["security_protocol"] == "SASL_SSL"
    assert client["sasl_mechanism"] == mechanism
    assert client["sasl_plain_username"] == "u"
    assert client["sasl_plain_password"] == 'p"w'
    assert options.source_options()[JAAS] == text


@pytest.mark.parametrize(("mechanism", "module"), [("PLAIN", PLAIN), ("SCRAM-SHA-512", SCRAM)])
@pytest.mark.parametrize("dot", ["_", "."])
def test_user_name_and_password_alone_serve_both(mechanism, module, dot):
    """kafka-python's words become Java's, with all that needs an escape."""
    words = {
        f"kafka.sasl{dot}plain{dot}username": "u",
        f"kafka.sasl{dot}plain{dot}password": 'a"\\;',
    }
    options = Options.parse(given(mechanism) | words)
    source = options.source_options()
    login = parse(source[JAAS])
    assert login.module == module
    assert login.options == {"username": "u", "password": 'a"\\;'}
    assert not [name for name in source if "plain" in name]
    assert options.client_config()["sasl_plain_password"] == 'a"\\;'


def test_on_databricks_the_shaded_module_is_named(monkeypatch):
    """There Kafka's classes have moved."""
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "17.3")
    words = {"kafka.sasl_plain_username": "u", "kafka.sasl_plain_password": "p"}
    source = Options.parse(given("PLAIN") | words).source_options()
    assert source[JAAS].startswith(f"kafkashaded.{PLAIN} required ")


def test_a_scram_user_name_is_escaped_for_kafka_python():
    """RFC 5802 gives commas and equals signs a meaning; Java's client escapes them by itself."""
    words = {"kafka.sasl_plain_username": "a=b,c", "kafka.sasl_plain_password": "p"}
    scram = Options.parse(given("SCRAM-SHA-256") | words).client_config()
    assert scram["sasl_plain_username"] == "a=3Db=2Cc"
    plain = Options.parse(given("PLAIN") | words).client_config()
    assert plain["sasl_plain_username"] == "a=b,c"


def login(module: str, options: str = 'username="u" password="hush"') -> str:
    """Text of a login module."""
    return f"{module} required {options};"


@pytest.mark.parametrize(
    ("mechanism", "more", "name", "message"),
    [
        (None, {}, "kafka.sasl.mechanism", "GSSAPI.*Kerberos is not supported: use SCRAM-SHA-512"),
        ("GSSAPI", {}, "kafka.sasl.mechanism", "Kerberos is not supported"),
        ("AWS_MSK_IAM", {}, "kafka.sasl.mechanism", "use SCRAM"),
        ("PLAIN", {}, JAAS, f"missing: write {PLAIN} required username="),
        ("SCRAM-SHA-512", {}, JAAS, f"missing: write {SCRAM} required username="),
        ("PLAIN", {"sasl__jaas__config": login(SCRAM)}, JAAS, "SCRAM-SHA-256 and SCRAM-SHA-512"),
        ("SCRAM-SHA-512", {"sasl__jaas__config": login(PLAIN)}, JAAS, "the module of PLAIN"),
        ("PLAIN", {"sasl__jaas__config": login("my.Module")}, JAAS, "another kind.*needs"),
        ("PLAIN", {"sasl__jaas__config": login("com.sun.security.auth.module.Krb5LoginModule")},
         JAAS, "Kerberos is not supported"),
        ("PLAIN", {"sasl__jaas__config": login(PLAIN)[:-1]}, JAAS, "not readable: .*semicolon"),
        ("PLAIN", {"sasl__jaas__config": login(PLAIN, 'username="u"')}, JAAS, "no username and"),
        ("PLAIN", {"sasl__jaas__config": login(PLAIN, 'username="" password="hush"')}, JAAS,
         "no username and"),
        ("SCRAM-SHA-512",
         {"sasl__jaas__config": login(SCRAM, 'username="u" password="hush" tokenauth="true"')},
         JAAS, "tokenauth.*delegation token"),
        ("PLAIN", {"sasl__login__callback__handler__class": "my.Handler"},
         "kafka.sasl.login.callback.handler.class", "Python cannot run it"),
        ("PLAIN", {"sasl__client__callback__handler__class": "my.Handler"},
         "kafka.sasl.client.callback.handler.class", "Python cannot run it"),
        ("PLAIN", {"sasl__login__class": "my.Login"}, "kafka.sasl.login.class", "leave it out"),
        ("PLAIN", {"security__providers": "my.Provider"}, "kafka.security.providers", "no Java"),
        ("PLAIN", {"sasl_plain_username": "u", "sasl_plain_password": "hush",
                   "sasl__jaas__config": login(PLAIN)}, "kafka.sasl_plain_username", "beside"),
        ("PLAIN", {"sasl_plain_password": "hush"}, "kafka.sasl_plain_password", "give both"),
        ("OAUTHBEARER", {"sasl_plain_username": "u", "sasl_plain_password": "hush"},
         "kafka.sasl_plain_username", "OAUTHBEARER"),
        ("OAUTHBEARER", {"sasl__jaas__config": login(OAUTH, "")},
         "kafka.sasl.oauthbearer.token.endpoint.url", "missing"),
        ("OAUTHBEARER",
         {"sasl__jaas__config": login(OAUTH, 'clientId="c"'),
          "sasl__oauthbearer__token__endpoint__url": "https://host"}, JAAS, "no clientSecret"),
        ("OAUTHBEARER",
         {"sasl__jaas__config": login(OAUTH, 'clientId="c" clientSecret="hush"'),
          "sasl__oauthbearer__token__endpoint__url": "ftp://host/token"},
         "kafka.sasl.oauthbearer.token.endpoint.url", "https:"),
        ("OAUTHBEARER",
         {"sasl__jaas__config": login(OAUTH, 'clientId="c" clientSecret="hush"'),
          "sasl__oauthbearer__token__endpoint__url": "https://me:hush@host/token"},
         "kafka.sasl.oauthbearer.token.endpoint.url", "has a user in it"),
        ("OAUTHBEARER",
         {"sasl__jaas__config": login(OAUTH, 'clientId="c" clientSecret="hush"'),
          "sasl__login__callback__handler__class": HANDLER},
         "kafka.sasl.oauthbearer.token.endpoint.url", "missing"),
        ("OAUTHBEARER",
         {"sasl__jaas__config": login(OAUTH, 'clientId="c" clientSecret="hush"'),
          "sasl__login__callback__handler__class": "my.Handler"},
         "kafka.sasl.login.callback.handler.class", "Python cannot run it"),
        ("OAUTHBEARER", {"sasl__oauthbearer__client__credentials__client__secret": "hush"},
         "kafka.sasl.oauthbearer.client.credentials.client.secret", "clientId and clientSecret in"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name_with_the_remedy(mechanism, more, name, message):
    """At once, as options are read, and without the secret."""
    with pytest.raises(InvalidOption, match=message) as error:
        Options.parse(given(mechanism, **more))
    assert error.value.name == name
    assert "hush" not in str(error.value) + repr(error.value)


def test_an_unknown_protocol_is_refused():
    """Kafka has four."""
    with pytest.raises(InvalidOption, match="PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL"):
        Options.parse(BASE | {"kafka.security.protocol": "TLS"})


def test_a_misspelt_setting_of_security_names_the_closest():
    """A slip of the pen there would otherwise show as a refused login."""
    with pytest.raises(UnknownOption) as error:
        Options.parse(BASE | {"kafka.sasl.plain.user": "u"})
    assert error.value.closest == "kafka.sasl.plain.username"


def test_without_sasl_a_login_does_not_matter():
    """As to Java's client, sasl.* means nothing to a protocol without SASL."""
    options = Options.parse(BASE | {"kafka.security.protocol": "plaintext", JAAS: "anything"})
    assert options.client_config() == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
        "reconnect_backoff_max_ms": 1000,
    }


@pytest.mark.parametrize("client", [KafkaAdminClient, KafkaConsumer])
def test_the_settings_are_those_of_both_clients_of_kafka_python(client):
    """Neither knows of a setting that the other does not."""
    words = {"kafka.sasl_plain_username": "u", "kafka.sasl_plain_password": "p"}
    numbers = {
        "kafka.request.timeout.ms": "4000",
        "kafka.receive.buffer.bytes": "-1",
        "kafka.send.buffer.bytes": "65536",
        "kafka.client.dns.lookup": "use_all_dns_ips",
        "kafka.session.timeout.ms": "6000",
    }
    config = Options.parse(given("PLAIN") | words | numbers).client_config()
    assert set(config) <= set(client.DEFAULT_CONFIG)
    assert config["request_timeout_ms"] == 4000
    assert config["send_buffer_bytes"] == 65536
    assert "receive_buffer_bytes" not in config, "-1 is Kafka's word for the system's own"


def test_no_representation_shows_a_secret():
    """Options, their settings in either client's words, and a plug-in's settings are hidden."""
    secrets = {
        JAAS: login(PLAIN),
        "kafka.ssl.key.password": "hush",
        "kafka.plugin.login": "hush",
        "kafka.sasl.oauthbearer.assertion.private.key.passphrase": "hush",
    }
    options = Options.parse(BASE | {"kafka.security.protocol": "PLAINTEXT"} | secrets)
    shown = [repr(options), str(options), str(options.redacted()), repr(options.kafka)]
    shown += [repr(options.source_options())]
    options = Options.parse(given("PLAIN", sasl__jaas__config=login(PLAIN)))
    shown += [repr(options.client_config()), repr(vars(options))]
    assert "hush" not in "".join(shown)
    assert options.redacted()["kafka.sasl.mechanism"] == "PLAIN"
    assert "hush" in options.source_options()[JAAS]
