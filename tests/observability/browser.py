"""Pages in a real browser: Debian's chromium, driven by playwright."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from tests.observability.programs import program

LAPTOP = {"width": 1100, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, without a window."""
    with sync_playwright() as driver:
        # No sandbox: it refuses one to root, and shows nothing here but our own pages.
        made = driver.chromium.launch(
            executable_path=program("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        try:
            yield made
        finally:
            made.close()


@dataclass
class Seen:
    """An open page, and what went wrong while it was loaded: what its console said, requests that
    failed or went elsewhere."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    def faults(self) -> list[str]:
        """What went wrong, and what axe-core finds that keeps people from reading the page."""
        found = Axe().run(self.page).response["violations"]
        return self.wrong + [
            f"{each['id']}: {node['html'][:200]}" for each in found for node in each["nodes"]
        ]

    def row(self, table: str, first: str) -> dict[str, str]:
        """A row of the table of this name, by its first cell: texts by the names of the columns."""
        names = self.page.get_by_role("table", name=table, exact=True)
        row = names.get_by_role("row").filter(has=self.page.get_by_role("rowheader", name=first))
        cells = row.first.locator("th, td")
        texts = zip(cells.evaluate_all("all => all.map(cell => cell.dataset.name)"),
                    cells.all_text_contents())  # fmt: skip
        return dict(texts)

    def figure(self, name: str) -> str:
        """One of the numbers at the top."""
        return str(self.page.locator(f"dt:text-is('{name}') + dd").text_content())

    def overflows(self) -> bool:
        """Whether one has to scroll sideways."""
        script = "document.scrollingElement.scrollWidth > window.innerWidth"
        return bool(self.page.evaluate(script))


@contextmanager
def opened(browser: Browser, url: str, **how: Any) -> Iterator[Seen]:
    """A page, loaded. how: of the browser's context (viewport, color_scheme, http_credentials)."""
    context = browser.new_context(**{"viewport": LAPTOP, **how})
    try:
        seen = Seen(context.new_page(), url)
        origin = "/".join(url.split("/")[:3])

        def answered(response: Any) -> None:
            if response.status >= 400 and response.status != 401:  # the browser asks for a password
                seen.wrong.append(f"{response.status} {response.url}")

        def requested(request: Any) -> None:
            if not request.url.startswith((origin, "data:")):
                seen.wrong.append(f"another host: {request.url}")

        seen.page.on("console", lambda told: seen.wrong.append(f"{told.type}: {told.text}"))
        seen.page.on("pageerror", lambda error: seen.wrong.append(str(error)))
        seen.page.on("requestfailed", lambda request: seen.wrong.append(f"failed: {request.url}"))
        seen.page.on("response", answered)
        seen.page.on("request", requested)
        seen.page.goto(url, wait_until="load")
        yield seen
    finally:
        context.close()
