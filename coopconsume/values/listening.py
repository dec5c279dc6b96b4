"""Texts about the address at which a web server listens."""

from __future__ import annotations

import socket
from typing import Final

_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def host_of_url(host: str) -> str:
    """Returns the host for a URL of a server that listens at a host."""
    return socket.gethostname() if host in _ANY else f"[{host}]" if ":" in host else host


def why_not(host: str, port: int, error: OSError) -> str:
    """Returns why a server cannot listen at an address, with the remedy."""
    why = (error.strerror or str(error)).lower()
    return (
        f"it cannot listen at {host}, port {port}: {why}; give another --port (0 for any), or "
        "another --host"
    )
