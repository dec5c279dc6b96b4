"""`LivePage`: starts and ends the web server of the live page."""

from __future__ import annotations

import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from coopconsume.closing import Closing
from coopconsume.errors import AlreadyClosed, PageUnavailable
from coopconsume.options import Options
from coopconsume.values.listening import host_of_url, why_not

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_LOCAL: Final = "127.0.0.1"
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

    Attributes:
        url: The address of the page, with the token that opens it.

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

            from coopconsume.admin.client import Admin
            from coopconsume.admin.overview.watch import Watches
            from coopconsume.ui.app import PageApp
            from coopconsume.ui.authentication import Access, Guard
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
        self.url = f"http://{host_of_url(host)}:{bound}/?token={access.token}"
        admin = Admin(options, spark=spark)
        self._watches = Watches(admin.reader, interval, () if group is None else (group,))
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


class PageOnDemand(Closing):
    """Starts the live page of a consumer's group when it is first asked for.

    Args:
        given: The options of the consumer, as its user gave them.
        options: The same, checked.
        spark: The session.
        closing: Is set once the consumer begins to close: then no page starts any more.
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        options: Options,
        spark: SparkSession | None,
        closing: threading.Event,
    ) -> None:
        self._given = {name: value for name, value in given.items() if name.lower() != "deadletter"}
        self._options = options
        self._spark = spark
        self._closing = closing
        self._starting = threading.Lock()
        self._page: LivePage | None = None

    def get(self, dead_letter: str | None) -> LivePage:
        """Returns the page; the first call starts it.

        Args:
            dead_letter: Where the dead letters of the group are; None for nowhere.

        Raises:
            AlreadyClosed: The consumer is closed.
            PageUnavailable: A package is missing, or the port is in use.
        """
        with self._starting:
            if self._closing.is_set():
                raise AlreadyClosed("the consumer")
            if self._page is None:
                letters = {} if dead_letter is None else {"deadLetter": dead_letter}
                self._page = LivePage(
                    {**self._given, **letters}, self._options.group_id,
                    port=self._options.ui_port, spark=self._spark,
                )  # fmt: skip
            return self._page

    def close(self) -> None:
        """Ends the page, if it was started."""
        with self._starting:
            if self._page is not None:
                self._page.close()


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
        raise PageUnavailable(why_not(host, port, error)) from None
    return found
