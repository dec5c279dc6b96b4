"""A schema registry on loopback that speaks the public REST interface of Confluent's."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class SchemaRegistry:
    """Keeps schemas in memory; as a context manager it serves them at `url`.

    Attributes:
        authorization: The header of requests that are served; None: all are.
        status: The status of all answers; None: that of the interface.
        page: The content of all answers, as of a proxy before the registry; None: that of the
            interface.
        requests: Method and path of each request.
    """

    def __init__(self) -> None:
        self.authorization: str | None = None
        self.status: int | None = None
        self.page: bytes | None = None
        self.requests: list[tuple[str, str]] = []
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        """Returns status and content of the answer to a request."""
        self.requests.append((method, path))
        if self.status is not None:
            return self.status, {"error_code": self.status * 100, "message": "not now"}
        match method, path.partition("?")[0].strip("/").split("/"):
            case "GET", ["schemas", "ids", number] if int(number) <= len(self._schemas):
                return 200, self._schemas[int(number) - 1]
            case "GET", ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case "POST", ["subjects", subject, "versions"]:
                return 200, {"id": self._registered(subject, body)}
            case "GET", ["subjects", subject, "versions", "latest"] if subject in self._subjects:
                versions = self._subjects[subject]
                known = {"subject": subject, "id": versions[-1], "version": len(versions)}
                return 200, known | self._schemas[versions[-1] - 1]
        return 404, {"error_code": 40401, "message": "Subject not found"}

    def _registered(self, subject: str, body: dict[str, Any]) -> int:
        schema: dict[str, Any] = {
            name: body[name] for name in ("schema", "schemaType", "references") if name in body
        }
        if schema not in self._schemas:
            self._schemas.append(schema)
        number = self._schemas.index(schema) + 1
        self._subjects.setdefault(subject, []).append(number)
        return number

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._do({})

            def do_POST(self) -> None:
                self._do(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _do(self, body: dict[str, Any]) -> None:
                status, content = 401, {"error_code": 40101, "message": "Unauthorized"}
                if registry.authorization in (None, self.headers["Authorization"]):
                    status, content = registry.answer(self.command, self.path, body)
                data = json.dumps(content).encode() if registry.page is None else registry.page
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler
