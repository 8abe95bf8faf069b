"""`python -m loadtest.chaos`: kill workers, compilers, nodes and gateways of a farm under load."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.chaos.clients import graphs
from loadtest.chaos.cluster import Nodes, simulated_cluster
from loadtest.chaos.storm import FAULTS, storm

_EXAMPLES = """\
examples:
  python -m loadtest.chaos --minutes 10               ten minutes on two simulated nodes
  python -m loadtest.chaos --rounds 1 --seed 7        one round that can be repeated

Ray listens on every interface: run it in an empty network namespace (.ci/offline). The exit status
is 1 if an accepted job was lost, an artifact published twice, or a process left behind.
"""
_JOBS = 24  # of a round


def main(argv: Sequence[str] | None = None) -> int:
    """0 when all held, 1 when something did not."""
    arguments = _arguments(argv)
    draw = random.Random(arguments.seed)
    ends = time.monotonic() + arguments.minutes * 60
    broken: list[str] = []
    with (
        simulated_cluster() as cluster,
        tempfile.TemporaryDirectory(prefix="fusec-chaos-") as folder,
    ):
        nodes = Nodes(cluster, arguments.cpus, draw)
        for _ in range(arguments.nodes):
            nodes.add()
        done = 0
        while done < arguments.rounds if arguments.rounds else time.monotonic() < ends:
            faults = draw.sample(FAULTS, len(FAULTS)) * 2
            account = storm(
                nodes,
                cluster.address,
                Path(folder),
                list(graphs(_JOBS, done * _JOBS)),
                faults,
                seconds=600.0,
                say=lambda text: print(f"  {text}", flush=True),
            )
            done += 1
            print(f"round {done}:", *account.lines(), sep="\n  ", flush=True)
            for why in account.why:
                if why.startswith("failed"):
                    print(f"  {why}")
            broken += account.broken()
    for text in broken:
        print(f"BROKEN: {text}", file=sys.stderr)
    return 1 if broken else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.chaos",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=5.0, help="begin rounds for so long")
    parser.add_argument("--rounds", type=int, default=0, help="a number of rounds instead")
    parser.add_argument("--nodes", type=int, default=2, help="simulated nodes")
    parser.add_argument("--cpus", type=int, default=1, help="tasks at once on each")
    parser.add_argument("--seed", type=int, default=0, help="of what is killed, and when")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
