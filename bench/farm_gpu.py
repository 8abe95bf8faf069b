"""Models compiled cold by a farm on a machine with a GPU, beside Inductor in the same run.

The farm is in this process: CPU workers on the cores, one worker for each GPU. Each side and each
model has a process of its own with empty caches. Quoted are seconds from a model's first call to
its first result (compiled, published untuned, verified), to the tuned artifact, and milliseconds of
a step with either.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from bench import display, process
from bench.gpu import models
from farm.config import FarmConfig
from farm.devices import detected
from farm.embedded import EmbeddedFarm, embedded_farm

PEERS = ("inductor", "inductor-max")
_POLL_S = 0.25
_EXAMPLES = """\
examples:
  python -m bench.farm_gpu --models gpt2_train --pool memory
  python -m bench.farm_gpu --pool ray --peers inductor,inductor-max --budget 540 --out farm.json
"""


def main(argv: list[str] | None = None) -> int:
    """0 when every model was compiled by the farm and tuned; 2 on a machine without a GPU."""
    arguments = _arguments(argv)
    gpus = detected()
    if not gpus:
        display.progress("no GPU here: this measures a farm that has one")
        return 2
    ends = time.monotonic() + arguments.budget
    result: dict[str, Any] = {"pool": arguments.pool, "gpus": gpus, "models": {}}
    for name in arguments.models.split(","):
        figures = result["models"][name] = {}
        for side in ["fusec", *(s for s in arguments.peers.split(",") if s)]:
            left = ends - time.monotonic()
            if left < arguments.least:
                figures[side] = {"left_out": "the budget is spent"}
                continue
            display.progress(f"{name}: {side}, {left:.0f} s left")
            figures[side] = _side(arguments, name, side, min(left, arguments.step))
            _line(name, side, figures[side])
            display.write_json(arguments.out, result)
    display.write_json(arguments.out, result)
    _table(result)
    return 1 if any(_bad(found["fusec"]) for found in result["models"].values()) else 0


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.farm_gpu",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", default=",".join(models.CASES), help="by commas; default: all")
    parser.add_argument("--peers", default=",".join(PEERS), help="by commas; empty for none")
    parser.add_argument("--pool", choices=("ray", "memory"), default="ray")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds for everything")
    parser.add_argument(
        "--step", type=float, default=240.0, help="longest side of a model, seconds"
    )
    parser.add_argument("--least", type=float, default=20.0, help="do not begin a side with less")
    parser.add_argument("--seconds", type=float, default=2.0, help="of timing steps, a process")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, after each side")
    arguments = parser.parse_args(argv)
    unknown = sorted(set(arguments.models.split(",")) - set(models.CASES))
    if unknown:
        parser.error(f"no model {', '.join(unknown)}; there are {', '.join(models.CASES)}")
    return arguments


def _side(arguments: argparse.Namespace, name: str, side: str, left: float) -> dict[str, Any]:
    """Figures of a side, or what went wrong under ``failed``."""
    ends = time.monotonic() + left
    with tempfile.TemporaryDirectory(prefix="fusec-farm-gpu-") as folder:
        try:
            if side == "fusec":
                return _by_farm(arguments, name, Path(folder), ends)
            return _process(name, side, Path(folder), {}, arguments.seconds, ends)
        except (process.ChildFailedError, httpx.HTTPError, TimeoutError) as error:
            return {"failed": str(error)[-1500:]}


def _by_farm(arguments: argparse.Namespace, name: str, root: Path, ends: float) -> dict[str, Any]:
    """Cold, with a farm of its own; then, in another process, what tuning has made of it."""
    with embedded_farm(pool=arguments.pool, farm=FarmConfig(pool=arguments.pool)) as farm:
        keys = root / "keys"
        keys.write_text(farm.public_key.text() + "\n")
        remote = {"FUSEC_REMOTE": farm.url, "FUSEC_TRUSTED_KEYS": str(keys)}
        started = time.monotonic()
        found: dict[str, Any] = _process(
            name, "fusec", root / "cold", remote, arguments.seconds, ends
        )
        found["farm_after_cold"] = _numbers(farm)
        _wait(lambda: _settled(_numbers(farm)), ends)
        # From the first call, as `first_s`: what the process did before it is not the farm's.
        found["tuned_s"] = time.monotonic() - started - found["before_s"]
        found["farm"] = _numbers(farm)
        tuned = _process(name, "fusec", root / "tuned", remote, arguments.seconds, ends)
        found["tuned"] = tuned
    return found


def _process(
    name: str, side: str, folder: Path, env: dict[str, str], seconds: float, ends: float
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    left = max(5.0, ends - time.monotonic())
    command = ["--model", name, "--side", side, "--seconds", str(seconds)]
    env = {**process.caches(folder / "caches"), **env, "FUSEC_TUNE_S": "0"}
    return process.run(
        "bench.farm_gpu_process", command, folder=folder, env=env, timeout_s=left
    ).result


def _numbers(farm: EmbeddedFarm) -> dict[str, float]:
    """The farm's metrics on quality and work."""
    names = (
        "fusec_farm_published_total", "fusec_farm_tuned_total", "fusec_farm_tuned_kernels_total",
        "fusec_farm_verifications_total", "fusec_farm_gpu_busy_seconds_total",
        "fusec_farm_gpu_leases_total", "fusec_farm_tuning_waiting", "fusec_farm_kernels_total",
        "fusec_farm_errors_total", "fusec_farm_stage_seconds_sum",
    )  # fmt: skip
    text = httpx.get(farm.gateway_url + "/metrics", timeout=30).text
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(names))
    return {name: float(value) for name, value in rows if float(value)}


