"""Tables of runs: with lines in a terminal, plain elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from loadtest.costs.model import Costs
from loadtest.simulate.figures import Figures, Tuning

_RUN = (
    *("scenario", "ranks", "workers", "first rank", "last rank", "farm", "efficiency", "build"),
    *("kernels", "compiles a kernel", "plans a graph", "retries", "tasks lost"),
)
_LOAD = ("scenario", "gateway", "service", "where ranks got their graphs")
_TENANT = (
    *("scenario", "tenant", "ranks", "graphs", "ready p50", "ready last"),
    *("queue p50", "queue p99"),
)

_TUNING = (
    *("scenario", "GPUs", "graphs tuned", "first", "last", "leases", "leased", "first to last"),
    "lease use",
)


def show(out: Console, found: Mapping[str, Figures], costs: Costs) -> None:
    """Print all runs."""
    out.print(f"costs: {costs.machine}", markup=False, soft_wrap=True)
    _print(out, "runs", _RUN, [_run(name, each) for name, each in found.items()])
    _print(out, "load, and sources", _LOAD, [_load(name, each) for name, each in found.items()])
    _print(
        out,
        "tenants",
        _TENANT,
        [row for name, each in found.items() for row in _tenants(name, each)],
    )
    tuned = [_tuned(name, each.tuning) for name, each in found.items() if each.tuning is not None]
    if tuned:
        _print(out, "tuning", _TUNING, tuned)


def _run(name: str, run: Figures) -> list[str]:
    return [
        name,
        str(run.ranks),
        str(run.workers),
        _seconds(run.first_ready_s),
        _seconds(run.last_ready_s),
        _seconds(run.farm_s),
        f"{run.efficiency:.2f}",
        f"{run.build_efficiency:.2f}",
        str(run.kernels),
        f"{run.compiles_per_kernel:.3f}",
        f"{run.plans_per_graph:.3f}",
        str(run.retries),
        str(run.tasks_lost),
    ]


def _load(name: str, run: Figures) -> list[str]:
    sources = ", ".join(f"{source} {count}" for source, count in run.sources.items())
    return [name, f"{run.gateway_busy:.2f}", f"{run.service_busy:.2f}", sources]


def _tenants(name: str, run: Figures) -> list[list[str]]:
    return [
        [
            name,
            tenant or "(default)",
            str(each.ranks),
            str(each.graphs),
            _seconds(each.ready_p50_s),
            _seconds(each.ready_last_s),
            _seconds(each.queue_p50_s),
            _seconds(each.queue_p99_s),
        ]
        for tenant, each in run.tenants.items()
    ]


def _tuned(name: str, tuning: Tuning) -> list[str]:
    return [
        name,
        str(tuning.gpus),
        str(tuning.graphs),
        _seconds(tuning.first_s),
        _seconds(tuning.last_s),
        str(tuning.leases),
        _seconds(tuning.leased_s),
        _seconds(tuning.span_s),
        f"{tuning.use:.2f}",
    ]


def _seconds(value: float) -> str:
    return f"{value:.2f} s"


def _print(out: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    plain = not out.is_terminal
    made = Table(title=title, title_justify="left", box=None if plain else box.HEAVY_HEAD)
    for number, column in enumerate(columns):
        made.add_column(column, justify="left" if number < 1 else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    out.print(made)
