"""The status pages as people see them: in a real browser, after a real load and before any."""

import pytest

from cache.auth import Grant, hash_token
from cache.config import ServiceConfig
from cache.embedded import serve_app_in_thread, serve_in_thread
from cache.memory import MemoryStore
from farm.config import FarmConfig
from farm.memory_pool import MemoryPool
from farm.open_farm import open_app
from tests.observability.browser import PHONE, chromium, opened
from tests.observability.live import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("observed"),
]
LOOKS = {
    "laptop": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": PHONE, "is_mobile": True},
    "dark phone": {"viewport": PHONE, "is_mobile": True, "color_scheme": "dark"},
}


@pytest.fixture(scope="module")
def browser():
    with chromium() as made:
        yield made


@pytest.fixture(scope="module")
def unused():
    """A service and a farm that nobody has used, with tokens; the service's address."""
    gateway = FarmConfig(port=0, token="gateway", pool="memory")
    pool = MemoryPool(lambda task: b"", 2)
    with (
        serve_app_in_thread(open_app(gateway, pool, MemoryStore())) as farm,
        serve_in_thread(
            ServiceConfig(
                port=0,
                farm_url=farm.url,
                farm_token="gateway",
                tokens=(Grant("admin", hash_token("root")),),
            )
        ) as service,
    ):
        yield service.url
    pool.close()


def number(text):
    return float(text.replace(",", "").split()[0].rstrip("%"))


@pytest.mark.parametrize("look", LOOKS)
def test_the_services_page_after_a_load(browser, load, look):
    with opened(browser, load.farm.url + "/?still", **LOOKS[look]) as seen:
        assert seen.page.get_by_role("heading", level=1).text_content() == "fusec cache"
        graphs = seen.row("Reads since the start", "graph")
        assert number(graphs["not there"]) >= 2, "the cold start's"
        assert number(graphs["from memory"]) + number(graphs["from the store"]) > 0
        assert 0 < number(seen.figure("reads answered")) < 100
        assert seen.figure("errors") == "0"
        assert seen.row("Set-up", "compile farm")["value"] == load.farm.gateway_url
        assert number(seen.row("Set-up", "store: entries")["value"]) > 0
        assert not seen.overflows()
        assert seen.faults() == []


@pytest.mark.parametrize(
    ("through", "look"), [*(("service", look) for look in LOOKS), ("gateway", "laptop")]
)
def test_the_farms_page_after_a_load(browser, load, through, look):
    url = {"service": load.farm.url + "/farm", "gateway": load.farm.gateway_url + "/"}[through]
    with opened(browser, url + "?still", **LOOKS[look]) as seen:
        assert seen.page.get_by_role("heading", level=1).text_content() == "fusec farm"
        rows = seen.page.get_by_role("table", name="recent compiles").get_by_role("row")
        assert rows.count() == 3, "the columns' names, a forward and its backward"
        recent = seen.row("recent compiles", "")
        assert recent["outcome"] == "done"
        assert number(recent["took"]) > 0
        assert number(recent["kernels"]) > 0
        assert number(seen.row("workers", "cpu")["workers"]) > 0
        assert seen.figure("jobs in work") == "0"
        assert not seen.overflows()
        assert seen.faults() == []


def test_a_page_keeps_itself_up_to_date_until_it_is_told_to_stand_still(browser, load):
    with opened(browser, load.farm.url + "/") as seen:
        before = seen.figure("bytes sent")
        seen.page.wait_for_event("load", timeout=120_000)
        assert seen.figure("bytes sent") != before
        seen.page.get_by_role("link", name="stop that").click()
        seen.page.wait_for_url("**/?still")
        assert seen.page.locator("meta[http-equiv]").count() == 0
        assert seen.page.get_by_role("link", name="keep it up to date").count() == 1
        assert seen.wrong == []


@pytest.mark.parametrize("look", ["laptop", "dark phone"])
def test_pages_that_nobody_has_used_teach(browser, unused, look):
    with opened(browser, unused + "/?still", **LOOKS[look]) as seen:
        text = seen.page.locator("main").inner_text()
        assert "Nothing has been read yet" in text
        assert f"export FUSEC_REMOTE={unused}" in text
        assert "FUSEC_TOKEN_FILE" in text
        assert seen.figure("reads answered") == "–"
        assert not seen.overflows()
        assert seen.faults() == []
    known = {"username": "anybody", "password": "root"}
    with opened(browser, unused + "/farm?still", http_credentials=known, **LOOKS[look]) as seen:
        text = seen.page.locator("main").inner_text()
        assert "No graph has come yet" in text
        assert "fusec prewarm --demo mlp" in text
        assert "None at present: jobs that wait" in text
        assert not seen.overflows()
        assert [fault for fault in seen.faults() if "401" not in fault] == []


def test_a_script_in_a_page_would_not_run(browser, load):
    """The headers are what the browser goes by: what got into a page by a mistake does nothing."""
    with opened(browser, load.farm.url + "/?still") as seen:
        seen.page.evaluate(
            "document.body.append(Object.assign(document.createElement('script'),"
            " {textContent: 'document.title = 1'}),"
            " Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))"
        )
        wait_until(lambda: len(seen.wrong) >= 2, f"nothing was refused: {seen.wrong}")
        assert seen.page.title() == "fusec cache"
        assert all("Content Security Policy" in text for text in seen.wrong[:2])
