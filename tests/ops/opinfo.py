"""torch's own operator samples, all of them: compiled by fusec, compared with eager, tabulated.

    python -m tests.ops.opinfo --table docs/ops.md  every operator and dtype, forward and gradients;
                                                    writes the table
    python -m tests.ops.opinfo --ops 'cumsum|nn.*pool' --dtypes float32 --samples 20

The operators run in a child process; one that crashes is noted and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

DTYPES = ("float32 float64 bfloat16 float16 int64 int32 int16 int8 uint8 bool complex64").split()
_STUCK_S = 600.0  # without an answer to one case


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tasks(pattern: str, dtypes: list[str]) -> list[tuple[str, str, str, bool]]:
    """(operator, variant, dtype, gradients) of every case."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from tests.ops.cases import SKIPPED

    found = []
    for info in op_db:
        if not re.fullmatch(pattern, info.name) or info.name in SKIPPED:
            continue
        supported = info.supported_dtypes("cpu")
        backward = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
        for name in dtypes:
            for gradients, known in ((False, supported), (True, backward)):
                if getattr(torch, name) in known:
                    found.append((info.name, info.variant_test_name, name, gradients))
    return found


def child(argv: argparse.Namespace) -> None:
    """Run the tasks that stdin names, one line of JSON each; answer likewise."""
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from tests.ops.cases import run

    infos = {(i.name, i.variant_test_name): i for i in op_db}
    torch.set_num_threads(1)
    for line in sys.stdin:
        name, variant, dtype, gradients = json.loads(line)
        outcome = run(
            infos[name, variant], getattr(torch, dtype), gradients=gradients, limit=argv.samples
        )
        say(json.dumps(asdict(outcome)))


def run_all(pattern: str, dtypes: list[str], samples: int) -> Iterator[dict[str, Any]]:
    """Outcomes with their task, in order; a crash or a hang is an outcome too."""
    waiting = tasks(pattern, dtypes)
    command = [sys.executable, "-m", "tests.ops.opinfo", "--child", "--samples", str(samples)]
    worker: subprocess.Popen[str] | None = None
    for task in waiting:
        if worker is None:
            worker = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(json.dumps(task) + "\n")
        worker.stdin.flush()
        answers, _, _ = select.select([worker.stdout], [], [], _STUCK_S)
        line = worker.stdout.readline() if answers else ""
        if line:
            outcome = json.loads(line)
        else:
            if not answers:
                worker.kill()
            outcome = {"status": "crash", "detail": f"exit status {worker.wait()}", "samples": 0}
            worker = None
        yield {**dict(zip(("name", "variant", "dtype", "gradients"), task)), **outcome}
    if worker is not None:
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()


def table(rows: list[dict[str, Any]]) -> str:
    """docs/ops.md: one line an operator."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    lines = [
        "# Operators",
        "",
        "Made by `python -m tests.ops.opinfo`: torch's own samples for every operator, compiled by",
        "fusec on a CPU and compared with eager. *native*: generated loops only. *library*: calls",
        "on purpose what a library does better. *fallback*: calls ATen for want of a rule, inside",
        "the compiled graph. *eager*: the graph cannot be compiled and runs eager. Each is right;",
        "what is not stands under *wrong*.",
        "",
        "Differences from eager that are meant:",
        "",
        "- An index out of range raises RuntimeError, also where eager raises IndexError; nothing",
        "  is read there. The check is part of the program (`aten._assert_async`); on NVIDIA GPUs",
        "  it is an assertion in the kernel, and on AMD GPUs indices are clamped unchecked.",
        "- Half-precision arithmetic runs in float32 and rounds where a value is stored or cast;",
        "  the option `strict_rounding` rounds after every operation, as eager does.",
        "- `uint8` images are interpolated in float32, as torch itself breaks it down: a value can",
        "  differ by one.",
        "- Random numbers are eager's own: drawn by ATen, from its generator, in eager's order.",
        "",
        "| operator | forward | gradient | dtypes | ATen calls |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(by_name, key=str.lower):
        found = by_name[name]
        forward = [r for r in found if not r["gradients"] and r["status"] != "none"]
        backward = [r for r in found if r["gradients"] and r["status"] != "none"]
        if not forward and not backward:
            continue
        dtypes = list(dict.fromkeys(r["dtype"] for r in forward))
        calls = sorted({c for r in found for c in (*r.get("fallbacks", ()), *r.get("library", ()))})
        text = " ".join(c.removeprefix("aten.") for c in calls)
        lines.append(
            f"| {name} | {_kind(forward)} | {_kind(backward)} | {' '.join(dtypes)} | {text} |"
        )
    return "\n".join(lines) + "\n"


def _kind(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    for status in ("crash", "wrong", "error"):
        if any(r["status"] == status for r in rows):
            return status
    if all(r["status"] == "eager" for r in rows):
        return "eager"
    plain = [r for r in rows if r["dtype"] == "float32"] or rows
    kinds = {
        "fallback" if r.get("fallbacks") else "library" if r.get("library") else "native"
        for r in plain
        if r["status"] == "ok"
    }
    return next((k for k in ("fallback", "library", "native") if k in kinds), "eager")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ops", default=".*", help="regular expression over operator names")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument("--samples", type=int, default=6, help="at most so many an operator")
    parser.add_argument("--table", help="write the table to this file")
    parser.add_argument("--rows", help="write the raw outcomes to this file, one JSON a line")
    parser.add_argument("--from", dest="known", nargs="*", help="run nothing: rows of earlier runs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    argv = parser.parse_args()
    if argv.child:
        child(argv)
        return 0
    rows = []
    counts: dict[str, int] = {}
    started = time.monotonic()
    if argv.rows:
        Path(argv.rows).write_text("")
    found = (
        (json.loads(line) for name in argv.known for line in Path(name).read_text().splitlines())
        if argv.known
        else run_all(argv.ops, argv.dtypes, argv.samples)
    )
    for row in found:
        rows.append(row)
        counts[row["status"]] = counts.get(row["status"], 0) + 1
        if argv.rows:
            with Path(argv.rows).open("a") as log:
                log.write(json.dumps(row) + "\n")
        if row["status"] in ("wrong", "error", "crash"):
            kind = "gradient" if row["gradients"] else "forward"
            say(
                f"{row['status']}: {row['name']} {row['variant']} {row['dtype']} {kind}: "
                f"{row['detail'][:300]}"
            )
    say(f"{counts} in {time.monotonic() - started:.0f} s")
    if argv.table:
        Path(argv.table).write_text(table(rows))
    return int(any(counts.get(s) for s in ("wrong", "error", "crash")))


if __name__ == "__main__":
    sys.exit(main())
