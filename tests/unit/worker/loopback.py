"""A service on loopback that is slow, refuses, resets connections or goes away, as it is set."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress

from tests.unit.worker.slot_harness import PATIENCE

#: Closes a connection by a reset.
_RESETS = struct.pack("ii", 1, 0)


class Service:
    """An HTTP server in a thread; it counts its requests and those at once.

    Attributes:
        port: Its port, the same after `go_away` and `come_back`.
        way: How it answers: with a status, by a ``reset``, or not at all (``slow``).
        headers: Of its answers.
        requests: How many came.
        most: How many were at work at once, at most.
        connections: How many came.
        lost: Requests whose client has closed the connection before an answer.
        released: Set once requests that are ``held`` are answered.
    """

    def __init__(self):
        self.way, self.headers = 200, {}
        self.requests = self.now = self.most = self.connections = self.lost = self.port = 0
        self.released = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = None
        self._open = set()
        self.come_back()

    @property
    def url(self):
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def come_back(self):
        """Listens, on the port of before."""
        self._on_loop(self._listen())

    def go_away(self):
        """Closes its port and all connections."""
        self._on_loop(self._close())

    def end(self):
        """Ends its thread."""
        self.released.set()
        self.go_away()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def _on_loop(self, work):
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    async def _listen(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self):
        self._server.close()
        for writer in list(self._open):
            writer.transport.abort()
        while self._open:  # noqa: ASYNC110
            await asyncio.sleep(0.001)

    async def _serve(self, reader, writer):
        self.connections += 1
        self._open.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await reader.readuntil(b"\r\n\r\n"):
                    await self._answer(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, reader, writer):
        self.requests += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            if self.way == "reset":
                sock = writer.get_extra_info("socket")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESETS)
                raise ConnectionResetError
            if self.way == "slow":
                await reader.read(1)  # Returns once the client has closed the connection.
                self.lost += 1
                raise ConnectionResetError
            while self.way == "held" and not self.released.is_set():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        finally:
            self.now -= 1
        status = 200 if self.way == "held" else self.way
        lines = [f"HTTP/1.1 {status} it", "Content-Length: 0"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        await writer.drain()
