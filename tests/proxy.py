"""A network between slots and their driver that delays, swallows or loses what it carries."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """A network between slot and driver that can hold bytes back, or lose the connection."""

    def __init__(self, port):
        self._port = port
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.passes = threading.Event()
        self.passes.set()
        self.pairs = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            far = socket.socket()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            far.connect(("127.0.0.1", self._port))
            self.pairs.append((near, far))
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one, other):
        try:
            while data := one.recv(1 << 16):
                self.passes.wait()
                other.sendall(data)
        except OSError:
            pass

    def cut(self, *, near=True, far=True):
        """Close what slots, or the driver, have open."""
        for pair in self.pairs:
            for sock, wanted in zip(pair, (near, far), strict=True):
                if wanted:
                    with suppress(OSError):  # It is closed already.
                        sock.shutdown(socket.SHUT_RDWR)
                    sock.close()

    def close(self):
        """End it."""
        self.listener.close()
        self.passes.set()
        for pair in self.pairs:
            for sock in pair:
                sock.close()
