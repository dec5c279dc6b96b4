"""OAUTHBEARER for kafka-python, configured by the settings of Kafka's Java client.

Two methods are supported: client credentials at a token endpoint (or a token in a file), and
unsigned tokens for tests.
"""

from __future__ import annotations

import base64
import json
import re
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kafka.errors import KafkaConnectionError, SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from coopconsume.errors import InvalidOption
from coopconsume.kafka.security import tls
from coopconsume.kafka.security.secrets import Secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coopconsume.kafka.security.jaas import Login

HANDLER: Final = "OAuthBearerLoginCallbackHandler"
_HANDLER: Final = "sasl.login.callback.handler.class"
_ENDPOINT: Final = "sasl.oauthbearer.token.endpoint.url"
_LOGIN: Final = "kafka.sasl.jaas.config"
_UNSECURED: Final = "unsecuredLogin"
#: Fraction of a token's lifetime after which it is refreshed; Kafka's ``refresh.window.factor``.
_FRESH: Final = 0.8
_TIMEOUT_MS: Final = "10000"
_UNKNOWN_LIFE: Final = 60.0
_CLIENT_ERRORS: Final = range(400, 500)


def check(kafka: Mapping[str, str], login: Login) -> None:
    """Check the settings of tokens.

    Raises:
        InvalidOption: Python and Java would get tokens differently, or a setting is missing.
    """
    handler = kafka.get(_HANDLER, "")
    if not handler:
        if not any(name.startswith(_UNSECURED) for name in login.options):
            remedy = f"give the token endpoint, and clientId and clientSecret in {_LOGIN}"
            raise InvalidOption(f"kafka.{_ENDPOINT}", "missing", remedy)
        return
    if handler.rpartition(".")[2] != HANDLER:
        remedy = (
            f"Python cannot run it: use {HANDLER} with kafka.{_ENDPOINT}, or another mechanism, "
            "such as SCRAM-SHA-512"
        )
        raise InvalidOption(f"kafka.{_HANDLER}", repr(handler), remedy)
    url = urllib.parse.urlsplit(kafka.get(_ENDPOINT, ""))
    if url.scheme not in ("https", "http", "file"):
        remedy = "give an address that begins with https:, http: or file:"
        raise InvalidOption(
            f"kafka.{_ENDPOINT}", f"{url.scheme}: …" if url.scheme else "missing", remedy
        )
    if url.scheme == "file":
        return
    if "@" in url.netloc:
        remedy = f"give clientId and clientSecret in {_LOGIN} instead"
        raise InvalidOption(f"kafka.{_ENDPOINT}", "has a user in it", remedy)
    for name in ("clientId", "clientSecret"):
        if not login.options.get(name):
            remedy = f'write … {login.simple_name} required clientId="…" clientSecret="…";'
            raise InvalidOption(_LOGIN, f"no {name} in it", remedy)
    tls.check(login.options, f"{_LOGIN}: ")


