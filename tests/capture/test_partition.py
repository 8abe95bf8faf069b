"""What crosses from the forward to the backward pass: few bytes, and never what would be wrong."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional

from fusec.capture import decompositions, pad_products, seams_aot
from fusec.capture.min_cut import UNLIMITED, FlowNetwork
from fusec.capture.partition import partition
from tests.capture.test_seams import boxed

# -- the cut ----------------------------------------------------------------------------------


def _cost(edges: Sequence[tuple[int, int, int]], late: frozenset[int]) -> int:
    return sum(c for a, b, c in edges if a not in late and b in late)


def test_cuts_are_minimal() -> None:
    """Against all cuts of random small graphs."""
    rng = random.Random(7)
    for _ in range(200):
        nodes = rng.randint(2, 7)
        edges = [
            (rng.randrange(nodes), rng.randrange(nodes), rng.choice((0, 1, 2, 5, 9)))
            for _ in range(rng.randint(0, 14))
        ]
        edges = [e for e in edges if e[0] != e[1]]
        late = FlowNetwork(nodes, edges).cut(0, 1)
        assert late is not None
        assert 1 in late
        assert 0 not in late
        inner = range(2, nodes)
        best = min(
            _cost(edges, frozenset((1, *side)))
            for size in range(nodes - 1)
            for side in itertools.combinations(inner, size)
        )
        assert _cost(edges, late) == best


def test_the_cut_nearest_to_the_sink_is_taken() -> None:
    edges = [(0, 2, 4), (2, 3, 4), (3, 1, 4)]
    assert FlowNetwork(4, edges).cut(0, 1) == {1}


def test_no_cut_through_unlimited_edges() -> None:
    assert FlowNetwork(3, [(0, 2, UNLIMITED), (2, 1, UNLIMITED)]).cut(0, 1) is None


def test_a_long_chain_is_cut_quickly() -> None:
    nodes = 20_000
    edges = [(i if i != 1 else nodes, i + 1, 5) for i in range(2, nodes - 1)]
    edges += [(0, 2, UNLIMITED), (nodes - 1, 1, 3)]
    assert FlowNetwork(nodes + 1, edges).cut(0, 1) == {1}


# -- what is saved ----------------------------------------------------------------------------


def saved(fn: Any, *inputs: Tensor, dynamic: bool | None = None) -> list[tuple[str, Any]]:
    """Name of the operator ("input" for an input) and fake tensor of all that a step saves."""
    found: list[tuple[str, Any]] = []
    torch.compile(fn, backend=_noting(found), dynamic=dynamic)(*inputs)
    return found


def _noting(found: list[tuple[str, Any]]) -> Any:
    """A backend that runs both passes eager, and notes what crosses as `saved` gives it."""

    def cut(joint: Any, fakes: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
        passes = partition(joint, fakes, num_fwd_outputs=num_fwd_outputs, **more)
        (output,) = passes[0].graph.find_nodes(op="output")
        for node in output.args[0][num_fwd_outputs:]:
            name = "input" if node.op == "placeholder" else node.target.__name__.split(".")[0]
            found.append((name, node.meta["val"]))
        return passes

    def backend(gm: torch.fx.GraphModule, args: Sequence[Any]) -> Any:
        return seams_aot.aot_module(
            gm,
            args,
            forward=lambda gm, _: boxed(gm),
            backward=lambda gm, _: boxed(gm),
            inference=lambda gm, _: boxed(gm),
            partition=cut,
            decompositions=decompositions.table(),
        )

    return backend


def _made(found: list[tuple[str, Any]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(value.shape)) for name, value in found if name != "input"]


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def _odd(node: torch.fx.Node, first: int) -> bool:
    return bool(node.meta["val"].shape[1] % 8)


@pytest.mark.parametrize("bias", [True, False])
def test_what_is_saved_of_a_padded_product_is_all_of_it(
    bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the products were large ones on a GPU: nothing is copied out of the longer rows."""
    monkeypatch.setattr(pad_products, "_slow", _odd)

    def step(x: Tensor, w: Tensor, b: Tensor, plain: Tensor, t: Tensor) -> Tensor:
        logits = functional.linear(x, w, b if bias else None)
        return functional.cross_entropy(logits, t) + (x @ plain).tanh().sum()

    given = (_x(32, 16), _x(30, 16), _x(30), _x(16, 13))
    t = torch.randint(30, (32,))
    found: list[tuple[str, Any]] = []
    loss = torch.compile(step, backend=_noting(found))(*given, t)
    made = {(shape, value.is_contiguous()) for (_, shape), (_, value) in
            zip(_made(found), [f for f in found if f[0] != "input"], strict=True)}  # fmt: skip
    assert {((32, 32), True), ((32, 16), True)} <= made
    assert not {(32, 30), (32, 13)} & {shape for shape, _ in made}
    wanted = step(*given, t)
    used = [x for x in given if bias or x.shape != (30,)]
    torch.testing.assert_close(loss, wanted)
    for mine, theirs in zip(
        torch.autograd.grad(loss, used), torch.autograd.grad(wanted, used), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("fn", [functional.gelu, functional.silu, torch.tanh, functional.mish])
def test_activations_are_computed_again_from_their_input(fn: Any) -> None:
    assert not _made(saved(lambda x: fn(x) * 2, _x(64, 64)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: functional.layer_norm(x, (64,), w),
        lambda x, w: functional.rms_norm(x, (64,), w),
        lambda x, w: torch.softmax(x * w, -1),
        lambda x, w: torch.log_softmax(x * w, -1),
    ],
)
def test_norms_save_numbers_of_rows(fn: Any) -> None:
    made = _made(saved(fn, _x(32, 64), _x(64)))
    assert made
    assert all(shape == (32, 1) for _, shape in made)


def test_cross_entropy_saves_numbers_of_rows() -> None:
    target = torch.randint(0, 64, (32,))
    made = _made(saved(lambda x: functional.cross_entropy(x, target), _x(32, 64)))
    assert sum(torch.Size(shape).numel() for _, shape in made) <= 3 * 32


def test_a_dropout_mask_is_saved_as_booleans() -> None:
    found = saved(lambda x: functional.dropout(x, 0.5, training=True).sin(), _x(64, 64))
    kinds = [value.dtype for name, value in found if name != "input"]
    assert torch.bool in kinds


def test_random_numbers_are_drawn_once() -> None:
    def fn(x: Tensor) -> Tensor:
        return (x * torch.rand_like(x)).exp()

    assert "rand_like" in [name for name, _ in saved(fn, _x(16, 16))]


def test_a_library_call_is_not_repeated() -> None:
    w = _x(64, 64)
    found = saved(lambda x: functional.gelu(x @ w).sin(), _x(32, 64))
    assert "mm" in [name for name, _ in found]


def test_what_a_library_call_reads_in_the_backward_pass_is_saved() -> None:
    w, v = _x(64, 256), _x(256, 64)
    made = _made(saved(lambda x: functional.gelu(x @ w) @ v, _x(32, 64)))
    assert sorted(made)[-1][1] == (32, 256)
    assert len(made) == 2  # the product and the activation that the next product's gradient reads


def test_residual_streams_are_not_computed_from_the_first_layer_on() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = x + layer(functional.silu(x))
            return x

    found = saved(Block(), _x(32, 64))
    held = sum(v.numel() for name, v in found if name != "input")
    assert held <= 6 * 2 * 32 * 64  # of each layer the stream and the product's operand


def test_an_input_that_changes_is_not_relied_on() -> None:
    state = torch.ones(64, 64)

    def fn(x: Tensor) -> Tensor:
        y = x * (state * 2)
        with torch.no_grad():
            state.add_(1)
        return y

    x = _x(64, 64)
    found = saved(fn, x)
    assert "mul" in [name for name, _ in found]


def test_symbolic_sizes() -> None:
    made = saved(lambda x: torch.softmax(x.reshape(-1, 16), -1), _x(8, 32), dynamic=True)
    assert all(isinstance(v, (Tensor, torch.SymInt)) for _, v in made)


def test_checkpoints_are_left_to_torch() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        def inner(x: Tensor) -> Tensor:
            return torch.sin(x @ w)

        y = torch.utils.checkpoint.checkpoint(inner, x, use_reentrant=False)
        assert isinstance(y, Tensor)
        return y.cos()

    assert "mm" not in [name for name, _ in saved(fn, _x(32, 64), _x(64, 64))]


def test_names_make_no_difference() -> None:
    def one(first: Tensor, second: Tensor) -> Tensor:
        product = first @ second
        return functional.gelu(product).softmax(-1)

    def two(zz: Tensor, aa: Tensor) -> Tensor:
        m = zz @ aa
        return functional.gelu(m).softmax(-1)

    a, b = _x(32, 64), _x(64, 64)
    first, second = saved(one, a, b), saved(two, a, b)
    assert [(n, v.shape) for n, v in first] == [(n, v.shape) for n, v in second]
