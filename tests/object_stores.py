"""Object stores of tests, each a process of its own: moto for S3, Azurite for Azure.

They are processes, as `deltalake` lets no other thread run while it asks for a table.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import re
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from urllib.error import HTTPError
from urllib.parse import urlencode

from tests import azurite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

KINDS: Final = ("s3", "azure")

#: The account of the emulator, with the key that all of its installations have.
_ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_API: Final = "2023-11-03"
_SECONDS: Final = 300  # for a server to start
_REQUEST: Final = re.compile(r"(?:^|\")(GET|HEAD|PUT|POST|DELETE) (/\S*)", re.MULTILINE)

# moto looks for an object and writes it in two steps: of two conditional puts at once both succeed.
# Each request is noted on standard output, as Azurite does.
_MOTO: Final = """
import logging
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
logging.getLogger("werkzeug").setLevel(logging.ERROR)
app = DomainDispatcherApplication(create_backend_app)
def noted(environ, respond):
    print(environ["REQUEST_METHOD"], environ["PATH_INFO"], environ["QUERY_STRING"], flush=True)
    return app(environ, respond)
server = make_server("127.0.0.1", 0, noted, threaded=False)
print(f"listens on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""

# In front of a store: the first answer to a PUT of a path with a text is lost. With a file of ticks
# a request is answered once 20 ms have passed and its client has ticked since. One for which the
# client does not tick is answered late, and noted.
_PROXY: Final = """
import mmap, struct, sys, time
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
port, ticks, patience, lost = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]
if ticks:
    with open(ticks, "rb") as file:
        last = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def carry(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if ticks:
            self.wait()
        store = HTTPConnection("127.0.0.1", port)
        store.request(self.command, self.path, body, dict(self.headers))
        answer = store.getresponse()
        data = answer.read()
        store.close()
        if self.command == "PUT" and lost and lost[0] in self.path:
            print("lost", lost.pop(), flush=True)
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "content-length", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.getheader("Content-Length", str(len(data))))
        self.end_headers()
        self.wfile.write(data)
    def wait(self):
        least = time.monotonic() + 0.02
        while struct.unpack("d", last[:8])[0] < least:
            if time.monotonic() > least + patience:
                print("held", self.command, self.path, flush=True)
                return
            time.sleep(0.002)
    do_DELETE = do_GET = do_HEAD = do_POST = do_PUT = carry
    def log_message(self, *args):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
print(f"listens on http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
"""


@dataclass
class Bucket:
    """A bucket of a store, or a container of an account.

    Attributes:
        kind: One of `KINDS`.
        server: The process of the store.
        address: Where it listens.
    """

    kind: str
    server: subprocess.Popen[bytes]
    address: str
    _log: Path
    _marks: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def options(self) -> dict[str, str]:
        """Its storage options."""
        return self.options_at(self.address)

    def uri(self, path: str, bucket: str = "bucket") -> str:
        """The URI of a table."""
        return f"{'s3' if self.kind == 's3' else 'az'}://{bucket}/{path}"

    def options_at(self, address: str) -> dict[str, str]:
        """Storage options for the store behind a proxy; all may also be in the environment."""
        if self.kind == "s3":
            return {
                "AWS_ENDPOINT_URL": address, "AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "a",
                "AWS_SECRET_ACCESS_KEY": "b", "AWS_ALLOW_HTTP": "true",
            }  # fmt: skip
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
            "AZURE_STORAGE_ENDPOINT": f"{address}/{_ACCOUNT}", "AZURE_ALLOW_HTTP": "true",
        }  # fmt: skip

    @property
    def signed_access(self) -> str:
        """A token of Azure (SAS) for all that is in the account, for a day."""
        until = (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        terms = {
            "sp": "rwdlac", "ss": "b", "srt": "sco", "st": "", "se": until, "sip": "",
            "spr": "https,http", "sv": _API, "ses": "",
        }  # fmt: skip
        signature = _signature("".join(f"{one}\n" for one in [_ACCOUNT, *terms.values()]))
        return urlencode(
            {name: value for name, value in terms.items() if value} | {"sig": signature}
        )

    def requests_of(self, call: Callable[[], object]) -> list[str]:
        """The methods of the requests that a call makes, in order."""
        self._mark()
        before = len(self._noted())
        call()
        self._mark()
        return [method for method, _ in self._noted()[before:-1]]

    def _mark(self) -> None:
        """Make a request and wait until it is noted: those before it are noted, too."""
        path = f"/mark-{next(self._marks)}/x"
        with suppress(HTTPError):
            urllib.request.urlopen(f"{self.address}{path}", timeout=60).close()
        deadline = time.monotonic() + _SECONDS
        while not self._noted()[-1:] or self._noted()[-1][1] != path:
            assert time.monotonic() < deadline, self._log.read_text()[-2000:]
            time.sleep(0.005)

    def _noted(self) -> list[tuple[str, str]]:
        return _REQUEST.findall(self._log.read_text())


@contextmanager
def serve(kind: str, folder: Path) -> Iterator[Bucket]:
    """Run a store with a bucket.

    Args:
        kind: One of `KINDS`.
        folder: An empty folder.
    """
    log = folder / "log"
    if kind == "s3":
        command = [sys.executable, "-c", _MOTO]
    else:
        command = [*azurite.command(), "--blobHost", "127.0.0.1", "--blobPort", "0"]
        command += ["--inMemoryPersistence", "--disableTelemetry"]
    with log.open("wb") as output, _running(command, output, folder) as server:
        address = _address(server, log)
        headers = {} if kind == "s3" else _signed()
        path = "/bucket" if kind == "s3" else f"/{_ACCOUNT}/bucket?restype=container"
        request = urllib.request.Request(f"{address}{path}", method="PUT", headers=headers)
        urllib.request.urlopen(request, timeout=60).close()
        yield Bucket(kind, server, address, log)


@contextmanager
def behind_proxy(
    bucket: Bucket, log: Path, *, ticks: str = "", patience: float = 0.0, loses: str = ""
) -> Iterator[Mapping[str, str]]:
    """Run a proxy in front of a store; the storage options for it.

    It is a process, so that what is measured in this one is this one alone.

    Args:
        bucket: The store.
        log: A new file for what the proxy notes.
        ticks: A file in which a thread of the client keeps writing its monotonic time. A request is
            answered once that thread has run since it came.
        patience: After so many seconds without a tick a request is answered nevertheless. The log
            has a line with `held` for it.
        loses: The first answer to a PUT of a path with this text is lost. The log has a line for
            it.
    """
    port = bucket.address.rpartition(":")[2]
    command = [sys.executable, "-c", _PROXY, port, ticks, str(patience)]
    command += [loses] if loses else []
    with log.open("wb") as output, _running(command, output, log.parent) as proxy:
        yield bucket.options_at(_address(proxy, log))


@contextmanager
def _running(command: list[str], output: object, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder)
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def _address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until a server has said where it listens."""
    deadline = time.monotonic() + _SECONDS
    while (found := re.search(r"listens on (http://\S+:\d+)\s", log.read_text())) is None:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
    return found[1]


def _signed() -> dict[str, str]:
    """Headers of the request that creates the container, as Azure wants it signed."""
    date = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    headers = {"x-ms-date": date, "x-ms-version": _API}
    named = "".join(f"{name}:{value}\n" for name, value in headers.items())
    text = f"PUT{12 * chr(10)}{named}/{_ACCOUNT}/{_ACCOUNT}/bucket\nrestype:container"
    return headers | {"Authorization": f"SharedKey {_ACCOUNT}:{_signature(text)}"}


def _signature(text: str) -> str:
    digest = hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()
