"""Draws the figures of the docs from a real load: `python -m tests.observability.figures`.

The panels of the dashboards, each from its own queries to a Prometheus that has scraped the load,
and the waterfall of a cold start from its exported spans: by matplotlib, not by Grafana. The status
pages as chromium shows them. `… figures trace pages` draws some of them.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import matplotlib

matplotlib.use("svg")

import matplotlib.pyplot as plt

from deploy.observability.boards import BOARDS
from deploy.observability.panels import Board
from tests.observability.browser import chromium, opened
from tests.observability.collector import Span
from tests.observability.live import Live
from tests.observability.load import Load, real_load, trace_of
from tests.observability.programs import ROOT

FOLDER: Final = ROOT / "docs" / "figures"
IMAGES: Final = ROOT / "docs" / "images"
STARTS: Final = 4  # cold, then warm ones
MOST_LINES: Final = 8
COLOURS: Final = {
    "fusec-client": "tab:blue",
    "fusec-cache": "tab:green",
    "fusec-farm": "tab:orange",
    "fusec-worker": "tab:red",
}
SHORTEST_MS: Final = 2.0  # spans below it would be hairlines


def main(parts: list[str]) -> None:
    plt.rcParams.update({"font.size": 7, "svg.fonttype": "none", "svg.hashsalt": "fusec"})
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, real_load(Path(folder), STARTS) as load:
        for name, draw in PARTS.items():
            if name in parts or not parts:
                draw(load)


def _draw_boards(load: Load) -> None:
    for board in BOARDS:
        _draw_board(board, load.prometheus, load)


def _draw_board(board: Board, live: Live, load: Load) -> None:
    panels = board.panels()
    rows = -(-len(panels) // 3)
    figure, places = plt.subplots(rows, 3, figsize=(12, 2.1 * rows), squeeze=False)
    for place in places.flat[len(panels) :]:
        place.axis("off")
    for place, panel in zip(places.flat, panels):
        drawn = 0
        for expression, legend in panel.queries:
            for line in live.query_range(expression, load.began, load.ended):
                points = [(float(at) - load.began, float(value)) for at, value in line["values"]]
                points = [(at, value) for at, value in points if value == value]
                if not points or drawn >= MOST_LINES or not any(value for _, value in points):
                    continue
                text = legend
                for name, value in line["metric"].items():
                    text = text.replace(f"{{{{{name}}}}}", value)
                place.plot(*zip(*points), linewidth=0.9, label=text)
                drawn += 1
        if drawn:
            place.legend(loc="best", fontsize=5, frameon=False)
        else:
            told = f"nothing: {panel.empty}" if panel.empty else "0 all the time"
            place.text(0.5, 0.5, told, ha="center", va="center", transform=place.transAxes)
        place.set_title(f"{panel.title} [{panel.unit}]", fontsize=7, loc="left")
        place.set_ylim(bottom=0)
        place.set_xlim(0, load.ended - load.began)
    figure.suptitle(
        f"{board.title} – the panels' queries over a cold and {STARTS - 1} warm starts, seconds on"
        " the x axis (drawn by matplotlib)",
        fontsize=8,
    )
    _save(figure, board.name)


def _draw_trace(load: Load) -> None:
    """The cold start's spans from its `start` on, indented by depth."""
    spans = load.collector.spans(trace_of(0))
    below: dict[str, list[Span]] = {}
    for span in spans:
        below.setdefault(span.parent_id, []).append(span)
    (root,) = (span for span in spans if span.name == "start")
    rows: list[tuple[int, Span]] = []

    def walk(span: Span, depth: int) -> None:
        for child in sorted(below.get(span.span_id, []), key=lambda each: each.start_ns):
            if child.seconds * 1e3 >= SHORTEST_MS:
                rows.append((depth, child))
                walk(child, depth + 1)

    walk(root, 0)
    zero = min(span.start_ns for _, span in rows)
    figure, place = plt.subplots(figsize=(12, 0.14 * len(rows) + 1))
    for number, (depth, span) in enumerate(rows):
        begin, width = (span.start_ns - zero) / 1e6, span.seconds * 1e3
        place.barh(number, width, left=begin, height=0.8, color=COLOURS[span.service])
        about = (span.attributes.get("path") or span.attributes.get("label") or "")[:30]
        name = f"{'  ' * depth}{span.name} {about}".rstrip()
        place.text(begin, number, f" {name}  {width:.0f} ms", va="center", fontsize=5)
    place.invert_yaxis()
    place.set_yticks([])
    place.set_xlabel("milliseconds since the first graph")
    for service, colour in COLOURS.items():
        place.barh(0, 0, color=colour, label=service)
    place.legend(loc="lower left", fontsize=6)
    place.set_title(
        "A cold start of a small model: one trace over four kinds of processes"
        f" (spans of {SHORTEST_MS:g} ms and more)",
        fontsize=8,
    )
    _save(figure, "trace")


def _draw_pages(load: Load) -> None:
    """Narrow, so that a reader of the docs can read them."""
    with chromium() as browser:
        for name, path in (("cache", "/"), ("farm", "/farm")):
            how = {"viewport": {"width": 900, "height": 300}}
            with opened(browser, load.farm.url + path + "?still", **how) as seen:
                seen.page.screenshot(path=IMAGES / f"status-{name}.png", full_page=True)


def _save(figure: plt.Figure, name: str) -> None:
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None})
    plt.close(figure)


PARTS: Final = {"boards": _draw_boards, "trace": _draw_trace, "pages": _draw_pages}

if __name__ == "__main__":
    main(sys.argv[1:])
