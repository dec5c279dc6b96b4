"""The browser of the tests of the live page: Chromium, headless, with its driver.

``python -m tests.browser`` installs it where that can be done, as in CI.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tests.apt import Programs

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

PROGRAMS = Programs(
    "tests of the live page",
    (("chromium", "chromium-browser", "google-chrome"), ("chromedriver",)),
    ("chromium", "chromium-driver"),
)


def open_browser() -> Chrome:
    """A browser that records what its console says."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS.path()
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
        "--window-size=1280,1600", "--no-proxy-server", "--no-first-run",
        # Nothing of its own is to be fetched.
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(PROGRAMS.path(1)))


if __name__ == "__main__":
    sys.exit(PROGRAMS.install())
