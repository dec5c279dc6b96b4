"""A slot's connection to the fetch server of its host; starts a server that is missing.

Everything happens in a thread of its own. A server holds a lock file as long as it lives; the slot
that gets the lock starts one.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import queue
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coopconsume.backoff import Backoff
from coopconsume.worker.channel.client import authenticated, received
from coopconsume.worker.channel.wire import (
    FRAME_BYTES,
    ChannelSession,
    Frame,
    Identity,
    ProtocolError,
    Splitter,
)
from coopconsume.worker.realtime.fetch_messages import FetchAnswer, decode_answer, encode_fetch
from coopconsume.worker.user_folder import user_folder

if TYPE_CHECKING:
    import pyarrow as pa

    from coopconsume.worker.realtime.fetch_messages import Fetch
    from coopconsume.worker.realtime.fetch_server import ServerSpec

log = logging.getLogger(__name__)

#: Seconds beyond `Fetch.max_wait` after which a server that does not answer counts as lost.
SILENCE: Final = 3.0
#: Seconds in which a started server must answer; otherwise a slot of its process kills it.
STARTS_WITHIN: Final = 30.0
#: Seconds between two attempts to connect. Each failure of a server doubles them, up to a limit.
_RETRY: Final = 0.1
_LONGEST_RETRY: Final = 30.0
#: Characters of a Unix socket's path, at most.
_PATH_LIMIT: Final = 100
#: The last server of each path that this process has started. It keeps their standard input open
#: until it ends; links of later runs end one that is silent: a stopped server keeps its lock.
_started: dict[str, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True)
class Connected:
    """The slot is connected to a server, which waits for a fetch."""


@dataclass(frozen=True)
class Lost:
    """The slot has no connection to a server, for a reason."""

    why: str


def with_path(spec: ServerSpec) -> ServerSpec:
    """Returns a spec with the path of its socket on this host, in a folder of this user alone.

    Servers of the same path have the same spec: real-time runs that follow each other share one.

    Raises:
        OSError: The folder cannot be used, or its path is too long for a socket.
    """
    name = hashlib.sha256(spec.encode()).hexdigest()[:24]
    path = user_folder() / f"{name}.sock"
    if len(str(path)) > _PATH_LIMIT:
        raise OSError(f"the path {path} is too long for a socket: set TMPDIR to a shorter one")
    return replace(spec, path=str(path))


def server_secret(secret: bytes) -> bytes:
    """Returns the secret of the fetch server and its slots, derived from the job's secret."""
    return hmac.new(secret, b"coopconsume fetch server", "sha256").digest()


class HostLink:
    """Connects, sends fetches and queues the answers, until it is closed.

    Args:
        spec: Of the server.
        identity: Of the slot.
        schema: Of the rows of answers.

    Attributes:
        events: `Connected`, an `FetchAnswer` to each fetch, and `Lost`.
    """

    def __init__(self, spec: ServerSpec, identity: Identity, schema: pa.Schema) -> None:
        self.events: queue.SimpleQueue[Connected | FetchAnswer | Lost] = queue.SimpleQueue()
        self._spec = spec
        self._identity = identity
        self._schema = schema
        self._fetches: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()
        self._server: subprocess.Popen[bytes] | None = None
        #: When the server of this process was started or found, or has answered this slot last.
        self._heard_at = 0.0
        self._sock: socket.socket | None = None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coopconsume-fetch", daemon=True)
        self._thread.start()

    def send(self, fetch: Fetch) -> None:
        """Sends a fetch; the last one must have been answered."""
        self._fetches.put(fetch)

    def close(self) -> None:
        """Closes the connection. A server that this slot has started goes on for other slots."""
        self._is_closed.set()
        self._fetches.put(None)
        sock = self._sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(1.0)

    def _run(self) -> None:
        backoff = Backoff(2 * _RETRY, _LONGEST_RETRY)
        while not self._is_closed.is_set():
            try:
                self._start_if_none()
                sock, session = self._connect()
            except (OSError, ProtocolError) as error:
                if self._has_failed():
                    backoff.failed(time.monotonic())
                log.debug("no connection to the fetch server: %s", error)
                self._is_closed.wait(backoff.pause or _RETRY)
                continue
            self._sock = sock
            try:
                self.events.put(Connected())
                self._talk(sock, session)
                backoff.succeeded()
            except (OSError, ProtocolError) as error:
                self._forget(error)
            finally:
                self._sock = None
                sock.close()

    def _has_failed(self) -> bool:
        """Whether the server that this process has started has ended; kills a silent one."""
        server = self._server
        if server is None:
            return False
        if time.monotonic() - self._heard_at > STARTS_WITHIN:
            server.kill()
            server.wait()
        if server.poll() is None:
            return False
        self._server = None
        self.events.put(Lost(f"the fetch server has ended with {server.returncode}"))
        return True

    def _forget(self, error: Exception) -> None:
        """Reports that the server is lost; kills a silent one that this process has started."""
        if self._is_closed.is_set():
            return
        while not self._fetches.empty():
            self._fetches.get()
        log.warning("the fetch server of this host is lost, slots go on without it: %s", error)
        if isinstance(error, TimeoutError) and self._server is not None:
            self._server.kill()
            self._server.wait()
        self.events.put(Lost(str(error)))

    def _start_if_none(self) -> None:
        """Starts a server if none runs.

        Raises:
            OSError: It cannot be started.
        """
        path = Path(self._spec.path).with_suffix(".lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                known = _started.get(self._spec.path)
                if self._server is None and known is not None and known.poll() is None:
                    self._server, self._heard_at = known, time.monotonic()
                return
            # The server inherits the lock, and its end gives it back.
            self._server, self._heard_at = _start(self._spec, lock), time.monotonic()
        finally:
            os.close(lock)

    def _connect(self) -> tuple[socket.socket, ChannelSession]:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(SILENCE)
            sock.connect(self._spec.path)
            until = time.monotonic() + SILENCE
            session = authenticated(sock, self._spec.secret, self._identity, until)
        except BaseException:
            sock.close()
            raise
        return sock, session

    def _talk(self, sock: socket.socket, session: ChannelSession) -> None:
        splitter = Splitter(FRAME_BYTES)
        while (fetch := self._fetches.get()) is not None:
            sock.settimeout(fetch.max_wait + SILENCE)
            sock.sendall(session.sent.seal(Frame.FETCH, encode_fetch(fetch)))
            while (answer := next(splitter.frames(), None)) is None:
                splitter.feed(received(sock, 1 << 18))
            kind, payload = answer[0], session.received.open(*answer)
            if kind != Frame.FETCHED:
                raise ProtocolError(f"the fetch server sent a frame of type {kind}")
            self._heard_at = time.monotonic()
            self.events.put(decode_answer(payload, self._schema))


def _start(spec: ServerSpec, lock: int) -> subprocess.Popen[bytes]:
    """Starts a server that inherits a lock."""
    for path in [path for path, one in _started.items() if one.poll() is not None]:
        del _started[path]
    paths = [path for path in sys.path if path]
    server = subprocess.Popen(
        [sys.executable, "-m", "coopconsume.worker.realtime.fetch_server"],
        stdin=subprocess.PIPE,
        pass_fds=(lock,),
        cwd="/",
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    _started[spec.path] = server
    log.info("started the fetch server of this host, process %d", server.pid)
    assert server.stdin is not None
    data = spec.encode()
    server.stdin.write(len(data).to_bytes(4, "big") + data)
    server.stdin.flush()
    return server
