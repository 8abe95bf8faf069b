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
  td.n { text-align: right; font-variant-numeric: tabular-nums }
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
  <tr><th>objective<th>seen<th>at most<th>
  {% for each in o.objectives %}
  <tr><td>{{ each.what }}<td class="n">{{ '%.3g'|format(each.value) }} {{ each.unit }}
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
    """Ranks that are ready, and how long look-ups took, over time; a column for each part."""
    parts = [(name, samples) for name, samples in outcome.parts.items() if samples.ranks]
    figure = Figure(figsize=(5.5 * max(1, len(parts)), 5.5), layout="constrained")
    axes = figure.subplots(2, max(1, len(parts)), squeeze=False)
    for column, (name, samples) in enumerate(parts):
        begun = min(rank.begun for rank in samples.ranks)
        ready, answers = axes[0][column], axes[1][column]
        _ready(ready, samples, begun)
        ready.set_title(name)
        _answers(answers, samples, begun)
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
        axes.legend(markerscale=3)
        axes.set_yscale("log")
        axes.set(xlabel="seconds", ylabel="seconds an answer took", xlim=(0, None))
    else:
        begun_at = [rank.begun - begun for rank in samples.ranks]
        axes.scatter(begun_at, [rank.seconds for rank in samples.ranks], s=6)
        axes.set(xlabel="seconds", ylabel="seconds a start took", xlim=(0, None), ylim=(0, None))