def user(login: Login) -> str | None:
    """Return the user of the login, if the settings name one."""
    options = login.options
    name = options.get("clientId") or options.get(f"{_UNSECURED}StringClaim_sub")
    return None if name is None else str(name)


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """Provides tokens for kafka-python and refreshes them before they expire.

    Args:
        fetch: Returns a token and its lifetime in seconds.
        extensions: SASL extensions to send with it.

    Attributes:
        expires_at: Expiry of the last token, in seconds since the epoch.
    """

    def __init__(
        self, fetch: Callable[[], tuple[str, float]], extensions: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._fetch = fetch
        self._extensions = dict(extensions)
        self.expires_at = 0.0
        self._token: str | None = None
        self._fresh_until = 0.0
        self._lock = threading.Lock()

    def token(self) -> str:
        """Return a valid token.

        Raises:
            kafka.errors.SaslAuthenticationFailedError: The token endpoint refuses the client.
            kafka.errors.KafkaConnectionError: It does not answer, or its answer is not valid.
        """
        with self._lock:
            if self._token is None or time.monotonic() >= self._fresh_until:
                token, life = self._fetch()
                self._token = Secret(token)
                self._fresh_until = time.monotonic() + life * _FRESH
                self.expires_at = time.time() + life
            return self._token

    def extensions(self) -> dict[str, str]:
        """Return the SASL extensions by name."""
        return dict(self._extensions)


def provider(kafka: Mapping[str, str], login: Login) -> TokenProvider:
    """Return the token provider for the settings.

    Raises:
        InvalidOption: As of `check`; or a file of ``ssl.*`` cannot be used.
    """
    check(kafka, login)
    options = login.options
    if not kafka.get(_HANDLER):
        return TokenProvider(
            lambda: _unsecured(options), _extensions(options, f"{_UNSECURED}Extension_")
        )
    fetch = _from_file if kafka[_ENDPOINT].startswith("file:") else _from_endpoint(kafka, login)
    return TokenProvider(lambda: fetch(kafka[_ENDPOINT]), _extensions(options, "extension_"))


def _extensions(options: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {n.removeprefix(prefix): v for n, v in options.items() if n.startswith(prefix)}


def _from_endpoint(kafka: Mapping[str, str], login: Login) -> Callable[[str], tuple[str, float]]:
    """Return a function that requests a token by client credentials (RFC 6749, 4.4)."""
    options = login.options
    client, secret = options["clientId"], options["clientSecret"]
    if kafka.get("sasl.oauthbearer.header.urlencode", "").lower() == "true":
        client, secret = urllib.parse.quote_plus(client), urllib.parse.quote_plus(secret)
    basic = Secret(base64.b64encode(f"{client}:{secret!s}".encode()).decode())
    form = {"grant_type": "client_credentials"}
    if options.get("scope"):
        form["scope"] = options["scope"]
    waits = ("sasl.login.connect.timeout.ms", "sasl.login.read.timeout.ms")
    timeout = max(int(kafka.get(name) or _TIMEOUT_MS) for name in waits) / 1000
    context = tls.context(options, f"{_LOGIN}: ")
    opener = urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), _NoRedirects()
    )

    def fetch(url: str) -> tuple[str, float]:
        request = urllib.request.Request(  # noqa: S310 - its scheme was checked
            url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {basic!s}", "Accept": "application/json"},
        )
        try:
            with opener.open(request, timeout=timeout) as answer:
                said = json.load(answer)
            return _with_life(str(said["access_token"]), said.get("expires_in"))
        except urllib.error.HTTPError as error:
            text = f"{_shown(url)} answered {error.code}{_error_code(error)}"
            if error.code in _CLIENT_ERRORS:
                raise SaslAuthenticationFailedError(text) from None
            raise KafkaConnectionError(text) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            raise KafkaConnectionError(f"no token from {_shown(url)}: {reason}") from None

    return fetch


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the client's secret must go to the configured endpoint only."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None, which makes the redirect an error."""


def _from_file(url: str) -> tuple[str, float]:
    path = urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
    try:
        return _with_life(Path(path).read_text(encoding="utf-8").strip(), None)
    except (OSError, UnicodeDecodeError) as error:
        text = f"no token in the file {path}: {getattr(error, 'strerror', 'no text')}"
        raise SaslAuthenticationFailedError(text) from None


def _unsecured(options: Mapping[str, str]) -> tuple[str, float]:
    """A token that nobody signs (RFC 7515, A.5), as Kafka's client makes it for development."""
    life = float(options.get(f"{_UNSECURED}LifetimeSeconds", "3600"))
    now = time.time()
    claims: dict[str, Any] = {"iat": now, "exp": now + life}
    for name, value in options.items():
        kind, _, claim = name.removeprefix(_UNSECURED).partition("Claim_")
        if not claim:
            continue
        if kind == "String":
            claims[claim] = str(value)
        elif kind == "Number":
            claims[claim] = float(value)
        elif kind == "List":  # its first sign is what stands between the others
            claims[claim] = value[1:].split(value[0]) if value else []
    parts = [json.dumps(part, separators=(",", ":")) for part in ({"alg": "none"}, claims)]
    return ".".join([*map(_base64url, parts), ""]), life


def _base64url(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _with_life(token: str, expires_in: object) -> tuple[str, float]:
    """A token with the seconds it lives, by its own claim, else by the endpoint's word."""
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return token, float(claims["exp"]) - time.time()
    except (IndexError, ValueError, KeyError, TypeError):
        return token, float(expires_in) if isinstance(expires_in, int | float) else _UNKNOWN_LIFE


def _error_code(error: urllib.error.HTTPError) -> str:
    """The error code of RFC 6749, which is a word; anything else may hold what was sent."""
    try:
        code = str(json.load(error)["error"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return f" ({code})" if re.fullmatch(r"[a-z_]{1,40}", code) else ""


def _shown(url: str) -> str:
    """An address without its query, as keys may be in it."""
    return url.partition("?")[0]
