"""Graph → LoopProgram.

Before: ATen operations with typed values. After: computations over buffers, and external calls for
what a library does better and for what has no rule. Views cost nothing: they are index maps.
"""

from __future__ import annotations

from typing import Final

from fusec.errors import LoweringError
from fusec.ir import expr as ex
from fusec.ir.expr import Expr
from fusec.ir.graph import Graph, Node, Ref, ScalarType, TensorType
from fusec.ir.loop import Buffer, LoopProgram
from fusec.ir.remember import remember
from fusec.ir.verify_device import verify_device
from fusec.ir.verify_loop import verify_program
from fusec.lower.context import Lowering, Value, computable
from fusec.lower.creation import CREATION
from fusec.lower.foreach import FOREACH
from fusec.lower.gather import GATHER
from fusec.lower.gemm import GEMM
from fusec.lower.indexing import INDEXING
from fusec.lower.numbers import symbolic_number
from fusec.lower.outputs import output
from fusec.lower.pointwise import POINTWISE
from fusec.lower.pooling import POOLING
from fusec.lower.random import DRAWING, RANDOM
from fusec.lower.reductions import REDUCTIONS
from fusec.lower.rules import Rule
from fusec.lower.scans import SCANNING
from fusec.lower.scatter import SCATTER
from fusec.lower.strided import STRIDED
from fusec.lower.view import whole
from fusec.lower.views import MOVING, VIEWS

RULES: Final[dict[str, Rule]] = {
    **POINTWISE,
    **VIEWS,
    **REDUCTIONS,
    **CREATION,
    **INDEXING,
    **GATHER,
    **STRIDED,
    **RANDOM,
    **FOREACH,
    **SCANNING,
    **SCATTER,
    **POOLING,
    **GEMM,
}

# What a library does better than loops of ours, or where no rule takes it (scatters of single
# elements on a CPU, windows of unknown size): not counted as missing.
LIBRARY: Final = frozenset(
    f"aten.{name}"
    for name in (
        "scatter scatter_add scatter_reduce index_put _unsafe_index_put index_add index_copy "
        "index_fill index_reduce put embedding_dense_backward _embedding_bag "
        "_embedding_bag_forward_only _embedding_bag_backward _embedding_bag_dense_backward "
        "_unsafe_masked_index_put_accumulate masked_scatter unfold_backward "
        "max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices "
        "max_pool3d_with_indices_backward avg_pool2d avg_pool2d_backward avg_pool3d "
        "avg_pool3d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward adaptive_max_pool2d "
        "adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward "
        "fractional_max_pool2d fractional_max_pool2d_backward max_unpool2d max_unpool3d "
        "upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d "
        "upsample_linear1d_backward upsample_trilinear3d upsample_trilinear3d_backward "
        "upsample_bicubic2d upsample_bicubic2d_backward upsample_nearest2d_backward "
        "grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward "
        "im2col col2im reflection_pad1d_backward reflection_pad2d_backward "
        "reflection_pad3d_backward replication_pad2d_backward replication_pad3d_backward "
        "histc bincount searchsorted bucketize "
        "median nanmedian kthvalue mode addmv addbmm addr _cdist_forward _cdist_backward "
        "_pdist_forward _pdist_backward _trilinear _grouped_mm _ctc_loss _ctc_loss_backward "
        "mm addmm bmm baddbmm mv dot linear convolution convolution_backward _int_mm _scaled_mm "
        "_scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_fft_c2c _fft_r2c _fft_c2r sort topk"
    ).split()
) | frozenset(f"fusec.attention{suffix}" for suffix in ("", "_training", "_dropout", "_backward"))


def lower(graph: Graph, *, strict_rounding: bool = False) -> LoopProgram:
    """The loops of a graph. Raises LoweringError where not even an external call can be made, and
    VerifyError for a graph that computes on two devices."""
    verify_device(graph)
    low = Lowering(graph, strict_rounding=strict_rounding)
    inputs: list[int | Expr | None] = []
    for position, node in enumerate(graph.nodes):
        low.position = position
        if node.op == "input":
            value, slot = _input(low, node)
            inputs.append(slot)
            low.values.append(value)
        elif node.op == "const":
            low.values.append(low.external(node, "constant"))
        else:
            low.values.append(_call(low, node))
    outputs = tuple(output(low, arg) for arg in graph.outputs)
    program = LoopProgram(
        tuple(low.buffers), tuple(low.steps), tuple(inputs), outputs, graph.symbols
    )
    verify_program(program)
    return program


def _input(low: Lowering, node: Node) -> tuple[Value, int | Expr | None]:
    if isinstance(node.type, TensorType):
        t = node.type
        buffer = low.new_buffer(Buffer(t.dtype, t.shape, t.stride, "input"))
        return whole(buffer, t.dtype, t.shape), buffer
    if isinstance(node.type, ScalarType):
        return node.type.value, node.type.value
    return None, None


def _call(low: Lowering, node: Node) -> Value:
    if node.target == "py.getitem":
        source = low.value(node.args[0])
        if not isinstance(source, tuple) or not isinstance(node.args[1], int):
            raise LoweringError(f"{low.where()}: takes an item of something that is no tuple")
        return source[node.args[1]]
    if isinstance(node.type, ScalarType):
        return _symbolic(low, node)
    packet = _packet(node.target)
    rule = RULES.get(node.target) or RULES.get(packet)
    if rule is None or not _native(low, node):
        library = "library" if packet in LIBRARY else "fallback"
        return low.external(node, "random" if packet in DRAWING else library)
    return rule(low, node)


@remember
def _packet(target: str) -> str:
    """`aten.add` of `aten.add.Tensor`."""
    return ".".join(target.split(".")[:2])


def _native(low: Lowering, node: Node) -> bool:
    """Whether every tensor of a node has an element type that loops can compute with."""
    packet = _packet(node.target)
    if (node.target in VIEWS or packet in VIEWS or packet == "aten.as_strided") and (
        packet not in MOVING
    ):
        return True
    types = [low.graph.nodes[r.index].type for r in _refs(node)]
    types += list(node.type) if isinstance(node.type, tuple) else [node.type]
    return all(computable(t.dtype) for t in types if isinstance(t, TensorType))


def _refs(node: Node) -> list[Ref]:
    found: list[Ref] = []
    stack: list[object] = [*node.args, *(v for _, v in node.kwargs)]
    while stack:
        item = stack.pop()
        if isinstance(item, Ref):
            found.append(item)
        elif isinstance(item, tuple):
            stack.extend(item)
    return found


def _symbolic(low: Lowering, node: Node) -> Value:
    """A number computed from sizes: its type carries the expression already."""
    assert isinstance(node.type, ScalarType)
    if node.type.value is not None:
        number = ex.as_int(node.type.value)
        return node.type.value if number is None else number
    if node.target == "aten.sym_size.int":
        source = low.view(node.args[0])
        assert isinstance(node.args[1], int)
        return source.shape[node.args[1]]
    return symbolic_number(low, node)
