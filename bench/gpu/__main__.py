"""`python -m bench.gpu kernels|models`: the suite on one GPU, as a table and as JSON.

python -m bench.gpu kernels                              every case, all sides
python -m bench.gpu kernels --only softmax,norm --sides eager,inductor,fusec
python -m bench.gpu models --out results.json
"""

from __future__ import annotations

import argparse
import gc
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from bench import display
from bench.gpu import kernels, models
from bench.gpu.measure import SIDES, Measured, copy_ceiling, measure
from bench.timing import geometric_mean

_LEAD = 24  # writes of 256 MiB: longer than the host takes for a small step
_PEERS = ("eager", "inductor", "inductor-max")


def main(argv: list[str] | None = None) -> int:
    """0 when every case of fusec's ran, compiled, and was right."""
    arguments = _parser().parse_args(argv)
    if not torch.cuda.is_available():
        display.progress("no GPU here: this suite measures one")
        return 2
    chosen = kernels.CASES if arguments.what == "kernels" else models.CASES
    words = [w for w in (arguments.only or "").split(",") if w]
    kernels_only = arguments.what == "kernels"
    names = [n for n in chosen if not words or any(w in n for w in words)]
    sides = arguments.sides.split(",")
    ceiling = copy_ceiling()
    started = time.perf_counter()
    result: dict[str, Any] = {"about": _about(), "copy_ceiling_tbps": ceiling, "cases": {}}
    for name in names:
        if time.perf_counter() - started > arguments.budget:
            display.progress(f"the budget of {arguments.budget:g} s is spent before {name}")
            break
        display.progress(name)
        torch.manual_seed(arguments.seed)
        case = chosen[name]()
        before = _eager_runs()
        found = measure(
            case,
            sides,
            seconds=arguments.seconds,
            check=kernels_only,
            lead=_LEAD if kernels_only else 1,
        )
        result["cases"][name] = {
            "moved_bytes": case.moved,
            "eager_runs": _eager_runs() - before,
            "sides": {s: asdict(m) if isinstance(m, Measured) else m for s, m in found.items()},
        }
        del case, found
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        display.write_json(arguments.out, result)
        _line(name, result["cases"][name])
    result["summary"] = summary(result)
    display.write_json(arguments.out, result)
    _table(result, sides)
    return 1 if _bad(result) else 0


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Geometric means of fusec against the best peer, and against the copy ceiling."""
    ratios: dict[str, float] = {}
    rates: list[float] = []
    for name, case in result["cases"].items():
        sides = case["sides"]
        ours = min(
            (s["ms"] for n, s in sides.items() if n.startswith("fusec") and isinstance(s, dict)),
            default=None,
        )
        peers = [s["ms"] for n, s in sides.items() if n in _PEERS and isinstance(s, dict)]
        if ours is None or not peers:
            continue
        ratios[name] = min(peers) / ours
        if case["moved_bytes"]:
            rates.append(case["moved_bytes"] / ours / 1e9 / result["copy_ceiling_tbps"])
    if not ratios:
        return {}
    found: dict[str, Any] = {
        "against_best_peer": geometric_mean(list(ratios.values())),
        "below_0.97": {n: r for n, r in ratios.items() if r < 0.97},
    }
    if rates:
        found["of_copy_ceiling"] = geometric_mean(rates)
    return found


def _eager_runs() -> int:
    from fusec.api import snapshot

    return snapshot().counters.get("fallbacks_to_eager", 0)


def _bad(result: dict[str, Any]) -> list[str]:
    return [
        name
        for name, case in result["cases"].items()
        if case["eager_runs"]
        or any(
            isinstance(s, str) or (s["error"] is not None and not s["error"] <= s["allowed"])
            for n, s in case["sides"].items()
            if n.startswith("fusec")
        )
    ]


def _about() -> dict[str, object]:
    import triton

    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }


def _cell(side: Any, moved: int | None) -> str:
    if isinstance(side, str):
        return "failed"
    text = f"{side['ms']:.3f}"
    if moved:
        text += f" ({moved / side['ms'] / 1e9:.2f})"
    if side["error"] is not None and not side["error"] <= side["allowed"]:
        text += " WRONG"
    return text


def _line(name: str, case: dict[str, Any]) -> None:
    cells = (
        f"{side} {_cell(found, case['moved_bytes'])}"
        + (
            f" [{found['first_s']:.1f}s {found['peak_mib']:.0f}M]"
            if isinstance(found, dict)
            else f" {found}"
        )
        for side, found in case["sides"].items()
    )
    note = f" RAN EAGER x{case['eager_runs']}" if case["eager_runs"] else ""
    print(f"{name:28s}", "  ".join(cells) + note, flush=True)


def _table(result: dict[str, Any], sides: list[str]) -> None:
    rows = []
    for name, case in result["cases"].items():
        cells = [_cell(case["sides"].get(s, "failed"), case["moved_bytes"]) for s in sides]
        rows.append([name, *cells])
    about = result["about"]
    out = display.console()
    display.table(
        out,
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}; copy "
        f"{result['copy_ceiling_tbps']:.2f} TB/s. Milliseconds a step (TB/s moved)",
        ["case", *sides],
        rows,
    )
    out.print(result["summary"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=("kernels", "models"))
    parser.add_argument("--only", metavar="WORDS", help="cases with one of these words, by commas")
    parser.add_argument(
        "--sides", default="eager,inductor,inductor-max,fusec", help="of " + ", ".join(SIDES)
    )
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing, a side and case")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds; later cases are left")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
