"""Pages that a person reads in a browser: one document, one style sheet, no script, no other host.

What a page may do is said in its headers, so that a name or a message that found a way into the
text could do nothing there. Without room for them beside each other the cells of a table's row
stand below its first one, each beside the name of its column.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from cache.asgi import Request, Response

REFRESH_S: Final = 5

_STYLE: Final = """
:root{color-scheme:light dark;--text:#1c2024;--soft:#5a626b;--page:#fff;--line:#d5d9de;--box:#f4f5f7
;--link:#0b57b0;--bad:#a4161a}
@media(prefers-color-scheme:dark){:root{--text:#e6e8ea;--soft:#a3abb5;--page:#14171a;--line:#363c43
;--box:#1e2327;--link:#7ab7ff;--bad:#ff9a94}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--text);background:var(--page);margin:0 auto;
padding:1.5em 1.25em 3em;max-width:76em}
a{color:var(--link)}
h1{font-size:1.5em;margin:0}
h2{font-size:1.1em;margin:2em 0 .4em}
p{margin:.4em 0}
.soft{color:var(--soft)}
.bad{color:var(--bad);font-weight:600}
code{font-family:ui-monospace,monospace;font-size:.9em}
pre{background:var(--box);padding:.8em 1em;border-radius:6px;white-space:pre-wrap;
overflow-wrap:anywhere;margin:.6em 0}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9em,1fr));gap:.7em;margin:1.2em 0}
dl div{background:var(--box);border-radius:6px;padding:.5em .9em}
dt{color:var(--soft);font-size:.85em}
dd{margin:0;font-size:1.25em;overflow-wrap:anywhere}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3em 1.2em .3em 0;overflow-wrap:anywhere}
thead th{color:var(--soft);font-size:.85em;font-weight:400}
tr{border-bottom:1px solid var(--line)}
.n{text-align:right;font-variant-numeric:tabular-nums}
footer{margin-top:3em;border-top:1px solid var(--line);padding-top:.8em;color:var(--soft)}
@media(max-width:52em){
table,tbody,tr{display:block}
thead{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
tr{padding:.5em 0}
th,td,.n{display:flex;justify-content:space-between;gap:1.5em;text-align:right;padding:.1em 0}
th{text-align:left}
td::before{content:attr(data-name);color:var(--soft);text-align:left;flex:none}
td:empty{display:none}
}
""".replace("\n", "")
_ICON: Final = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'>"
    "<path fill='#3584e4' d='M2 2h12v4H6v2h6v3H6v3H2z'/></svg>"
)
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)

HEADERS: Final = (
    ("content-security-policy", _POLICY),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
)
"""What a browser is told of every page; whoever passes a page on passes these on too."""


def document(request: Request, title: str, body: str, links: Sequence[tuple[str, str]]) -> Response:
    """The page of a title and a body of HTML, which loads itself anew every REFRESH_S seconds.

    Not with ``?still`` in its address: to read it, or to hear it read, in peace. links: addresses
    and names that stand at its end.
    """
    still = "still" in request.query.split("&")
    refresh = "" if still else f'<meta http-equiv="refresh" content="{REFRESH_S}">'
    told = "This page stands still" if still else f"Loaded anew every {REFRESH_S} seconds"
    switch = (request.path, "keep it up to date") if still else ("?still", "stop that")
    icon = base64.b64encode(_ICON.encode()).decode()
    text = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<title>{escape(title)}</title><link rel="icon" href="data:image/svg+xml;base64,{icon}">'
        f"{refresh}<style>{_STYLE}</style></head><body><main><h1>{escape(title)}</h1>{body}</main>"
        f"<footer><p>{told}: {_links([switch])}</p><p>{_links(links)}</p></footer></body></html>"
    )
    return Response(200, text.encode(), "text/html; charset=utf-8", HEADERS)


def figures(items: Iterable[tuple[str, object]]) -> str:
    """The numbers that are looked at first, each with its name."""
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in items
    )
    return f"<dl>{cells}</dl>"


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    numbers: Iterable[str] = (),
) -> str:
    """A table with its title; the first column names the row, `numbers` are those to the right."""
    # The roles are those that the elements have anyway, until a narrow screen shows them as blocks.
    right = [' class="n"' if name in set(numbers) else "" for name in columns]
    head = "".join(
        f'<th scope="col" role="columnheader"{kind}>{escape(name)}</th>'
        for name, kind in zip(columns, right, strict=True)
    )
    body = "".join(
        f'<tr role="row">{_cells(columns, right, [str(cell) for cell in row])}</tr>' for row in rows
    )
    name = escape(title)
    return (
        f'<h2>{name}</h2><table role="table" aria-label="{name}"><thead role="rowgroup">'
        f'<tr role="row">{head}</tr></thead><tbody role="rowgroup">{body}</tbody></table>'
    )


def _cells(columns: Sequence[str], right: Sequence[str], row: Sequence[str]) -> str:
    made = []
    for number, (name, kind, text) in enumerate(zip(columns, right, row, strict=True)):
        tag, role = ('th scope="row"', "rowheader") if number == 0 else ("td", "cell")
        shown = f'<{tag} role="{role}"{kind} data-name="{escape(name)}">{escape(text)}'
        made.append(f"{shown}</{tag[:2]}>")
    return "".join(made)


def _links(links: Iterable[tuple[str, str]]) -> str:
    return " · ".join(f'<a href="{escape(to)}">{escape(name)}</a>' for to, name in links)
