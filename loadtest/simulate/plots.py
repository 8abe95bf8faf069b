"""A run as a picture: workers in work, ranks ready and graphs that wait, over simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from loadtest.simulate.tally import Series
from loadtest.simulate.world import World


def draw(world: World, name: str, folder: Path, form: str) -> Path:
    """Write `<folder>/<name>.<form>` (png or svg), and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    tally = world.tally
    end = max((series[-1][0] for series in tally.ready.values()), default=1.0)
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True)
    _steps(axes[0], {_worker(n): s for n, s in tally.busy.items()}, "workers in work", end)
    _steps(axes[1], tally.ready, "ranks ready", end)
    _steps(axes[2], tally.queued, "graphs that wait", end)
    axes[0].set_title(name)
    axes[2].set_xlabel("seconds, simulated")
    path = folder / f"{name}.{form}"
    # Else an SVG holds the date and random names, and differs from run to run.
    with mpl.rc_context({"svg.hashsalt": "fusec", "path.simplify_threshold": 1.0}):
        figure.savefig(path, metadata={"Date": None} if form == "svg" else None)
    return path


def _worker(needs: str) -> str:
    return "CPU" if needs == "cpu" else needs


def _steps(axes: Any, series: dict[str, Series], label: str, end: float) -> None:
    for name, steps in sorted(series.items()):
        thin = _thinned([(0.0, 0), *steps, (max(end, steps[-1][0]), steps[-1][1])], end / 400)
        axes.step(*zip(*thin, strict=True), where="post", label=name or "(default)", linewidth=1.2)
    axes.set_ylabel(label)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend(frameon=False)


def _thinned(steps: Series, least_s: float) -> Series:
    """The series with one step at most in `least_s` seconds: more cannot be seen."""
    kept = [steps[0]]
    for step in steps[1:]:
        if step[0] - kept[-1][0] >= least_s:
            kept.append(step)
    if kept[-1] != steps[-1]:
        kept.append(steps[-1])
    return kept