def _settled(numbers: dict[str, float]) -> bool:
    """Whether every untuned artifact has been dealt with."""
    untuned = numbers.get('fusec_farm_published_total{tier="untuned"}', 0.0)
    over = sum(n for name, n in numbers.items() if name.startswith("fusec_farm_tuned_total"))
    return over >= untuned


def _wait(condition: Callable[[], bool], ends: float) -> None:
    while not condition():
        if time.monotonic() > ends:
            raise TimeoutError("the graphs were not tuned in time")
        time.sleep(_POLL_S)


def _bad(found: dict[str, Any]) -> bool:
    return "tuned" not in found or bool(found["counters"].get("fallbacks_to_eager"))


def _line(name: str, side: str, found: dict[str, Any]) -> None:
    if "first_s" not in found:
        display.progress(f"{name}: {side}: {found}")
        return
    text = f"first call {found['first_s']:.2f} s, step {found['step_ms']:.3f} ms"
    if "tuned" in found:
        text += f", tuned after {found['tuned_s']:.2f} s, step {found['tuned']['step_ms']:.3f} ms"
    display.progress(f"{name}: {side}: {text}")


def _table(result: dict[str, Any]) -> None:
    rows = []
    for name, sides in result["models"].items():
        ours = sides.get("fusec", {})
        row = [name, _cell(ours, "first_s"), _cell(ours, "tuned_s")]
        row += [_cell(ours, "step_ms"), _cell(ours.get("tuned", {}), "step_ms")]
        for peer in PEERS:
            row += [_cell(sides.get(peer, {}), "first_s"), _cell(sides.get(peer, {}), "step_ms")]
        rows.append(row)
    heads = ["model", "first s", "tuned s", "ms", "tuned ms"]
    heads += [f"{peer} {unit}" for peer in PEERS for unit in ("s", "ms")]
    display.table(display.console(), f"cold compiles, {result['pool']} pool", heads, rows)


def _cell(found: dict[str, Any], name: str) -> str:
    return f"{found[name]:.2f}" if name in found else "-"


if __name__ == "__main__":
    raise SystemExit(main())
