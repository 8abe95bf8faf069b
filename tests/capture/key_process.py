"""Prints the keys of several models as JSON: run in fresh processes by test_key_stability.

argv: the module whose `make()` gives one of the models; the order, "forwards" or "backwards".
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch

from fusec.artifact.fingerprint import Fingerprint
from fusec.demo.models import build
from tests.capture.keys import Keys


def main() -> None:
    module, order = sys.argv[1:]
    model = importlib.import_module(module).make()
    subjects: list[tuple[str, Any, tuple[Any, ...], bool | None]] = [
        ("block", model, (torch.ones(4, 8),), None),
        ("dynamic", model, (torch.ones(4, 8),), True),
    ]
    for name in ("llama", "convnet"):
        example = build(name, layers=1, hidden=64, batch=2, length=16)
        subjects.append((name, example.model, example.inputs, None))
    if order == "backwards":
        subjects.reverse()
    result = {}
    for name, subject, inputs, dynamic in subjects:
        torch._dynamo.reset()
        keys = Keys(aot=True, toolchain_digest="0" * 64)
        torch.compile(subject, backend=keys, dynamic=dynamic)(*inputs)
        # The last attempt counts: Dynamo may trace again with numbers made constant.
        front = keys.fronts[-1]
        assert isinstance(front, Fingerprint), front
        result[name] = [front.entries, [k.entries for k in keys.graphs[-2:]]]
    sys.stdout.write(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
