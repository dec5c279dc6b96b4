"""A network between slots and their driver: it delays, swallows or loses what it carries."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Carries bytes between slots and the port of their driver.

    Args:
        port: Where the driver listens.

    Attributes:
        port: Where slots connect.
        passes: Bytes are held back while it is not set.
    """

    def __init__(self, port: int) -> None:
        self._driver = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.passes = threading.Event()
        self.passes.set()
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        #: Pairs whose bytes are lost.
        self.loses: list[tuple[socket.socket, socket.socket]] = []
        #: Pairs that have one side open still, as where a network is lost without a word.
        self._half_open: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            try:
                far.connect(("127.0.0.1", self._driver))
            except OSError:  # The driver is gone.
                near.close()
                continue
            self.pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=self._pump, args=(far, near, (near, far)), daemon=True)
        back.start()
        self._pump(near, far, (near, far))
        back.join()
        near.close()
        far.close()
        self.pairs.remove((near, far))
        self._half_open.discard((near, far))

    def _pump(
        self, one: socket.socket, other: socket.socket, pair: tuple[socket.socket, socket.socket]
    ) -> None:
        with suppress(OSError):
            while data := one.recv(1 << 16):
                self.passes.wait()
                if pair not in self.loses:
                    other.sendall(data)
        if pair not in self._half_open:
            with suppress(OSError):  # It is closed already.
                other.shutdown(socket.SHUT_WR)

    def cut(self, *, near: bool = True, far: bool = True) -> None:
        """Closes what slots, or the driver, have open."""
        for pair in [*self.pairs]:
            if not (near and far):
                self._half_open.add(pair)
            for sock, wanted in zip(pair, (near, far), strict=True):
                if wanted:
                    with suppress(OSError):  # It is closed already.
                        sock.shutdown(socket.SHUT_RDWR)
                    sock.close()

    def close(self) -> None:
        """Ends it."""
        self.listener.close()
        self.passes.set()
        self.cut()
