"""The web application of the live page: its files and its JSON."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from coopconsume.admin.exporter import GroupCollector
from coopconsume.errors import CoopConsumeError, GroupNotFound, OptionError
from coopconsume.errors.base import sentence_of
from coopconsume.runtime.decided_by import DecidedBy
from coopconsume.runtime.decisions import Action
from coopconsume.ui.content import Sort, group_content, partition_content
from coopconsume.ui.letters import MOST, Id, decide, letter_content, letters_content, letters_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from coopconsume.admin.client import Admin
    from coopconsume.admin.overview.watch import Watches

log = logging.getLogger(__name__)

STATIC: Final = Path(__file__).parent / "static"
_MOST_ROWS = 200
_OFF = "decisions are off: start the page with --allow-decisions"
_NO_CLIENT = "prometheus_client is not installed: pip install 'coopconsume[prometheus]'"
_CHANGED = "the letters have changed meanwhile: look at the new counts and confirm again"


class _Refused(Exception):
    """A request that is answered by an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class PageApp:
    """Answers the requests of the page.

    Args:
        admin: The groups.
        watches: Their watches.
        csrf: The secret of requests that change something.
        group: The group to show first.
        interval: Seconds between two updates.
        allow_decisions: Whether dead letters can be replayed and discarded.
    """

    def __init__(
        self,
        admin: Admin,
        watches: Watches,
        *,
        csrf: str,
        group: str | None,
        interval: float,
        allow_decisions: bool,
    ) -> None:
        self._admin = admin
        self._watches = watches
        self._session = {
            "csrf": csrf, "group": group, "interval": interval, "allowDecisions": allow_decisions,
        }  # fmt: skip
        self._allow_decisions = allow_decisions

    def starlette(self) -> Starlette:
        """Returns the ASGI application."""
        app = Starlette(
            routes=[
                Route("/", lambda _: FileResponse(STATIC / "index.html")),
                Mount("/static", StaticFiles(directory=STATIC)),
                Route("/metrics", self._metrics),
                Route("/api/session", lambda _: JSONResponse(self._session)),
                Route("/api/groups", self._answer(self._groups)),
                Route("/api/groups/{group:path}/status", self._answer(self._status)),
                Route("/api/groups/{group:path}/partition", self._answer(self._partition)),
                Route("/api/groups/{group:path}/letters", self._answer(self._letters)),
                Route("/api/groups/{group:path}/letters-of", self._answer(self._letters_of)),
                Route("/api/groups/{group:path}/letter", self._answer(self._letter)),
                Route("/api/groups/{group:path}/decide", self._decide, methods=["POST"]),
            ],
        )
        app.add_middleware(GZipMiddleware)
        return app

    def _answer(self, call: Callable[[Request], Any]) -> Callable[[Request], Response]:
        """Returns an endpoint that runs in a thread, as calls of Kafka and Delta block."""

        def endpoint(request: Request) -> Response:
            return self._answered(lambda: call(request))

        return endpoint

    def _answered(self, call: Callable[[], Any]) -> Response:
        try:
            return JSONResponse(call())
        except _Refused as error:
            return JSONResponse({"error": str(error)}, error.status)
        except GroupNotFound as error:
            return JSONResponse({"error": str(error)}, 404)
        except OptionError as error:
            return JSONResponse({"error": str(error)}, 400)
        except CoopConsumeError as error:
            return JSONResponse({"error": str(error)}, 503)
        except Exception as error:
            log.exception("the live page could not answer")
            return JSONResponse({"error": sentence_of(error)}, 500)

    def _metrics(self, _: Request) -> Response:
        """Returns the metrics of the groups that are watched, for Prometheus."""
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        except ModuleNotFoundError:
            return JSONResponse({"error": _NO_CLIENT}, 501)
        registry = CollectorRegistry()
        registry.register(GroupCollector(self._watches))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    def _groups(self, _: Request) -> Any:
        return {"groups": [one.to_dict() for one in self._admin.groups()]}

    def _view(self, request: Request) -> Any:
        watch = self._watches.of(request.path_params["group"])
        if watch is None:
            raise _Refused(429, "too many groups are being looked at: try again in some minutes")
        return watch.view()

    def _status(self, request: Request) -> Any:
        query = request.query_params
        sort = query.get("sort", "name")
        return group_content(
            self._view(request),
            sort=sort if sort in get_args(Sort) else "name",
            find=query.get("find", ""),
            start=_number(query.get("start"), 0),
            limit=min(_number(query.get("limit"), 50), _MOST_ROWS),
        )

    def _partition(self, request: Request) -> Any:
        query, view = request.query_params, self._view(request)
        wanted = query.get("topic", ""), _number(query.get("partition"), -1)
        for status in view.reading.statuses if view.reading else ():
            if (status.topic, status.partition) == wanted:
                first, end = query.get("first"), query.get("end")
                return partition_content(
                    status,
                    None if first is None else _number(first, 0),
                    None if end is None else _number(end, 0),
                    is_worked_on=view.reading is None or view.reading.overview.is_worked_on,
                )
        raise _Refused(404, f"the group has no partition {wanted[0]}-{wanted[1]}")

    def _letters(self, request: Request) -> Any:
        query = request.query_params
        return letters_content(
            self._admin.dead_letters(request.path_params["group"]),
            reason=query.get("reason", ""),
            key=query.get("key", ""),
            settled=query.get("settled") == "true",
            start=_number(query.get("start"), 0),
            limit=_number(query.get("limit"), 50),
        )

    def _letters_of(self, request: Request) -> Any:
        query = request.query_params
        return letters_of(
            self._admin.dead_letters(request.path_params["group"]), query.get("topic", ""),
            _number(query.get("partition"), -1), _number(query.get("offset"), -1),
        )  # fmt: skip

    def _letter(self, request: Request) -> Any:
        query = request.query_params
        numbers = _number(query.get("partition"), -1), _number(query.get("offset"), -1)
        wanted = query.get("topic", ""), *numbers, query.get("commit", "")
        found = letter_content(self._admin.dead_letters(request.path_params["group"]), wanted)
        if found is None:
            raise _Refused(404, "there is no such dead letter any more")
        return found

    async def _decide(self, request: Request) -> Response:
        if not self._allow_decisions:
            return JSONResponse({"error": _OFF}, 403)
        try:
            body = await request.json()
            action, wanted, confirmed, said = _decision(body)
        except (ValueError, KeyError, TypeError):
            usage = f"give an action, replay or discard, and 1 to {MOST} letters"
            return JSONResponse({"error": usage}, 400)

        def carry_out() -> Any:
            by = DecidedBy.now(**said)
            letters = self._admin.dead_letters(request.path_params["group"])
            found = decide(letters, action, wanted, confirmed, by)
            if confirmed is not None and not found["executed"]:
                raise _Refused(409, _CHANGED)
            return found

        return await run_in_threadpool(self._answered, carry_out)


def _decision(body: Any) -> tuple[Action, list[Id], dict[str, int] | None, dict[str, Any]]:
    """Returns a decision, its letters, the counts that were confirmed, and who decides and why."""
    action, confirmed = body["action"], body.get("confirmed")
    wanted = [
        (_text(one["topic"]), int(one["partition"]), int(one["offset"]), _text(one["commit"]))
        for one in body["letters"]
    ]
    if action not in get_args(Action) or not 0 < len(wanted) <= MOST:
        raise ValueError
    # A client may send null for what nobody has written.
    by, reason = (_text(body.get(name) or "") for name in ("by", "reason"))
    said = {"name": by or None, "reason": reason}
    return action, wanted, None if confirmed is None else dict(confirmed), said


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(text: str | None, default: int) -> int:
    """Returns a number that is not negative; the default for other texts."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 20 else default  # noqa: PLR2004 - more is no offset
