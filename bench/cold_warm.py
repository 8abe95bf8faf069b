"""What a start costs: one training step in fresh processes, cold and warm, fusec and Inductor."""

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import display, machine, process
from fusec.demo.farm_process import farm_process

MODELS = ("llama", "gpt2", "bert", "convnet", "mlp")
# What the backend itself does in a warm start; Dynamo's tracing is nobody's share.
WARM_STAGES = ("key", "trace", "lookup", "fetch", "load")
# Counters of work that only a cold process may do.
COLD_WORK = (
    "lowerings",
    "kernel_compiles",
    "local_compiles",
    "farm_compiles",
    "fallbacks_to_eager",
)
RATIOS = ("first_forward_s", "first_step_s", "compile_s", "start_to_step_s")
_HELP = """\
Trains a model for one step, forward and backward, in fresh processes: each side once from empty
caches (cold), then again with what the cold process left behind (warm). Homes and working folders
are new every time. fusec compiles on a farm that is started here (--farm ray or memory), warm with
an empty local cache and everything from the service; --farm none compiles in the process and keeps
a local cache. The farm's start is not counted. Inductor keeps its cache folder.

Seconds are medians over --repeats, from the start of the process (`start`: interpreter and imports
included) and from after the imports. `compile` is the first step less a later one: what compiling
or loading cost on top of running. `CPU` is what the process itself (its children and the farm
apart) computed for from its start until the first step: a busy machine stretches it least.
"""
_EXAMPLES = """\
examples:
  python -m bench.cold_warm --model llama             about 5 minutes
  python -m bench.cold_warm --model mlp --farm none   the shortest
  python -m bench.cold_warm --model llama --layers 32 --repeats 3 --json cold_warm.json
"""


@dataclass(frozen=True)
class Run:
    """A kind of process to time: side, phase, and where its caches are."""

    side: str
    phase: str
    caches: Path
    remote: str | None


def main(argv: list[str] | None = None) -> int:
    """0 when every process ran and the warm fusec processes compiled nothing."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(arguments.threads)
    out.print(machine.line(about), soft_wrap=True)
    samples: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        for repeat in range(arguments.repeats):
            root = Path(folder) / str(repeat)
            with _farm(arguments.farm, root) as remote:
                for run in _runs(arguments.sides.split(","), root, remote):
                    name = f"{run.side} {run.phase}".strip()
                    display.progress(f"{repeat + 1}/{arguments.repeats} {name}")
                    samples.setdefault(name, []).append(_process(run, root, arguments))
    figures = {name: _medians(found) for name, found in samples.items()}
    result = {
        "machine": about,
        "model": arguments.model,
        "layers": arguments.layers,
        "farm": arguments.farm,
        "medians": figures,
        "ratios": ratios(figures),
        "samples": samples,
    }
    display.write_json(arguments.json, result)
    _print(out, arguments, figures)
    worked = [c for s in samples.get("fusec warm", []) if (c := compiled_anything(s["counters"]))]
    for words in worked:
        out.print(f"[bold red]FAILED[/] a warm process did work again: {words}")
    return 1 if worked else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cold_warm",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="llama", help="default: llama")
    parser.add_argument("--layers", type=int, help="default: the demo's size of the model")
    parser.add_argument("--sides", default="eager,inductor,fusec", help="default: %(default)s")
    parser.add_argument("--farm", choices=("ray", "memory", "none"), default="memory")
    parser.add_argument("--repeats", type=int, default=3, help="of everything; default 3")
    parser.add_argument("--threads", type=int, default=2, help="of every side; default 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    arguments = parser.parse_args(argv)
    if set(arguments.sides.split(",")) - {"eager", "inductor", "fusec"}:
        parser.error("--sides: any of eager, inductor, fusec, by commas")
    return arguments


@contextlib.contextmanager
def _farm(kind: str, root: Path) -> Iterator[str | None]:
    """A farm with an empty store; gives the address of its service, None for no farm."""
    root.mkdir(parents=True)
    if kind == "none":
        yield None
        return
    with farm_process(pool=kind, store=f"file://{root / 'store'}", log=root / "farm.log") as farm:
        yield farm.url


def _runs(sides: list[str], root: Path, remote: str | None) -> list[Run]:
    runs = []
    for side in sides:
        if side == "eager":
            runs.append(Run(side, "", root / "eager", None))
            continue
        cold = root / side
        # With a farm, the warm process is another machine: only the service has anything.
        warm = root / "fusec-warm" if side == "fusec" and remote else cold
        where = remote if side == "fusec" else None
        runs += [Run(side, "cold", cold, where), Run(side, "warm", warm, where)]
    return runs


def _process(run: Run, root: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    home = root / f"home-{run.side}-{run.phase}"
    home.mkdir()
    env = process.caches(run.caches)
    if run.remote is not None:
        env["FUSEC_REMOTE"] = run.remote
    command = ["--model", arguments.model, "--side", run.side, "--threads", str(arguments.threads)]
    if arguments.layers is not None:
        command += ["--layers", str(arguments.layers)]
    return process.run("bench.cold_warm_process", command, folder=home, env=env).result


def _medians(samples: list[dict[str, Any]]) -> dict[str, float]:
    """Medians of the seconds, and of the backend's stages as `stage_<name>`."""
    names = [name for name, value in samples[0].items() if isinstance(value, float)]
    found = {name: statistics.median(s[name] for s in samples) for name in names}
    stages = {stage for sample in samples for stage in sample["stages"]}
    for stage in sorted(stages):
        found[f"stage_{stage}"] = statistics.median(s["stages"].get(stage, 0.0) for s in samples)
    return found


