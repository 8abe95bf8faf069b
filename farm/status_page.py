"""The status page for a browser: a document of tables that loads itself anew, without scripts."""

from __future__ import annotations

from html import escape
from typing import Final

from fusec.remote.farm_status import FarmStatus
from fusec.remote.farm_view import Listed, summary, tables

REFRESH_S: Final = 5

_STYLE: Final = (
    "body{font:15px/1.4 sans-serif;margin:2em;max-width:75em}"
    "table{border-collapse:collapse;margin:.3em 0 1.5em}"
    "th,td{padding:.15em 1.2em .15em 0;text-align:left;vertical-align:top}"
    "th{border-bottom:1px solid}.n{text-align:right}h2{font-size:1.1em;margin-bottom:0}"
)


def render(status: FarmStatus) -> str:
    """The whole document."""
    lines = [escape(line) for line in summary(status)]
    if status.draining:
        lines.insert(0, "<strong>draining: nothing new is begun</strong>")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>fusec farm</title>'
        f'<meta http-equiv="refresh" content="{REFRESH_S}"><style>{_STYLE}</style></head><body>'
        f"<h1>fusec farm</h1><p>{'<br>'.join(lines)}</p>"
        + "".join(_table(listed) for listed in tables(status))
        + f"<p>Loaded anew every {REFRESH_S} seconds; <code>fusec farm status --watch</code> shows "
        "the same in a terminal.</p></body></html>"
    )


def _table(listed: Listed) -> str:
    title = f"<h2>{escape(listed.title)}</h2>"
    if not listed.rows:
        return f"{title}<p>none</p>"
    classes = [' class="n"' if name in listed.numbers else "" for name in listed.columns]
    head = "".join(
        f'<th scope="col"{kind}>{escape(name)}</th>'
        for name, kind in zip(listed.columns, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{escape(text)}</td>" for text, kind in zip(row, classes, strict=True))
        + "</tr>"
        for row in listed.rows
    )
    return f"{title}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
