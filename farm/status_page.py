"""The farm's status page: the tables of `fusec farm status` for a browser."""

from __future__ import annotations

from html import escape

from cache.asgi import Request, Response
from cache.page import document, figures, table
from cache.quantities import duration, percent
from fusec.remote.farm_status import PAGE_PATH, FarmStatus
from fusec.remote.farm_view import tables

_FIRST_STEPS = """
<h2>No graph has come yet</h2>
<p>What jobs with <code>FUSEC_REMOTE</code> set to the cache service do not find there is compiled
here. To see one go through:</p>
<pre>fusec prewarm --demo mlp --target cpu</pre>
"""


def render(request: Request, status: FarmStatus) -> Response:
    """The whole page."""
    body = ""
    if status.draining:
        body = '<p class="bad">Draining: nothing new is begun.</p>'
    busy = sum(row.busy for row in status.workers)
    seen = [
        ("jobs in work", status.in_work),
        ("jobs that wait", status.queued),
        ("workers busy", f"{busy} of {sum(row.workers for row in status.workers)}"),
        ("up for", duration(status.up_s)),
    ]
    if status.seconds_saved is not None:
        seen += [
            ("submits without a compile", percent(status.submit_hits)),
            ("kernels without a compile", percent(status.kernel_hits)),
            ("compiling saved", duration(status.seconds_saved)),
        ]
    body += figures(seen)
    shown = tables(status)
    if not (status.queue or status.running or status.recent):
        body += _FIRST_STEPS
    body += "".join(
        table(listed.title, listed.columns, listed.rows, listed.numbers)
        for listed in shown
        if listed.rows
    )
    empty = ", ".join(listed.title for listed in shown if not listed.rows)
    if empty:
        body += f'<p class="soft">None at present: {escape(empty)}.</p>'
    body += (
        f'<p class="soft">A pool of the kind {escape(status.pool)}. <code>fusec farm status</code> '
        "shows the same in a terminal, and <code>fusec farm --help</code> what can be done about "
        "it.</p>"
    )
    through = request.path == PAGE_PATH  # the cache service, whose address the browser knows
    link = ("/", "cache service") if through else ("/metrics", "metrics")
    return document(request, "fusec farm", body, [link])
