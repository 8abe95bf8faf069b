"""Prints the keys of several models as JSON: run in fresh processes by test_key_stability.

argv: the module whose `make()` gives one of the models; the names of the models, in order.
"""

from __future__ import annotations

import importlib
import json
import sys

import torch

from fusec.artifact.fingerprint import Fingerprint
from fusec.demo.models import build
from tests.capture.keys import Keys


def main() -> None:
    module, *names = sys.argv[1:]
    model = importlib.import_module(module).make()
    result = {}
    for name in names:
        subject, inputs, dynamic = model, (torch.ones(4, 8),), name == "dynamic" or None
        if name not in ("block", "dynamic"):
            example = build(name, layers=1, hidden=64, batch=2, length=16)
            subject, inputs = example.model, example.inputs
        torch._dynamo.reset()
        keys = Keys(aot=True, toolchain_digest="0" * 64)
        torch.compile(subject, backend=keys, dynamic=dynamic)(*inputs)
        # The last attempt counts: Dynamo may trace again with numbers made constant.
        front = keys.fronts[-1]
        assert isinstance(front, Fingerprint), front
        result[name] = [front.entries, [k.entries for k in keys.graphs[-2:]]]
    assert "torch._inductor.lowering" not in sys.modules, "capturing a graph has loaded Inductor"
    sys.stdout.write(json.dumps(result, sort_keys=True))


if __name__ == "__main__":
    main()
