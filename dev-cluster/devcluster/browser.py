"""Debian's Chromium, headless, where it is installed (chromium, chromium-driver), driven by selenium."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-dev-shm-usage",
    "--no-default-browser-check",
    "--disable-default-apps",
    "--lang=en",
)


class NoBrowser(Exception):
    """There is no browser here; the message says how to get one."""


@contextmanager
def chromium(profile: Path, script: bool = True) -> Iterator[Any]:
    """A browser with an empty profile; raises NoBrowser."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        raise NoBrowser("no browser: apt-get install chromium chromium-driver")
    try:
        selenium = importlib.import_module("selenium.webdriver")
    except ImportError as e:
        raise NoBrowser("no driver for browsers: pip install selenium") from e
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for flag in (*QUIET, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    if not script:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = selenium.ChromeService(executable_path=driver)
    os.environ["no_proxy"] = f"localhost,{os.environ.get('no_proxy', '')}"  # else Selenium asks a proxy for its driver
    found = selenium.Chrome(options=options, service=service)
    try:
        found.set_page_load_timeout(60)
        yield found
    finally:
        found.quit()


def resize(browser: Any, wide: int, high: int) -> None:
    """The page's own size, without the window's frame."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": wide, "height": high, "deviceScaleFactor": 1, "mobile": False}
    )


def shoot(browser: Any, file: Path, wide: int, least_high: int = 600) -> None:
    """A picture of the whole page at that width."""
    resize(browser, wide, least_high)
    high = browser.execute_script("return document.documentElement.scrollHeight")
    resize(browser, wide, max(least_high, high))
    file.parent.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(file))


def prefer(browser: Any, scheme: str) -> None:
    """What the user prefers: `light` or `dark`."""
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def complaints(browser: Any) -> list[str]:
    """What the browser refused or what failed in the script, since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
