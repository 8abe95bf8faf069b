"""Which of the operators that models use most are calls of ATen, on a CPU and on a GPU, and why."""

from __future__ import annotations

from typing import Final

from fusec.ir.graph import Graph
from fusec.ir.loop import External
from fusec.lower.lowering import lower
from tests.lower.on_cpu import captured, cuda_graph
from tests.ops.ranked import CALLS

_BOTH: Final = frozenset(("cpu", "cuda"))
_CPU: Final = frozenset(("cpu",))

# Why -> where, and the operators. All others are loops alone.
CALLED: Final[dict[str, tuple[frozenset[str], str]]] = {
    "products, convolutions, transforms: what libraries are for": (
        _BOTH,
        (
            "aten.mm aten.bmm aten.addmm aten.convolution aten.convolution_backward "
            "aten._grouped_mm aten._scaled_dot_product_attention aten._fft_c2c"
        ),
    ),
    "sorted by a library": (_BOTH, "aten.sort aten.topk"),
    "places that may repeat: one thread's on a CPU, added atomically or looked for on a GPU": (
        _CPU,
        (
            "aten.index_put aten.index_add aten.scatter.src aten.scatter.value "
            "aten.scatter_add "
            "aten.max_pool2d_with_indices_backward"
        ),
    ),
    "bags and bins of unequal sizes": (_BOTH, "aten._embedding_bag aten.histc"),
    "drawn from eager's generator: the numbers on a CPU, a key on a GPU": (
        _BOTH,
        "aten.native_dropout aten.rand aten.randint",
    ),
    "complex numbers are ATen's": (_BOTH, "aten.view_as_complex aten.view_as_real"),
    "places in memory that no index of ours gives": (
        _BOTH,
        "aten.as_strided aten.as_strided_scatter",
    ),
    "made once, from nothing": (_BOTH, "aten.tril_indices"),
}


def called(graph: Graph) -> bool:
    """Whether anything but constants and checks of indices is left to ATen."""
    reasons = [s.reason for s in lower(graph).steps if isinstance(s, External)]
    return any(reason not in ("constant", "check") for reason in reasons)


def test_what_is_called_is_what_is_listed() -> None:
    found = {}
    for name, (fn, inputs) in CALLS.items():
        graph = captured(fn, inputs)
        graphs = {"cpu": graph, "cuda": cuda_graph(graph)}
        found[name] = frozenset(device for device, g in graphs.items() if called(g))
    listed = {name: where for where, names in CALLED.values() for name in names.split()}
    assert {name: where for name, where in found.items() if where} == listed
