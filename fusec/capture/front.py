"""The front key: on the graph that Dynamo hands over, before AOTAutograd runs.

A hit must be as right as a miss, so the key has in it all that AOTAutograd's result depends on, and
where that cannot be told for certain the graph is ineligible: AOTAutograd runs and the graph key
serves. Names, stack traces, device ordinals and torch's own symbol names are never hashed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from fusec.artifact.fingerprint import Fingerprint, capture_digest, fingerprint
from fusec.capture import decompositions, seams
from fusec.capture.callables import name_of
from fusec.capture.dtypes import to_attr
from fusec.capture.shape_guards import GuardTable
from fusec.errors import CaptureUnsupported
from fusec.options import Options, Target

FRONT_FORMAT: Final = 1

# Attributes of tensors that are operators under another name.
_PROPERTIES: Final = frozenset({"H", "T", "imag", "mH", "mT", "real"})


@dataclass(frozen=True)
class Ineligible:
    """There is no sound front key for a graph; reason says why."""

    reason: str


class _StepAsideError(Exception):
    """Raised inside this module where the key would not be sound."""


def front_key(
    gm: torch.fx.GraphModule,
    inputs: Sequence[Any],
    target: Target,
    options: Options,
    toolchain_digest: str,
) -> Fingerprint | Ineligible:
    """The front key of Dynamo's graph, or why there is none.

    inputs: the example inputs that Dynamo passes to a backend.
    """
    try:
        _check_surroundings()
        encoder = _Encoder()
        types = encoder.inputs(gm, inputs)
        nodes = encoder.nodes(gm)
        return fingerprint(
            {
                "format": FRONT_FORMAT,
                "graph": nodes,
                "inputs": types,
                "aliasing": _aliasing(inputs),
                "symbols": encoder.guards.ranges_and_guards(),
                "state": _state(),
                "functorch": seams.functorch_settings() + seams.shape_settings(),
                "decompositions": decompositions.version(),
                "capture": capture_digest(),
                "target": sorted(target.to_wire().items()),
                "options": sorted((k, repr(v)) for k, v in options.key_entries().items()),
                "toolchain": toolchain_digest,
            }
        )
    except (_StepAsideError, CaptureUnsupported) as reason:
        return Ineligible(str(reason))


def _check_surroundings() -> None:
    """Raise where code outside the graph takes part in what AOTAutograd makes of it."""
    for active, what in (
        (seams.saved_tensor_hooks_active(), "hooks on saved tensors are active"),
        (seams.functorch_active(), "a functorch transform is active"),
        (seams.compiled_autograd_active(), "compiled autograd is active"),
        (seams.expects_fake_outputs(), "the first call passes fake tensors"),
        (seams.custom_passes_installed(), "a custom pass is installed in AOTAutograd"),
        (seams.python_modes() > 0, "a mode of torch's Python dispatch is active"),
        (torch.jit.is_tracing(), "torch.jit is tracing"),
    ):
        if active:
            raise _StepAsideError(what)


def _state() -> list[object]:
    """Global state that AOTAutograd's tracing or the operators' choice of kernels depends on."""
    cuda = torch.backends.cuda
    return [
        ["grad", torch.is_grad_enabled()],
        ["inference", torch.is_inference_mode_enabled()],
        [
            "autocast",
            torch.is_autocast_cache_enabled(),
            *(
                [kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind))]
                for kind in ("cpu", "cuda")
            ),
        ],
        [
            "deterministic",
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            seams.fills_uninitialized_memory(),
        ],
        ["matmul", torch.get_float32_matmul_precision()],
        ["dtype", str(torch.get_default_dtype())],
        ["device", torch.get_default_device().type],
        [
            "attention",
            cuda.flash_sdp_enabled(),
            cuda.mem_efficient_sdp_enabled(),
            cuda.math_sdp_enabled(),
            cuda.cudnn_sdp_enabled(),
        ],
        ["cudnn", torch.backends.cudnn.enabled, torch.backends.cudnn.deterministic],
        ["mkldnn", seams.mkldnn_enabled()],
    ]


def _aliasing(inputs: Sequence[Any]) -> list[int]:
    """Number of the storage behind each input, by first use; -1 for an input that is no tensor."""
    seen: dict[int, int] = {}
    return [
        seen.setdefault(seams.storage_of(x), len(seen)) if isinstance(x, torch.Tensor) else -1
        for x in inputs
    ]


class _Encoder:
    """Dynamo's graph as plain values."""

    def __init__(self) -> None:
        self.guards = GuardTable()
        self.index: dict[torch.fx.Node, int] = {}
        self.ordinals: dict[str, int | None] = {}

    def inputs(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> list[object]:
        placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
        if len(placeholders) != len(inputs):
            raise _StepAsideError("the graph's inputs are not the ones given")
        tensors = [id(x) for x in inputs if isinstance(x, torch.Tensor)]
        if len(tensors) != len(set(tensors)):
            raise _StepAsideError("one tensor is given as two inputs")
        return [
            self._input(n.meta.get("example_value"), value)
            for n, value in zip(placeholders, inputs)
        ]

    def _input(self, traced: Any, value: Any) -> object:
        """traced: the fake tensor or symbolic number behind a placeholder; value: the real one."""
        if isinstance(value, torch.Tensor):
            return self._tensor(traced if isinstance(traced, torch.Tensor) else value, value)
        if isinstance(traced, torch.SymInt):
            return ["int", self.guards.encode(traced)]
        if type(value) is int and (traced is None or type(traced) is int):
            return ["int", value]
        raise _StepAsideError(f"an input is a {type(value).__name__}")

    def _tensor(self, traced: torch.Tensor, value: torch.Tensor) -> object:
        if not (seams.is_plain(value) and seams.is_plain(traced)):
            raise _StepAsideError(f"an input is a {type(value).__name__}")
        if value.layout is not torch.strided or value.is_quantized or seams.has_names(value):
            raise _StepAsideError("an input is no plain strided tensor")
        encode = self.guards.encode
        return [
            str(traced.dtype),
            [encode(s) for s in traced.shape],
            [encode(s) for s in traced.stride()],
            encode(traced.storage_offset()),
            self._device(traced.device),
            value.requires_grad,
            value.is_leaf,
            isinstance(value, torch.nn.Parameter),
            value.is_conj(),
            value.is_neg(),
            value.is_inference(),
            value._is_view(),
        ]

    def _device(self, device: torch.device) -> str:
        """The kind of device. Which of several is not hashed, so there must be only one."""
        known = self.ordinals.setdefault(device.type, device.index)
        if known != device.index and None not in (known, device.index):
            raise _StepAsideError(f"the graph uses two {device.type} devices")
        return device.type

    def nodes(self, gm: torch.fx.GraphModule) -> list[object]:
        rows: list[object] = []
        for i, n in enumerate(gm.graph.nodes):
            self.index[n] = i
            if n.op == "placeholder":
                rows.append("in")
            elif n.op in ("call_function", "call_method"):
                rows.append([n.op, self._target(n), self._arg(n.args), self._arg(n.kwargs)])
            elif n.op == "output":
                rows.append(["out", self._arg(n.args)])
            else:
                raise _StepAsideError(f"the graph has a {n.op} node")
        return rows

    def _target(self, n: torch.fx.Node) -> str:
        for tag in ("recompute", "ac_graph_id", "custom"):
            if n.meta.get(tag):
                raise _StepAsideError(f"a node is tagged {tag!r}")
        if n.op == "call_method":
            if hasattr(torch.Tensor, str(n.target)):
                return str(n.target)
            raise _StepAsideError(f"a method is called that is no tensor's: {n.target}")
        name = name_of(n.target)
        if n.target is getattr and len(n.args) == 2 and n.args[1] in _PROPERTIES:
            name = "getattr"
        if name is None:
            raise _StepAsideError(f"a function is called that is not known: {n.target}")
        return name

    def _arg(self, value: Any) -> object:
        kind = type(value)
        if kind is torch.fx.Node:
            return ["%", self.index[value]]
        if value is None or kind in (bool, str):
            return value
        if kind is int:
            return value if -(1 << 63) <= value < 1 << 63 else ["big", str(value)]
        if kind is float:
            return ["f", value.hex()]
        if isinstance(value, (list, tuple)):
            return ["l" if isinstance(value, list) else "t", *map(self._arg, value)]
        if isinstance(value, dict):
            return ["d", *([self._arg(k), self._arg(value[k])] for k in sorted(value, key=str))]
        if isinstance(value, torch.device):
            return ["dev", self._device(value)]
        if kind is slice:
            return ["s", *map(self._arg, (value.start, value.stop, value.step))]
        if value is Ellipsis:
            return ["..."]
        if kind is complex:
            return ["c", value.real.hex(), value.imag.hex()]
        if isinstance(value, torch.SymInt):
            return ["sym", self.guards.encode(value)]
        attr = to_attr(value)
        if attr is not None:
            return ["a", attr.kind, attr.name]
        raise _StepAsideError(f"an argument is a {kind.__name__}")
