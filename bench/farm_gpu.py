"""Models compiled cold by a farm on a machine with a GPU, beside Inductor in the same run.

The farm is in this process: CPU workers on the cores, one worker for each GPU. Each side and each
model has a process of its own with empty caches. Quoted are seconds from a model's first call to
its first result (compiled, published untuned, verified), to the tuned artifact, and milliseconds of
a step with either. Where the time went is told too: the client's stages, the farm's, and when each
graph came to which. A side that is cut says what it had, and what the farm was at.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from bench import display, process
from bench.farm_gpu_watch import Watch
from bench.gpu import models
from farm.config import FarmConfig
from farm.devices import detected
from farm.embedded import embedded_farm

PEERS = ("inductor", "inductor-max")
_POLL_S = 0.1
_LOG_CHARACTERS = 1500
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
        except (process.ChildFailedError, httpx.HTTPError) as error:
            return {"failed": str(error)[-_LOG_CHARACTERS:]}


def _by_farm(arguments: argparse.Namespace, name: str, root: Path, ends: float) -> dict[str, Any]:
    """Cold, with a farm of its own; then, in another process, what tuning has made of it. Times of
    the farm's are seconds since the cold process was started, so from ``before_s`` on."""
    found: dict[str, Any] = {}
    with embedded_farm(pool=arguments.pool, farm=FarmConfig(pool=arguments.pool)) as farm:
        keys = root / "keys"
        keys.write_text(farm.public_key.text() + "\n")
        remote = {"FUSEC_REMOTE": farm.url, "FUSEC_TRUSTED_KEYS": str(keys)}
        with Watch(farm) as watch:
            try:
                found |= _process(name, "fusec", root / "cold", remote, arguments.seconds, ends)
                found["numbers_after_cold"] = watch.numbers()
                while not watch.settled() and time.monotonic() < ends:
                    time.sleep(_POLL_S)
                if watch.settled():
                    found["tuned_s"] = watch.seconds() - found["before_s"]
                else:
                    found["cut"] = "the graphs were not tuned in time"
            except process.ChildFailedError as error:
                log = (root / "cold" / "log").read_text()[-_LOG_CHARACTERS:]
                found["failed"] = f"{error}\n{log}"
            found["farm"] = watch.report()
        if "tuned_s" in found:
            try:
                tuned = _process(name, "fusec", root / "tuned", remote, arguments.seconds, ends)
                found["tuned"] = tuned
            except process.ChildFailedError as error:
                found["cut"] = f"with the tuned artifacts: {error}"
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


def _bad(found: dict[str, Any]) -> bool:
    return "tuned" not in found or bool(found["counters"].get("fallbacks_to_eager"))


def _line(name: str, side: str, found: dict[str, Any]) -> None:
    for what in ("failed", "cut", "left_out"):
        if what in found:
            display.progress(f"{name}: {side}: {what}: {found[what]}")
    if "first_s" in found:
        text = f"first call {found['first_s']:.2f} s, step {found['step_ms']:.3f} ms"
        if "tuned_s" in found:
            text += f", tuned after {found['tuned_s']:.2f} s"
        if "tuned" in found:
            text += f", step then {found['tuned']['step_ms']:.3f} ms"
        display.progress(f"{name}: {side}: {text}")
        stages = found["first_stages"]
        left = {"Dynamo and the rest": found["first_s"] - sum(stages.values())}
        display.progress(f"  of the first call: {_seconds({**stages, **left})}")
    if "farm" in found:
        for at, event in found["farm"]["events"]:
            display.progress(f"  {at:7.2f} s  {event}")
        display.progress(f"  the farm's stages: {_seconds(_stages(found['farm']['numbers']))}")
        if "cut" in found or "failed" in found:
            display.progress(f"  the farm at the end: {found['farm']['state']}")
            display.progress(f"  its numbers: {found['farm']['numbers']}")


def _stages(numbers: dict[str, float]) -> dict[str, float]:
    """Seconds of all graphs together, by stage."""
    prefix = 'fusec_farm_stage_seconds_sum{stage="'
    return {
        name.removeprefix(prefix).partition('"')[0]: seconds
        for name, seconds in numbers.items()
        if name.startswith(prefix)
    }


def _seconds(stages: dict[str, float]) -> str:
    return ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items())


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
