"""torch's own operator samples, all of them: compiled by fusec, compared with eager, tabulated.

    python -m tests.ops.opinfo --table docs/ops.md  every operator and dtype, forward and gradients;
                                                    writes the table
    python -m tests.ops.opinfo --ops 'cumsum|nn.*pool' --dtypes float32 --samples 20
    python -m tests.ops.opinfo --rows rows.jsonl    goes on where it was stopped: what is in the
                                                    file already, of these sources, is not run again

The operators run in child processes; one that crashes or takes too long is noted and the rest goes
on. Samples that make equal graphs are compiled once, and equal kernels are built once for all.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusec.artifact.fingerprint import toolchain
from tests.ops.children import Case, run_cases
from tests.ops.table import FAULTS, table

DTYPES = (
    "float32 float64 bfloat16 float16 int64 int32 int16 int8 uint8 bool complex64 complex128 "
    "uint16 uint32 uint64 float8_e4m3fn float8_e5m2"
).split()


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def cases(pattern: str, dtypes: Sequence[str], *, cheap: bool) -> list[Case]:
    """What torch's list has of these operators and element types on a CPU.

    cheap: of both forms of an operator the one with gradients, which compares the results too;
    float32 has both, since the table says of each what it calls.
    """
    import torch
    from torch.testing._internal.common_methods_invocations import op_db

    from tests.ops.cases import SKIPPED

    found = []
    for name in dtypes:
        for info in op_db:
            if not re.fullmatch(pattern, info.name) or info.name in SKIPPED:
                continue
            dtype = getattr(torch, name)
            both = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
            left_out = cheap and both and name != "float32"
            if dtype in info.supported_dtypes("cpu") and not left_out:
                found.append(Case(info.name, info.variant_test_name, name, False))
            if both:
                found.append(Case(info.name, info.variant_test_name, name, True))
    return found


def earlier(path: Path, *, older: bool) -> dict[Case, dict[str, Any]]:
    """The rows of a file by case, the last of each.

    older: also what was right with other sources.
    """
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        row = json.loads(line)
        if row["source"] == toolchain() or (older and row["status"] not in FAULTS):
            found[Case(*(row[f] for f in Case._fields))] = row
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ops", default=".*", help="regular expression over operator names")
    parser.add_argument("--dtypes", nargs="*", default=DTYPES)
    parser.add_argument(
        "--cheap", action="store_true",
        help="no forward of its own where an operator has gradients, but for float32",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, default=6, help="distinct graphs at most a case")
    parser.add_argument("--workers", type=int, default=1, help="processes at once")
    parser.add_argument("--limit-s", type=float, default=300, help="seconds at most a case")
    parser.add_argument("--table", help="write the table to this file")
    parser.add_argument("--rows", help="outcomes, one JSON a line; those in it are not run again")
    parser.add_argument(
        "--keep-older", action="store_true",
        help="count also what was right with other sources: runs only what failed and what is new",
    )  # fmt: skip
    parser.add_argument("--kernels", help="keep the kernels in this folder, for the next run")
    argv = parser.parse_args()
    wanted = cases(argv.ops, argv.dtypes, cheap=argv.cheap)
    known = earlier(Path(argv.rows), older=argv.keep_older) if argv.rows else {}
    rows = [known[case] for case in wanted if case in known]
    waiting = [case for case in wanted if case not in known]
    say(f"{len(wanted)} cases, {len(rows)} known, {len(waiting)} to run")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for row in run_cases(
            waiting, workers=argv.workers, samples=argv.samples, store=argv.kernels or folder,
            limit_s=argv.limit_s,
        ):  # fmt: skip
            row["source"] = toolchain()
            rows.append(row)
            if argv.rows:
                with Path(argv.rows).open("a") as log:
                    log.write(json.dumps(row) + "\n")
            _report(row, len(rows), len(wanted))
    counts = Counter(row["status"] for row in rows)
    say(f"{dict(counts)} in {time.monotonic() - started:.0f} s")
    if argv.table:
        Path(argv.table).write_text(table(rows))
    return int(any(counts[s] for s in FAULTS))


def _report(row: dict[str, Any], done: int, of: int) -> None:
    if row["status"] in FAULTS:
        kind = "gradient" if row["gradients"] else "forward"
        say(
            f"{row['status']}: {row['name']} {row['variant']} {row['dtype']} {kind}: "
            f"{row['detail'][:300]}"
        )
    elif done % 200 == 0:
        say(f"{done} of {of}")


if __name__ == "__main__":
    sys.exit(main())
