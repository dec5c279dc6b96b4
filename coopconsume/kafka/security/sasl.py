"""Kafka's ``sasl.*`` settings for both clients."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from coopconsume.errors import InvalidOption
from coopconsume.kafka.security import jaas
from coopconsume.kafka.security.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE: Final = "org.apache.kafka.common.security"
_SCRAM: Final = f"{_PACKAGE}.scram.ScramLoginModule"
_MODULES: Final = {
    "PLAIN": f"{_PACKAGE}.plain.PlainLoginModule",
    "SCRAM-SHA-256": _SCRAM,
    "SCRAM-SHA-512": _SCRAM,
    "OAUTHBEARER": f"{_PACKAGE}.oauthbearer.OAuthBearerLoginModule",
}
_OAUTH_HANDLER: Final = f"{_PACKAGE}.oauthbearer.OAuthBearerLoginCallbackHandler"
_HANDLER: Final = "sasl.login.callback.handler.class"
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_NAMES: Final = ("sasl.plain.username", "sasl.plain.password")
_ONLY_JAVA: Final = ("sasl.client.callback.handler.class", "sasl.login.class")
_NEWER: Final = ("sasl.oauthbearer.client.credentials.", "sasl.oauthbearer.assertion.",
                 "sasl.oauthbearer.jwt.")  # fmt: skip
_USE: Final = "use SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER"


def complete(kafka: Mapping[str, str]) -> dict[str, str]:
    """Convert the settings of a login to those of Kafka's Java client.

    A separate user name and password (``sasl_plain_username``, as in kafka-python) become
    ``sasl.jaas.config``. A token endpoint adds the callback handler that uses it.

    Raises:
        InvalidOption: The login is given twice, is incomplete, or does not fit the mechanism.
    """
    done = dict(kafka)
    given = [name for name in _NAMES if name in done]
    if given:
        name = f"kafka.{given[0].replace('.', '_')}"
        if "sasl.jaas.config" in done:
            raise InvalidOption(name, "given beside kafka.sasl.jaas.config", "give one of the two")
        if len(given) < len(_NAMES):
            raise InvalidOption(name, "given alone", "give both user name and password")
        mechanism = done.get("sasl.mechanism", "none")
        if mechanism not in _MODULES or mechanism == "OAUTHBEARER":
            remedy = "give kafka.sasl.mechanism = SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN with it"
            raise InvalidOption(name, f"given with mechanism {mechanism}", remedy)
        user, password = (done.pop(name) for name in _NAMES)
        login = jaas.Login(_shaded(_MODULES[mechanism]), {"username": user, "password": password})
        done["sasl.jaas.config"] = Secret(login)
    if done.get("sasl.mechanism") == "OAUTHBEARER" and done.get(_ENDPOINT):
        done.setdefault(_HANDLER, _shaded(_OAUTH_HANDLER))
    return done


def _shaded(name: str) -> str:
    # Databricks moves Kafka's classes to a package of its own.
    return f"kafkashaded.{name}" if "DATABRICKS_RUNTIME_VERSION" in os.environ else name


def check(kafka: Mapping[str, str]) -> jaas.Login:
    """Validate complete ``sasl.*`` settings and return the login.

    Raises:
        InvalidOption: A setting is missing, wrong or not supported by kafka-python.
    """
    mechanism = kafka.get("sasl.mechanism")
    if mechanism is None or mechanism == "GSSAPI":
        found = "missing, which means GSSAPI" if mechanism is None else "'GSSAPI'"
        remedy = f"Kerberos is not supported: {_USE}"
        raise InvalidOption("kafka.sasl.mechanism", found, remedy)
    if mechanism not in _MODULES:
        raise InvalidOption("kafka.sasl.mechanism", repr(mechanism), _USE)
    refused = _ONLY_JAVA if mechanism == "OAUTHBEARER" else (*_ONLY_JAVA, _HANDLER)
    for name in refused:
        if kafka.get(name):
            remedy = f"Python cannot run it: leave it out, and {_USE}"
            raise InvalidOption(f"kafka.{name}", repr(kafka[name]), remedy)
    for name in kafka:
        if name.startswith(_NEWER):
            remedy = "Spark's Kafka client does not know it: give clientId and clientSecret in "
            raise InvalidOption(f"kafka.{name}", "given", remedy + "kafka.sasl.jaas.config")
    login = _login(kafka, mechanism)
    if mechanism == "OAUTHBEARER":
        from coopconsume.kafka.security import oauth

        oauth.check(kafka, login)
        return login
    if login.options.get("tokenauth", "").lower() == "true":
        remedy = "kafka-python has no delegation tokens: give a user's name and password"
        raise _wrong("tokenauth in it", remedy)
    if not (login.options.get("username") and login.options.get("password")):
        raise _wrong("no username and password in it", _example(_MODULES[mechanism]))
    return login


def _login(kafka: Mapping[str, str], mechanism: str) -> jaas.Login:
    wanted = _MODULES[mechanism]
    if "sasl.jaas.config" not in kafka:
        raise _wrong("missing", _example(wanted))
    try:
        login = jaas.parse(kafka["sasl.jaas.config"])
    except ValueError as error:
        raise _wrong(f"not readable: {error}", _example(wanted)) from None
    simple = wanted.rpartition(".")[2]
    if login.simple_name == simple:
        return login
    if login.simple_name == "Krb5LoginModule":
        raise _wrong("a login by Kerberos", f"Kerberos is not supported: {_USE}")
    fitting = [m for m, name in _MODULES.items() if name.endswith(f".{login.simple_name}")]
    found = f"the module of {' and '.join(fitting)}" if fitting else "a module of another kind"
    raise _wrong(found, f"kafka.sasl.mechanism = {mechanism} needs {wanted}")


def _wrong(found: str, remedy: str) -> InvalidOption:
    return InvalidOption("kafka.sasl.jaas.config", found, remedy)


def _example(module: str) -> str:
    return f'write {module} required username="…" password="…";'


def client_config(kafka: Mapping[str, str]) -> dict[str, Any]:
    """Translate the settings to those of kafka-python.

    Raises:
        InvalidOption: As for `check`; or a PEM file for the token endpoint cannot be used.
    """
    login = check(kafka)
    mechanism = kafka["sasl.mechanism"]
    config: dict[str, Any] = {"sasl_mechanism": mechanism}
    if mechanism == "OAUTHBEARER":
        from coopconsume.kafka.security import oauth

        return config | {"sasl_oauth_token_provider": oauth.provider(kafka, login)}
    user = str(login.options["username"])
    if mechanism != "PLAIN":  # the caller of kafka-python must escape names as in RFC 5802
        user = user.replace("=", "=3D").replace(",", "=2C")
    password = Secret(login.options["password"])
    return config | {"sasl_plain_username": user, "sasl_plain_password": password}


def user(kafka: Mapping[str, str]) -> str | None:
    """Return the user of the login, if the settings name one."""
    try:
        login = check(complete(kafka))
    except InvalidOption:
        return None
    if kafka["sasl.mechanism"] == "OAUTHBEARER":
        from coopconsume.kafka.security import oauth

        return oauth.user(login)
    return str(login.options["username"])
