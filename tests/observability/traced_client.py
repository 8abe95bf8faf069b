"""A training step in small, compiled through FUSEC_REMOTE: run as a process of its own."""

import sys

import torch

from fusec import api


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
    compiled = torch.compile(model, backend="fusec")
    compiled(torch.ones(4, 8)).sum().backward()
    counters = api.snapshot().counters
    assert counters.get("fallbacks_to_eager", 0) == 0, counters
    sys.stdout.write(f"{counters.get('farm_compiles', 0)} {counters.get('front_hits', 0)}")


if __name__ == "__main__":
    main()
