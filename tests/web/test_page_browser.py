"""The page in a real browser: it is read, clicked and typed to; a hostile name stays text; it fits every width."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser import chromium, complaints, prefer, resize, shoot
from tests.web.stage import HOSTILE, Stage, router_of, served

SHOTS = Path(__file__).parents[2] / "build" / "page"
WIDTHS = (400, 800, 1440, 2560, 4000)


@pytest.fixture(scope="module")
def server(stage: Stage) -> Iterator[Any]:
    with served(router_of(stage)) as found:
        yield found


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("profile")) as found:
        yield found


def until(what: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Waits until `what` is true."""
    end_s = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end_s, "it did not come about"
        time.sleep(0.1)
    return found


def find(browser: Any, selector: str) -> Any:
    return browser.find_element("css selector", selector)


def test_a_hostile_name_is_text_and_nothing_is_refused(browser: Any, server: Any) -> None:
    browser.get(server.url)
    until(lambda: browser.find_elements("css selector", "#chart-gpus canvas"))
    assert browser.title == "Cluster · Isonomy"
    assert HOSTILE in [a.get_attribute("textContent") for a in browser.find_elements("css selector", "a.row")]
    assert browser.find_elements("css selector", "img") == []
    assert complaints(browser) == []


def test_an_app_is_opened_by_click_and_by_key(browser: Any, server: Any) -> None:
    browser.get(server.url)
    first = find(browser, "a.row")
    name = first.get_attribute("textContent")
    first.click()
    until(lambda: "/ui/app/" in browser.current_url)
    assert find(browser, "h1").text == name
    body = find(browser, "body")
    body.send_keys("u")
    until(lambda: browser.current_url.endswith("/ui"))
    find(browser, "body").send_keys("jj")
    focused = browser.switch_to.active_element
    assert focused.get_attribute("textContent") == browser.find_elements("css selector", "a.row")[1].get_attribute(
        "textContent"
    )
    focused.send_keys("k")
    browser.switch_to.active_element.send_keys("\n")
    until(lambda: "/ui/app/" in browser.current_url)
    assert complaints(browser) == []


def test_the_queue_is_filtered(browser: Any, server: Any) -> None:
    browser.get(server.url)
    find(browser, "body").send_keys("/")
    browser.switch_to.active_element.send_keys("onerror\n")
    until(lambda: "q=onerror" in browser.current_url)
    assert [a.text for a in browser.find_elements("css selector", "a.row")] == [HOSTILE]
    assert complaints(browser) == []


def test_regions_follow_the_cluster_and_say_when_they_do_not(browser: Any, server: Any, stage: Stage) -> None:
    resize(browser, 1440, 1000)
    browser.get(server.url)
    find(browser, "details summary").click()
    opened = find(browser, "details[open]").get_attribute("id")
    before = find(browser, "[data-live=at]").text
    with server.lock:
        stage.run_until(stage.now + 120)
    until(lambda: find(browser, "[data-live=at]").text != before)
    assert opened in [d.get_attribute("id") for d in browser.find_elements("css selector", "details[open]")]
    assert browser.find_elements("css selector", "#chart-gpus canvas")
    server.down = True
    until(lambda: "Not up to date" in find(browser, "#live").text)
    server.down = False
    until(lambda: find(browser, "#live").text == "", 60.0)
    assert [c for c in complaints(browser) if "503" not in c] == []


def test_it_fits_every_width_and_pictures_are_kept(browser: Any, server: Any, stage: Stage) -> None:
    app_id = max(stage.arbiter.durable.live.values(), key=lambda app: app.revocations).app_id
    for name, url in (("cluster", server.url), ("app", f"{server.url}/app/{app_id}")):
        for wide in WIDTHS:
            resize(browser, wide, 900)
            browser.get(url)
            assert browser.execute_script("return document.documentElement.scrollWidth") <= wide, (name, wide)
            shoot(browser, SHOTS / f"{name}-{wide}.png", wide)
            assert os.path.getsize(SHOTS / f"{name}-{wide}.png") > 20_000
    assert complaints(browser) == []


def test_it_is_dark_if_the_user_prefers_that(browser: Any, server: Any) -> None:
    def ground(scheme: str) -> int:
        prefer(browser, scheme)
        colour = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
        return sum(int(x) for x in colour.strip("rgb()").split(","))

    resize(browser, 1440, 900)
    browser.get(server.url)
    assert ground("light") > 600
    assert ground("dark") < 150
    shoot(browser, SHOTS / "cluster-dark.png", 1440)
    ground("light")


def test_it_is_readable_without_a_script(server: Any, tmp_path: Path) -> None:
    with chromium(tmp_path, script=False) as plain:
        plain.get(server.url)
        assert find(plain, "a.row").is_displayed()
        assert find(plain, "#chart-gpus svg").is_displayed()
        assert plain.find_elements("css selector", "canvas") == []
        find(plain, "a.row").click()
        assert find(plain, "h1").is_displayed()
