"""`python -m bench.gpu.report kernels.json …`: the figures of earlier runs as a Markdown table."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from bench.gpu.__main__ import summary
from bench.gpu.measure import SIDES

_PEERS = ("eager", "inductor", "inductor-max", "inductor-graphs")


def markdown(result: dict[str, Any]) -> str:
    """One row a case: milliseconds of each side, fusec against its best peer, its share of the copy
    ceiling, its peak memory beside the least of the peers', seconds of the first call."""
    about = result["about"]
    measured = {s for c in result["cases"].values() for s in c["sides"]}
    sides = [s for s in SIDES if s in measured]
    head = (
        f"{about['gpu']}, torch {about['torch']}, Triton {about['triton']}; a copy moves "
        f"{result['copy_ceiling_tbps']:.2f} TB/s."
    )
    lines = [
        head,
        "",
        "| case | " + " | ".join(f"{s} ms" for s in sides) + " | against the best peer | of the "
        "ceiling | peak MiB, least of the peers' | first call s, Inductor's |",
        "|---" * (len(sides) + 5) + "|",
    ]
    lines += [_row(name, case, sides, result) for name, case in result["cases"].items()]
    found = summary(result)
    if found:
        lines += ["", f"Geometric mean against the best peer {found['against_best_peer']:.2f}."]
        if "of_copy_ceiling" in found:
            lines[-1] += (
                f" Of the copy ceiling, where memory binds: {found['of_copy_ceiling']:.2f}."
            )
    return "\n".join(lines) + "\n"


def _row(name: str, case: dict[str, Any], sides: list[str], result: dict[str, Any]) -> str:
    measured = {s: m for s, m in case["sides"].items() if isinstance(m, dict)}
    cells = [
        f"{measured[s]['ms']:.3f}" if s in measured else "failed" if s in case["sides"] else ""
        for s in sides
    ]
    ours = [m for s, m in measured.items() if s.startswith("fusec")]
    peers = [m for s, m in measured.items() if s in _PEERS]
    if not ours or not peers:
        return f"| {name} | " + " | ".join(cells) + " | | | | |"
    best = min(ours, key=lambda m: m["ms"])
    ratio = min(m["ms"] for m in peers) / best["ms"]
    rate = case["moved_bytes"] / best["ms"] / 1e9 if case["moved_bytes"] else None
    share = f"{rate / result['copy_ceiling_tbps']:.2f}" if rate else ""
    peak = f"{best['peak_mib']:.0f}, {min(m['peak_mib'] for m in peers):.0f}"
    first = f"{best['first_s']:.1f}"
    if "inductor" in measured:
        first += f", {measured['inductor']['first_s']:.1f}"
    return f"| {name} | " + " | ".join([*cells, f"{ratio:.2f}", share, peak, first]) + " |"


def main() -> int:
    """Print the tables of the files named."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="results.json")
    for file in parser.parse_args().files:
        print(markdown(json.loads(file.read_text())))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
