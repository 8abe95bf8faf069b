"""The report: one page of HTML with its plots inside, for a browser without a network."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jinja2
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.samples import Samples
from loadtest.scenario import Outcome

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>fusec load test</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
         padding: 0 1rem }
  table { border-collapse: collapse; margin: 1rem 0; width: 100% }
  th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #ddd }
  td:first-child { width: 45% }
  th.n, td.n { text-align: right; font-variant-numeric: tabular-nums }
  .kept { color: #17663a } .broken { color: #a3131d; font-weight: bold }
  svg { width: 100%; height: auto }
</style>
<h1>fusec load test</h1>
<p>{{ about }}. A real S3 server, cache service and farm, with the load beside them.</p>
<table>
  <tr><th>scenario<th>objectives kept
  {% for o in outcomes %}
  <tr><td><a href="#{{ o.name }}">{{ o.name }}</a>
      <td class="{{ 'kept' if o.kept else 'broken' }}">
      {{ o.objectives|selectattr('kept')|list|length }} of {{ o.objectives|length }}
  {% endfor %}
</table>
{% for o in outcomes %}
<h2 id="{{ o.name }}">{{ o.name }}</h2>
<p>{{ o.about }}</p>
<table>
  <tr><th>objective<th class="n">seen<th class="n">at most<th>
  {% for each in o.objectives %}
  <tr><td>{{ each.what }}<td class="n">{{ each.seen }}
      <td class="n">{{ '%g'|format(each.most) }} {{ each.unit }}
      <td class="{{ 'kept' if each.kept else 'broken' }}">{{ 'kept' if each.kept else 'not kept' }}
  {% endfor %}
</table>
<table>
  {% for name, value in o.figures.items() %}<tr><td>{{ name }}<td class="n">{{ value }}{% endfor %}
</table>
{{ plots[o.name]|safe }}
{% endfor %}
</html>
"""


def write_report(folder: Path, outcomes: Sequence[Outcome], about: str) -> Path:
    """Write `index.html` there and return its path. about: one line on the machine."""
    folder.mkdir(parents=True, exist_ok=True)
    plots = {outcome.name: _plots(outcome) for outcome in outcomes}
    page = jinja2.Environment(autoescape=True).from_string(_PAGE)
    path = folder / "index.html"
    path.write_text(page.render(outcomes=outcomes, about=about, plots=plots))
    return path


def _plots(outcome: Outcome) -> str:
    """Starts that are done, and how long answers took, over time; a row for each part."""
    parts = [(name, samples) for name, samples in outcome.parts.items() if samples.ranks]
    if not parts:
        return ""
    figure = Figure(figsize=(11, 3.2 * len(parts)), layout="constrained")
    axes = figure.subplots(len(parts), 2, squeeze=False)
    for (name, samples), (ready, answers) in zip(parts, axes):
        begun = min(rank.begun for rank in samples.ranks)
        _ready(ready, samples, begun)
        ready.set_title(name, loc="left")
        _answers(answers, samples, begun)
        for number, (left, right) in enumerate(outcome.away):
            for part in (ready, answers):
                label = "remote away" if number == 0 else None
                part.axvspan(left - begun, right - begun, color="0.9", zorder=0, label=label)
        _legend(answers)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    return text.getvalue()[text.getvalue().index("<svg") :]


def _ready(axes: Axes, samples: Samples, begun: float) -> None:
    ends = sorted(rank.ready - begun for rank in samples.ranks)
    axes.step(ends, range(1, len(ends) + 1), where="post")
    axes.set(xlabel="seconds", ylabel="starts done", xlim=(0, None), ylim=(0, None))


def _answers(axes: Axes, samples: Samples, begun: float) -> None:
    for name in sorted({request.name for request in samples.requests}):
        seen = [request for request in samples.requests if request.name == name]
        axes.scatter(
            [r.at - begun for r in seen],
            [r.seconds for r in seen],
            s=3,
            label=name,
            rasterized=True,
        )
    if samples.requests:
        axes.set_yscale("log")
        axes.set(xlabel="seconds", ylabel="seconds an answer took", xlim=(0, None))
        return
    for whence in sorted({rank.tenant for rank in samples.ranks}):
        starts = [rank for rank in samples.ranks if rank.tenant == whence]
        axes.scatter(
            [rank.begun - begun for rank in starts],
            [rank.seconds for rank in starts],
            s=6,
            label=whence,
        )
    axes.set(xlabel="seconds", ylabel="seconds a start took", xlim=(0, None), ylim=(0, None))


def _legend(axes: Axes) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(markerscale=2, fontsize="small")
