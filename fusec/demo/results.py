"""What a demo process hands back: a JSON file of numbers and a folder of raw tensors.

Raw bytes and their description, not torch's own format, which is a pickle.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from torch import Tensor

# dtype's name -> dtype; what a result may hold.
_DTYPES = {str(d).split(".")[1]: d for d in (torch.float64, torch.float32, torch.bfloat16)}


@dataclass(frozen=True)
class Times:
    """Seconds of one process. train and infer: each call's, the first of which compiles."""

    train: list[float] = field(default_factory=list)
    infer: list[float] = field(default_factory=list)
    imports: float = 0.0

    @property
    def steady(self) -> float:
        """One training step and one inference when nothing is left to compile."""
        return min(self.train) + min(self.infer)

    @property
    def first(self) -> float:
        """The first training step and the first inference: what a start costs."""
        return self.train[0] + self.infer[0]


@dataclass(frozen=True)
class Result:
    """One process's run. stages: seconds by stage; counters: by name (see fusec/trace.py)."""

    times: Times
    stages: Mapping[str, float]
    counters: Mapping[str, int]
    tensors: Mapping[str, Tensor]


def write(result: Result, folder: Path) -> None:
    """Write a result into an existing folder."""
    described = {}
    with (folder / "tensors.bin").open("wb") as file:
        for name, tensor in result.tensors.items():
            flat = tensor.detach().contiguous().flatten().view(torch.uint8)
            described[name] = {
                "offset": file.tell(),
                "shape": list(tensor.shape),
                "dtype": str(tensor.dtype).split(".")[1],
            }
            file.write(flat.numpy().tobytes())
    numbers = {
        "times": asdict(result.times),
        "stages": dict(result.stages),
        "counters": dict(result.counters),
        "tensors": described,
    }
    (folder / "result.json").write_text(json.dumps(numbers, indent=1))


def read(folder: Path) -> Result:
    """Read what `write` wrote."""
    numbers = json.loads((folder / "result.json").read_text())
    data = bytearray((folder / "tensors.bin").read_bytes())
    tensors = {}
    for name, entry in numbers["tensors"].items():
        count = math.prod(entry["shape"])
        dtype = _DTYPES[entry["dtype"]]
        flat = torch.empty(0, dtype=dtype)
        if count:
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=entry["offset"])
        tensors[name] = flat.reshape(entry["shape"])
    return Result(Times(**numbers["times"]), numbers["stages"], numbers["counters"], tensors)