def compiled_anything(counters: dict[str, int]) -> str:
    """Work that a warm process must not do, in words; empty when it did none."""
    return ", ".join(f"{name} {counters[name]}" for name in COLD_WORK if counters.get(name))


def ratios(figures: dict[str, dict[str, float]]) -> dict[str, float]:
    """fusec's share of Inductor's seconds: below 1 is faster."""
    found = {}
    for phase in ("cold", "warm"):
        ours, theirs = (figures.get(f"{side} {phase}") for side in ("fusec", "inductor"))
        if ours and theirs:
            for name in RATIOS:
                found[f"{phase} {name}"] = ours[name] / theirs[name]
    return found


def _print(
    out: Console, arguments: argparse.Namespace, figures: dict[str, dict[str, float]]
) -> None:
    shown = {
        "imports_s": "imports",
        "start_to_forward_s": "start → forward",
        "start_to_step_s": "start → step",
        "first_forward_s": "first forward",
        "first_step_s": "first step",
        "later_step_s": "later step",
        "cpu_step_s": "CPU",
        "compile_s": "compile",
    }
    rows = [[name, *(f"{f[key]:.2f}" for key in shown)] for name, f in figures.items()]
    title = f"{arguments.model}, seconds, farm: {arguments.farm}"
    display.table(out, title, ["process", *shown.values()], rows)
    for name, value in ratios(figures).items():
        text = name.removesuffix("_s").replace("_", " ")
        out.print(f"fusec / inductor, {text}: {value:.2f}", markup=False)
    warm = figures.get("fusec warm")
    if warm:
        stages = {s: warm.get(f"stage_{s}", 0.0) for s in WARM_STAGES}
        parts = ", ".join(f"{stage} {display.seconds(value)}" for stage, value in stages.items())
        share = sum(stages.values()) / warm["compile_s"] if warm["compile_s"] > 0 else 0.0
        out.print(
            f"the backend's own part of a warm start: {display.seconds(sum(stages.values()))}, "
            f"{share:.0%} of `compile` ({parts}); the rest is Dynamo",
            soft_wrap=True,
            markup=False,
        )


if __name__ == "__main__":
    raise SystemExit(main())
