"""`LivePage`: starts and ends the web server of the live page."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from coopconsume.admin.client import Admin
from coopconsume.closing import Closing
from coopconsume.errors import PageUnavailable
from coopconsume.options import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_LOCAL: Final = "127.0.0.1"
_ANY: Final = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound
_START: Final = 30.0
_END: Final = 5.0


class LivePage(Closing):
    """Serves the live page until it is closed, in threads of its own.

    Args:
        options: As for `Admin`.
        group: The group to show first; its rates are known from the start of the page.
        host: The address to listen at. At any other than localhost, the page and its token can be
            read on the network: it is served without TLS.
        port: The port; 0 for any free one.
        interval: Seconds between two readings of a group, from 0.1.
        allow_decisions: Whether people may replay and discard dead letters.
        spark: The session, needed for a commit table in a catalog.

    Raises:
        OptionError: An option is unknown, missing or wrong.
        PageUnavailable: A package is missing, or the port cannot be used.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        group: str | None = None,
        *,
        host: str = _LOCAL,
        port: int = 0,
        interval: float = 2.0,
        allow_decisions: bool = False,
        spark: SparkSession | None = None,
    ) -> None:
        try:
            import uvicorn

            from coopconsume.ui.app import PageApp
            from coopconsume.ui.authentication import Access, Guard
            from coopconsume.ui.watch import Watches
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn"):
                raise
            raise PageUnavailable(
                f"{error.name} is not installed: pip install 'coopconsume[ui]'"
            ) from None
        # A mistake in an option is refused here, and not shown on the page.
        Options.parse(
            options if group is None else {**options, "kafka.group.id": group},
            group=group is not None,
        )
        self._socket = _listen(host, port)
        access = Access()
        bound = self._socket.getsockname()[1]
        shown = socket.gethostname() if host in _ANY else f"[{host}]" if ":" in host else host
        #: The address of the page, with the token that opens it.
        self.url = f"http://{shown}:{bound}/?token={access.token}"
        admin = Admin(options, spark=spark)
        self._watches = Watches(admin.reader, interval, group)
        app = PageApp(
            admin, self._watches, csrf=access.csrf, group=group, interval=interval,
            allow_decisions=allow_decisions,
        )  # fmt: skip
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(app.starlette(), access, bound), log_config=None, access_log=False,
                lifespan="off", ws="none", timeout_graceful_shutdown=1, server_header=False,
            )
        )  # fmt: skip
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="coopconsume-ui", daemon=True
        )
        self._thread.start()
        until = time.monotonic() + _START
        while not self._server.started and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not self._server.started:
            self.close()
            raise PageUnavailable("its web server did not start")

    @property
    def is_open(self) -> bool:
        """Whether the page is served."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Ends the page. Calling it again has no effect."""
        self._watches.close()
        self._server.should_exit = True
        self._thread.join(_END)
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket.

    Raises:
        PageUnavailable: The address or the port cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port of connections that have just ended can be used; one that is listened at cannot.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(128)
    except OSError as error:
        found.close()
        why = (error.strerror or str(error)).lower()
        raise PageUnavailable(
            f"it cannot listen at {host}, port {port}: {why}; give another --port (0 for any), or "
            "another --host"
        ) from None
    return found
