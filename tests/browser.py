"""The browser of the tests of the live page: Chromium, headless, with its driver.

``python -m tests.browser`` installs it where that can be done, as in CI: with apt-get, as root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

INSTALL = "apt-get install chromium chromium-driver"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_DRIVER = "chromedriver"


def missing() -> str:
    """What is not there, and how to install it; empty if all is there."""
    if not any(map(shutil.which, _BROWSERS)):
        return f"no browser was found ({', '.join(_BROWSERS)}): {INSTALL}"
    return "" if shutil.which(_DRIVER) else f"no {_DRIVER} was found: {INSTALL}"


def open_browser() -> Chrome:
    """A browser that records what its console says."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    assert not missing(), missing()
    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, _BROWSERS)))
    for argument in (
        "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu",
        "--window-size=1280,1600", "--no-proxy-server", "--no-first-run",
        # Nothing of its own is to be fetched.
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which(_DRIVER)))


def main() -> int:
    """Install the browser if it is missing; 1 if it is missing in the end."""
    if missing() and os.geteuid() == 0 and shutil.which("apt-get"):
        sys.stdout.write(f"==> the browser of the tests: {INSTALL}\n")
        sys.stdout.flush()
        settings = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        install = ["install", "-y", "-qq", "--no-install-recommends", "chromium", "chromium-driver"]
        for command in (["update", "-qq"], install):
            subprocess.run(
                ["apt-get", *command], env=settings, stdout=subprocess.DEVNULL, check=False
            )
    if missing():
        sys.stderr.write(f"THE TESTS OF THE LIVE PAGE CANNOT RUN: {missing()}\n")
    return bool(missing())


if __name__ == "__main__":
    sys.exit(main())
