"""Access to the live page: a token in the first URL, then a cookie, and a second secret to write.

Prometheus sends the token itself, and gets the metrics alone for it.

The cookie is HttpOnly and SameSite=Strict, so other sites can neither read nor send it. A request
that changes something also needs the secret of the page in a header, which other sites cannot read.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from starlette.datastructures import QueryParams
    from starlette.types import ASGIApp, Receive, Scope, Send

#: The header with the page's secret.
CSRF_HEADER: Final = "X-Coopconsume-CSRF"
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
# The page redirects to itself. The next request then comes from this site, also if another site
# linked to the URL with the token, so browsers send the SameSite cookie with it.
_WELCOME: Final = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=./">'
    '<link rel="icon" href="data:,"><title>coopconsume</title><a href="./">Continue</a>'
)
_REFUSED: Final = (
    "Access needs the token: open the whole URL that 'coopconsume ui' printed, or that "
    "query.ui_url returns. A restart of the page changes it."
)
_WRITES: Final = "the request lacks the secret of the page: reload the page"


class Access:
    """The secrets of one live page."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.csrf = secrets.token_urlsafe(24)
        self._session = secrets.token_urlsafe(32)

    def welcome(self, port: int) -> Response:
        """Returns the answer to a request with the right token: it sets the cookie."""
        response = HTMLResponse(_WELCOME)
        response.set_cookie(_cookie(port), self._session, httponly=True, samesite="strict")
        return response

    def has_token(self, query: QueryParams) -> bool:
        """Returns whether a query has the right token."""
        return _equal(query.get("token", ""), self.token)

    def has_session(self, request: Request, port: int) -> bool:
        """Returns whether a request has the right cookie."""
        return _equal(request.cookies.get(_cookie(port), ""), self._session)

    def may_scrape(self, request: Request) -> bool:
        """Returns whether a request has the token as Prometheus sends it."""
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and _equal(given, self.token)

    def may_write(self, request: Request) -> bool:
        """Returns whether a request has the page's secret."""
        return _equal(request.headers.get(CSRF_HEADER, ""), self.csrf)


class Guard:
    """An ASGI application that lets requests with access through to another one.

    Args:
        app: The other one.
        access: The secrets.
        port: The port of the page, which is part of the name of the cookie: cookies do not
            distinguish ports.
    """

    def __init__(self, app: ASGIApp, access: Access, port: int) -> None:
        self._app = app
        self._access = access
        self._port = port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                given = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *given]
            await send(message)

        refused = self._refusal(Request(scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        is_entry = request.url.path == "/" and request.method == "GET"
        if is_entry and self._access.has_token(request.query_params):
            return self._access.welcome(self._port)
        if request.url.path == "/metrics" and self._access.may_scrape(request):
            return None
        if not self._access.has_session(request, self._port):
            if request.url.path.startswith("/api/"):
                return JSONResponse({"error": _REFUSED}, 401)
            return PlainTextResponse(_REFUSED, 401)
        if request.method not in ("GET", "HEAD") and not self._access.may_write(request):
            return JSONResponse({"error": _WRITES}, 403)
        return None


def _cookie(port: int) -> str:
    return f"coopconsume-{port}"


def _equal(given: str, right: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), right.encode())
