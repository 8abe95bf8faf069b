"""Key stability: the same model in many fresh processes must give the same keys."""

import argparse
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import display, machine, process
from bench.cold_warm import MODELS
from fusec.artifact.fingerprint import Fingerprint, diff

KINDS = ("front", "graph", "kernel")
_HELP = """\
Captures a model in fresh processes, each with another random PYTHONHASHSEED, home and working
folder, names of the model's class, and one to three threads, and collects its keys: of Dynamo's
graphs (front), of the ATen graphs forward and backward (graph), of every generated kernel (kernel).
Each kind must give one and the same list everywhere. Nothing is compiled. Also says how long a
front key takes: the first in a process, which reads the compiler's own sources, and later ones.
"""
_EXAMPLES = """\
examples:
  python -m bench.keys                                the MLP in 20 processes: about 3 minutes
  python -m bench.keys --model llama --processes 5
"""


def main(argv: list[str] | None = None) -> int:
    """0 when the keys of every kind are the same in all processes."""
    arguments = _arguments(argv)
    out = display.console()
    about = machine.describe(2)
    out.print(machine.line(about), soft_wrap=True)
    chance = random.Random(arguments.seed)
    samples = []
    with tempfile.TemporaryDirectory(prefix="fusec-bench-") as folder:
        for number in range(arguments.processes):
            display.progress(f"process {number + 1} of {arguments.processes}")
            home = Path(folder) / f"{chance.getrandbits(40):x}" / f"home-{number}"
            home.mkdir(parents=True)
            samples.append(_process(arguments, home, chance))
    distinct = {kind: len({tuple(s["keys"][kind]) for s in samples}) for kind in KINDS}
    first, later = (statistics.median(s[name] for s in samples) for name in ("first_s", "later_s"))
    result = {
        "machine": about,
        "model": arguments.model,
        "layers": arguments.layers,
        "seed": arguments.seed,
        "processes": arguments.processes,
        "distinct": distinct,
        "front_key_first_s": first,
        "front_key_later_s": later,
        "samples": samples,
    }
    display.write_json(arguments.json, result)
    rows = [
        [kind, str(len(samples[0]["keys"][kind])), str(distinct[kind]), _verdict(distinct[kind])]
        for kind in KINDS
    ]
    title = f"{arguments.model}: keys in {arguments.processes} processes"
    display.table(out, title, ["kind", "keys", "distinct lists", ""], rows)
    out.print(f"front key: first {display.seconds(first)}, later {display.seconds(later)}, medians")
    for name in differing(samples):
        out.print(f"[bold red]differs[/] between processes: {name}")
    ineligible = {reason for s in samples for reason in s["ineligible"]}
    for reason in sorted(ineligible):
        out.print(f"a graph without a front key: {reason}", markup=False)
    return 0 if unstable(distinct) == [] else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.keys",
        description=_HELP,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", choices=MODELS, default="mlp", help="default: mlp")
    parser.add_argument("--layers", type=int, help="default: the demo's size of the model")
    parser.add_argument("--processes", type=int, default=20, help="default: 20")
    parser.add_argument("--seed", type=int, default=0, help="of the environments; default 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    return parser.parse_args(argv)


def _process(arguments: argparse.Namespace, home: Path, chance: random.Random) -> dict[str, Any]:
    command = ["--model", arguments.model, "--threads", str(chance.randint(1, 3))]
    command += ["--name", f"Model{chance.getrandbits(32):x}"]
    if arguments.layers is not None:
        command += ["--layers", str(arguments.layers)]
    env = {"PYTHONHASHSEED": str(chance.randrange(1 << 32)), "RANK": str(chance.randrange(8))}
    return process.run("bench.keys_process", command, folder=home, env=env).result


def differing(samples: Sequence[dict[str, Any]]) -> list[str]:
    """Names of the front keys' entries that some process has otherwise than the first."""
    names: set[str] = set()
    first = samples[0]["entries"]
    for sample in samples[1:]:
        if len(sample["entries"]) != len(first):
            names.add("number of graphs")
        for a, b in zip(first, sample["entries"]):
            names.update(diff(Fingerprint.from_wire(a), Fingerprint.from_wire(b)))
    return sorted(names)


def unstable(distinct: dict[str, int]) -> list[str]:
    """The kinds whose keys differ between processes."""
    return [kind for kind, count in distinct.items() if count != 1]


def _verdict(count: int) -> str:
    return "stable" if count == 1 else "UNSTABLE"


if __name__ == "__main__":
    raise SystemExit(main())
