"""The demo's report as tables for a person."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table

from fusec.demo.check import Errors
from fusec.demo.results import Result

# Part of a start -> the recorder's stages in it. What no stage covers is Dynamo's own tracing.
PARTS: Mapping[str, tuple[str, ...]] = {
    "trace": ("key", "trace"),
    "compile": ("submit", "lower", "schedule", "codegen", "build"),
    "fetch": ("lookup", "fetch"),
    "load": ("load",),
}
COUNTED = (
    "graphs",
    "groups",
    "kernels",
    "distinct_kernels",
    "external_calls",
    "fallback_calls",
    "front_hits",
    "front_misses",
    "front_ineligible",
    "graph_hits",
    "graph_misses",
    "lowerings",
    "kernel_compiles",
    "local_compiles",
    "farm_compiles",
    "fallbacks_to_eager",
)


@dataclass(frozen=True)
class Report:
    """All results of one demo. errors: the cold process's, worst first; violations: in words."""

    title: str
    eager: Result
    cold: Result
    warm: Result
    inductor: Mapping[str, Result]
    errors: Sequence[Errors]
    violations: Sequence[str]

    @property
    def passed(self) -> bool:
        return not self.violations


def start_cost(result: Result) -> float:
    """Seconds that a start costs over a steady step: first training step and first inference."""
    return max(0.0, result.times.first - result.times.steady)


def split(result: Result) -> dict[str, float]:
    """The cost of a start by part, in seconds; `trace` includes Dynamo's own share."""
    parts = {
        part: sum(result.stages.get(stage, 0.0) for stage in stages)
        for part, stages in PARTS.items()
    }
    parts["trace"] += max(0.0, start_cost(result) - sum(parts.values()))
    return parts


def backend_share(result: Result) -> float:
    """Seconds of a start inside the backend: everything but Dynamo."""
    return sum(result.stages.values())


def render(report: Report, console: Console) -> None:
    """Print the tables and the verdict."""
    console.print(Group(_times(report), _counts(report), _errors(report)))
    for violation in report.violations:
        console.print(f"[bold red]FAILED[/] {violation}", highlight=False)
    if report.passed:
        console.print(
            "[bold green]passed[/] the warm process compiled nothing, gave the same bits as the "
            "cold one, and the error is within its bound",
            highlight=False,
        )


def _times(report: Report) -> RenderableType:
    table = Table(title=f"Seconds: {report.title}", title_justify="left")
    table.add_column("run", no_wrap=True)
    for column in ("first", "trace", "compile", "fetch", "load", "backend", "train", "infer"):
        table.add_column(column, justify="right")
    rows: list[tuple[str, Result, bool]] = [
        ("eager", report.eager, False),
        ("fusec cold", report.cold, True),
        ("fusec warm", report.warm, True),
        *((name, result, False) for name, result in report.inductor.items()),
    ]
    for name, result, ours in rows:
        parts = [f"{seconds:.2f}" for seconds in split(result).values()] if ours else [""] * 4
        backend = f"{backend_share(result):.2f}" if ours else ""
        steady = (f"{min(result.times.train):.3f}", f"{min(result.times.infer):.3f}")
        table.add_row(name, f"{result.times.first:.2f}", *parts, backend, *steady)
    table.caption = (
        "first: the first training step and the first inference, compiling included; trace: "
        "Dynamo, keys, AOTAutograd; backend: the part of it that is not Dynamo; train, infer: one "
        "step when nothing is left to compile"
    )
    table.caption_justify = "left"
    return table


def _counts(report: Report) -> RenderableType:
    table = Table(title="Counts", title_justify="left")
    table.add_column("")
    for column in ("cold", "warm"):
        table.add_column(column, justify="right")
    for name in COUNTED:
        counts = [run.counters.get(name, 0) for run in (report.cold, report.warm)]
        table.add_row(name.replace("_", " "), *(str(count) for count in counts))
    return table


def _errors(report: Report, rows: int = 4) -> RenderableType:
    table = Table(title="Error, relative to the tensor's size", title_justify="left")
    for column in ("tensor", "fusec", "eager", "allowed", "largest against eager"):
        table.add_column(column, justify="left" if column == "tensor" else "right")
    for error in report.errors[:rows]:
        figures = (error.fusec, error.eager, error.allowed, error.largest)
        table.add_row(error.name, *(f"{figure:.1e}" for figure in figures))
    largest = max((error.largest for error in report.errors), default=0.0)
    table.caption = (
        f"fusec and eager against float64, root mean square; the {len(report.errors[:rows])} of "
        f"{len(report.errors)} tensors nearest to their bound; largest of all against eager "
        f"{largest:.1e}"
    )
    table.caption_justify = "left"
    return table


def as_json(report: Report) -> dict[str, object]:
    """The report's numbers for a program."""

    def one(result: Result) -> dict[str, object]:
        return {
            "first_s": result.times.first,
            "train_s": min(result.times.train),
            "infer_s": min(result.times.infer),
            "stages_s": dict(result.stages),
            "split_s": split(result),
            "counters": dict(result.counters),
        }

    runs = {"eager": report.eager, "cold": report.cold, "warm": report.warm, **report.inductor}
    worst = report.errors[0] if report.errors else None
    return {
        "title": report.title,
        "passed": report.passed,
        "violations": list(report.violations),
        "runs": {name: one(result) for name, result in runs.items()},
        "worst_error": worst and {"tensor": worst.name, "fusec": worst.fusec, "eager": worst.eager},
        "largest_against_eager": max((e.largest for e in report.errors), default=0.0),
    }
