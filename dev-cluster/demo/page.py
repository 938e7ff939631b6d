"""The page of a running cluster in a real browser: opened, clicked, and kept as pictures.

`python page.py ADDRESS FOLDER APP`: APP is a name that must stand on the page as text. Prints a line for all that is
wrong; exit status 0: nothing, 1: something, 3: there is no browser here.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "dev-cluster"))

from devcluster.browser import NoBrowser, chromium, complaints, prefer, resize, shoot  # noqa: E402

WIDTHS = (400, 1440, 4000)
PATIENCE_S = 60.0
NO_BROWSER = 3


def until(what: Callable[[], Any]) -> bool:
    """Whether it came about in time."""
    end_s = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.1)
    return True


def names(browser: Any) -> list[str]:
    """The apps of the queue, as the page shows them."""
    return [a.get_attribute("textContent") for a in browser.find_elements("css selector", "a.row")]


def pictures(browser: Any, address: str, folder: Path, name: str) -> list[str]:
    """Keeps a page at each width; what is wrong with it."""
    wrong = []
    for wide in WIDTHS:
        resize(browser, wide, 900)
        browser.get(address)
        until(lambda: browser.find_elements("css selector", "canvas"))
        if browser.execute_script("return document.documentElement.scrollWidth") > wide:
            wrong.append(f"{name}: wider than {wide} px")
        shoot(browser, folder / f"{name}-{wide}.png", wide)
    return wrong


def visit(browser: Any, address: str, folder: Path, app: str) -> list[str]:
    """Opens the cluster's page and by a click that of its first app; what is wrong with them."""
    resize(browser, 1440, 900)
    browser.get(address)
    wrong = [] if until(lambda: app in names(browser)) else [f"no app {app} as text, but {names(browser)}"]
    if browser.find_elements("css selector", "img"):
        wrong.append("a name became an image")
    wrong += pictures(browser, address, folder, "cluster")
    prefer(browser, "dark")
    shoot(browser, folder / "cluster-dark.png", 1440)
    prefer(browser, "light")
    browser.get(address)
    first = browser.find_elements("css selector", "a.row")
    if not first:
        return [*wrong, "no app to click on"]
    first[0].click()
    if not until(lambda: "/ui/app/" in browser.current_url):
        return [*wrong, "a click on an app does not lead to its page"]
    if "are hidden" in browser.page_source:
        wrong.append("the app's own user does not see its configurations")
    wrong += pictures(browser, browser.current_url, folder, "app")
    return [*wrong, *complaints(browser)]


def main() -> None:
    """See above."""
    address, folder, app = sys.argv[1:]
    try:
        with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as browser:
            wrong = visit(browser, address, Path(folder), app)
    except NoBrowser as e:
        print(e)
        sys.exit(NO_BROWSER)
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
