"""OAUTHBEARER: tokens for kafka-python by the settings that Java's client has."""

from __future__ import annotations

import base64
import json
import threading
import time
import traceback
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError

from coopconsume.errors import AuthenticationFailed, BrokerUnreachable
from coopconsume.kafka.security import access, oauth
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
ENDPOINT = "kafka.sasl.oauthbearer.token.endpoint.url"
BASE = {
    "kafka.bootstrap.servers": "127.0.0.1:1",
    "kafka.group.id": "g",
    "commitTable": "somewhere",
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "OAUTHBEARER",
}


def options(login: str, **more: str) -> Options:
    """Options that log in by a token."""
    return Options.parse(BASE | {"kafka.sasl.jaas.config": f"{MODULE} required {login};"} | more)


def provider(login: str, **more: str) -> oauth.TokenProvider:
    """What gives kafka-python its tokens."""
    return options(login, **more).client_config()["sasl_oauth_token_provider"]


def claims(token: str) -> dict[str, Any]:
    """What a token says."""
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def jwt(life: float) -> str:
    """A token with a life, as endpoints give them."""
    body = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + life}).encode()).decode()
    return f"e30.{body.rstrip('=')}.c2ln"


class Endpoint:
    """A token endpoint on the loopback address.

    Attributes:
        answers: Status, headers and body of each answer; the last one is repeated.
        asked: Headers and form of each request.
    """

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.asked: list[tuple[dict[str, str], dict[str, list[str]]]] = []
        self.url = ""


@contextmanager
def serving() -> Iterator[Endpoint]:
    """Run a token endpoint."""
    endpoint = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            endpoint.asked.append((dict(self.headers), parse_qs(form)))
            answers = endpoint.answers
            status, headers, body = answers.pop(0) if len(answers) > 1 else answers[0]
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        endpoint.url = f"http://127.0.0.1:{server.server_port}/token"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield endpoint
        finally:
            server.shutdown()
            thread.join()


def test_unsigned_tokens_say_what_was_given():
    """As Kafka's own client makes them for development: claims, extensions, life."""
    made = provider(
        'unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="7" '
        'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginLifetimeSeconds="60" '
        'unsecuredLoginExtension_tenant="x"'
    )
    token = made.token()
    header, _, signature = token.split(".")
    assert json.loads(base64.urlsafe_b64decode(header + "==")) == {"alg": "none"}
    assert signature == ""
    said = claims(token)
    assert said["sub"] == "alice"
    assert said["n"] == 7
    assert said["scope"] == ["a", "b"]
    assert said["exp"] - said["iat"] == pytest.approx(60)
    assert said["iat"] == pytest.approx(time.time(), abs=300)
    assert made.extensions() == {"tenant": "x"}
    assert token not in repr(vars(made))


def test_a_token_is_asked_for_by_client_credentials():
    """One request of RFC 6749, in Java's manner; Spark gets the handler that does the same."""
    with serving() as endpoint:
        endpoint.answers = [(200, {}, {"access_token": jwt(86_400)})]
        given = options(
            'clientId="c d" clientSecret="hush/" scope="s t" extension_tenant="x"',
            **{ENDPOINT: endpoint.url},
        )
        made = given.client_config()["sasl_oauth_token_provider"]
        assert claims(made.token())["exp"] > time.time()
        ((headers, form),) = endpoint.asked
    assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"c d:hush/"
    assert form == {"grant_type": ["client_credentials"], "scope": ["s t"]}
    assert made.extensions() == {"tenant": "x"}
    source = given.source_options()
    assert source["kafka.sasl.login.callback.handler.class"].endswith(f".{oauth.HANDLER}")


def test_names_are_encoded_where_that_is_asked_for():
    """``sasl.oauthbearer.header.urlencode``, which some endpoints want."""
    with serving() as endpoint:
        endpoint.answers = [(200, {}, {"access_token": jwt(86_400)})]
        more = {ENDPOINT: endpoint.url, "kafka.sasl.oauthbearer.header.urlencode": "true"}
        provider('clientId="c d" clientSecret="hush/"', **more).token()
    login = endpoint.asked[0][0]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(login) == b"c+d:hush%2F"


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        ({"access_token": jwt(86_400)}, 1),
        ({"access_token": jwt(-1)}, 2),
        ({"access_token": "opaque", "expires_in": 86_400}, 1),
        ({"access_token": "opaque", "expires_in": 0}, 2),
        ({"access_token": "opaque"}, 1),
    ],
)
def test_a_token_is_used_while_it_is_fresh(answer, asked):
    """By its own claim or the endpoint's word; then the endpoint is asked again."""
    with serving() as endpoint:
        endpoint.answers = [(200, {}, answer)]
        made = provider('clientId="c" clientSecret="hush"', **{ENDPOINT: endpoint.url})
        assert made.token() == made.token() == answer["access_token"]
    assert len(endpoint.asked) == asked


@pytest.mark.parametrize(
    ("status", "headers", "body", "error", "message"),
    [
        (401, {}, {"error": "invalid_client"}, SaslAuthenticationFailedError,
         r"answered 401 \(invalid_client\)$"),
        (400, {}, {"error": "who is hush?"}, SaslAuthenticationFailedError, "answered 400$"),
        (503, {}, b"hush", KafkaConnectionError, "answered 503$"),
        (302, {"Location": "/elsewhere"}, b"", KafkaConnectionError, "answered 302$"),
        (200, {}, b"hush", KafkaConnectionError, "no token from .*: JSONDecodeError"),
        (200, {}, {"token": "hush"}, KafkaConnectionError, "no token from .*: KeyError"),
        (200, {}, ["hush"], KafkaConnectionError, "no token from .*: TypeError"),
    ],
)  # fmt: skip
def test_an_endpoint_that_gives_no_token_is_reported(status, headers, body, error, message):
    """A refusal is final, anything else may pass; neither shows what was sent or answered."""
    with serving() as endpoint:
        endpoint.answers = [(status, headers, body)]
        url = endpoint.url + "?key=hush"
        made = provider('clientId="c" clientSecret="hush"', **{ENDPOINT: url})
        with pytest.raises(error, match=message) as caught:
            made.token()
    assert endpoint.url in str(caught.value)
    assert "hush" not in "".join(traceback.format_exception(caught.value)).replace(url, "")
    assert len(endpoint.asked) == 1, "no other address gets to see the secret"


def test_a_token_may_stand_in_a_file(tmp_path):
    """``file:`` as in Java; a file that is missing is named."""
    file = tmp_path / "to ken"
    file.write_text(f"{jwt(86_400)}\n")
    made = provider("", **{ENDPOINT: file.as_uri()})
    assert made.token() == file.read_text().strip()
    file.unlink()
    with pytest.raises(SaslAuthenticationFailedError, match="to ken: No such file"):
        provider("", **{ENDPOINT: file.as_uri()}).token()


def test_a_refused_client_is_a_failed_login():
    """Found before any broker is asked; the error names the settings to look at."""
    with serving() as endpoint:
        endpoint.answers = [(401, {}, {"error": "invalid_client"})]
        given = options('clientId="c" clientSecret="hush"', **{ENDPOINT: endpoint.url})
        with pytest.raises(AuthenticationFailed, match="invalid_client") as caught:
            access.look(given.client_config(), given.kafka)
        assert caught.value.user == "c"
        assert caught.value.mechanism == "OAUTHBEARER"
        assert "kafka.sasl.jaas.config" in str(caught.value)
        endpoint.answers = [(503, {}, {})]
        with pytest.raises(BrokerUnreachable, match="answered 503"):
            access.look(given.client_config(), given.kafka)
