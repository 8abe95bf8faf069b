"""One test a seam: a new release of torch shows here first which private thing moved."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fusec.capture import seams, seams_aot, seams_joint
from fusec.capture.seams_aot import SimpleForward, TangentLayout

PACKAGE = Path(seams.__file__).parents[1]

# Dynamo itself looks at the gradient of every input.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def run(compiler: Any, fn: Any, *args: Any, dynamic: bool | None = None) -> None:
    torch.compile(fn, backend=compiler, dynamic=dynamic)(*args)


def inside(look: Any, fn: Any = torch.sin, *args: Any, dynamic: bool | None = None) -> Any:
    """What `look()` says while Dynamo calls a backend."""
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        seen.append(look())
        return gm.forward

    run(backend, fn, *(args or (torch.ones(3, 4),)), dynamic=dynamic)
    return seen[-1]


def forward_of(fn: Any, *args: Any, dynamic: bool | None = None) -> SimpleForward | str:
    """What `simple_forward` says about a function."""
    seen: list[SimpleForward | str] = []

    def compiler(training: bool) -> Any:
        def compile_one(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
            count = len(list(gm.graph.nodes)[-1].args[0])
            seen.append(seams_aot.simple_forward(count, training))
            return boxed(gm)

        return compile_one

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return seams_aot.aot_module(
            gm,
            inputs,
            forward=compiler(True),
            backward=lambda gm, _: boxed(gm),
            inference=compiler(False),
            partition=seams_joint.torch_partition,
            decompositions={},
        )

    run(backend, fn, *args, dynamic=dynamic)
    return seen[-1]


def boxed(gm: torch.fx.GraphModule) -> Any:
    def call(args: list[Any]) -> Any:
        return gm(*args)

    call._boxed_call = True  # type: ignore[attr-defined]
    return call


def test_private_torch_is_touched_nowhere_else() -> None:
    """Private modules of torch, and private names below `torch`, stand in the seams alone; what
    serves Inductor is a seam as a whole."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name.startswith(("seams", "inductor.py")) or "demo" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            elif isinstance(node, ast.Attribute) and ast.unparse(node).startswith("torch._"):
                names = [ast.unparse(node)]
            found += [f"{path.name}: {n}" for n in names if n.startswith("torch._")]
    assert not found


def test_disable() -> None:
    def inner(x: Tensor) -> Tensor:
        assert not torch.compiler.is_compiling()
        return x * 2

    seams.disable(inner)(torch.ones(2))


def test_no_modes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), seams.no_modes():
        assert torch.ones(2).tolist() == [1.0, 1.0]


def test_is_plain() -> None:
    class Sub(torch.Tensor):
        pass

    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.ones(2)
    plain = [torch.ones(2), nn.Parameter(torch.ones(2)), fake, nn.BatchNorm1d(2).running_mean]
    assert all(seams.is_plain(t) for t in plain if t is not None)
    assert not seams.is_plain(torch.ones(2).as_subclass(Sub))


def test_mark_dynamic_makes_the_next_graph_dynamic() -> None:
    x = torch.ones(4, 3)
    seams.mark_dynamic(x, frozenset({0}))
    env = inside(lambda: len(seams.shape_env().var_to_range), torch.sin, x)
    assert env == 1


def test_expects_fake_outputs() -> None:
    assert inside(seams.expects_fake_outputs) is False
    assert not seams.expects_fake_outputs()


def test_compiled_autograd_active() -> None:
    assert not seams.compiled_autograd_active()
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert seams.compiled_autograd_active()
    from torch._dynamo import compiled_autograd

    with compiled_autograd._enable(lambda gm: gm):
        assert seams.compiled_autograd_active()


def test_shape_env_and_ranges() -> None:
    assert seams.shape_env() is None
    x = torch.ones(6, 4)

    def fn(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] < 50 else x

    def look() -> Any:
        env = seams.shape_env()
        ranges = [seams.ranges_in(env)(s) for s in env.var_to_range]
        return sorted(map(str, ranges)), [str(g.rel_op) for g in seams.guards_in(env) if g.args]

    ranges, guards = inside(look, fn, x, dynamic=True)
    assert "(2, 49)" in ranges
    assert "(2, None)" in ranges
    assert guards == ["<"]


def test_ranges_of_no_symbol() -> None:
    assert seams.ranges_of([3])(None) == (None, None)


def test_shape_promises_grow_with_guards() -> None:
    def look() -> Any:
        env = seams.shape_env()
        before = seams.shape_promises()
        same = seams.shape_promises()
        size = next(iter(env.var_to_range))
        assert bool(env.create_symintnode(size, hint=6) > 3)
        return before == same, before == seams.shape_promises()

    assert inside(look, torch.sin, torch.ones(6, 4), dynamic=True) == (True, False)


def test_is_unbacked() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    assert seams.is_unbacked(ShapeEnv().create_unbacked_symint())
    assert not seams.is_unbacked(3)


def test_saved_tensor_hooks_active() -> None:
    assert not seams.saved_tensor_hooks_active()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert seams.saved_tensor_hooks_active()


def test_functorch_active() -> None:
    seen: list[bool] = []

    def fn(x: Tensor) -> Tensor:
        seen.append(seams.functorch_active())
        return x

    fn(torch.ones(2))
    torch.vmap(fn)(torch.ones(2))
    assert seen == [False, True]


def test_autocast() -> None:
    assert not seams.any_autocast()
    with torch.autocast("cpu", torch.bfloat16):
        assert seams.any_autocast()
        with seams.disable_autocast():
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_functorch_settings() -> None:
    names = dict(seams.functorch_settings())
    known = set(vars(torch._functorch.config)["_config"])
    # Settings that no release had would be a slip of the pen.
    assert {n for n in names if n not in known} <= {"partitioner_pass", "enable_complex_wrapper"}
    with torch._functorch.config.patch(aggressive_recomputation=True):
        assert dict(seams.functorch_settings()) != names


def test_shape_settings() -> None:
    names = dict(seams.shape_settings())
    assert names["use_duck_shape"] == "True"
    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        assert dict(seams.shape_settings()) != names


def test_custom_passes_installed() -> None:
    assert not seams.custom_passes_installed()
    with torch._functorch.config.patch(joint_custom_pass=lambda g, i: g):
        assert seams.custom_passes_installed()


def test_storage_of() -> None:
    x = torch.ones(4)
    assert seams.storage_of(x) == seams.storage_of(x[1:])
    assert seams.storage_of(x) != seams.storage_of(x.clone())


def test_states() -> None:
    assert isinstance(seams.fills_uninitialized_memory(), bool)
    assert isinstance(seams.mkldnn_enabled(), bool)
    assert not seams.has_names(torch.ones(2))


def test_python_modes() -> None:
    assert seams.python_modes() == 0
    from torch.utils._python_dispatch import TorchDispatchMode

    with TorchDispatchMode():
        assert seams.python_modes() == 1
    with torch.device("meta"):
        assert seams.python_modes() == 1
    assert inside(seams.python_modes) == 0


def test_native_functions() -> None:
    assert {"linear", "pad", "gelu"} <= set(vars(seams.native_functions()))


def test_functions_of_dynamo() -> None:
    names = dict(seams.functions_of_dynamo())
    assert {"_set_grad_enabled", "_enter_autocast", "_exit_autocast"} <= set(names)


def test_decompositions() -> None:
    table = seams.core_decompositions()
    assert torch.ops.aten.addcmul.default in table
    assert table is not seams.core_decompositions()
    assert torch.ops.aten.gelu.default in seams.registered_decompositions([torch.ops.aten.gelu])


def test_simple_forward_of_inference() -> None:
    got = forward_of(lambda x, y: (x + y, x.argmax()), torch.ones(3), torch.ones(3))
    assert isinstance(got, SimpleForward)
    assert (got.inputs, len(got.outputs)) == (2, 2)
    assert (got.saved_checked, got.saved_unchecked, got.saved_symbols) == (0, 0, 0)
    assert got.tangents == ()


def test_simple_forward_of_training() -> None:
    x, w = torch.ones(2, 3, requires_grad=True), torch.ones(3, requires_grad=True)
    got = forward_of(lambda x, w: ((x * w).sin(), x.detach() > 0), x, w)
    assert isinstance(got, SimpleForward)
    assert [(o.is_tensor, o.requires_grad) for o in got.outputs] == [(True, True), (True, False)]
    assert got.saved_checked + got.saved_unchecked >= 2
    (layout,) = got.tangents
    # Releases differ in what they record for static shapes.
    assert layout in (
        TangentLayout(None, (2, 3), (3, 1)),
        TangentLayout(torch.contiguous_format),
    )


def test_simple_forward_with_symbols() -> None:
    x = torch.ones(5, 3, requires_grad=True)
    got = forward_of(lambda x: x.sum(0) / x.shape[0], x, dynamic=True)
    assert isinstance(got, SimpleForward)
    assert got.saved_symbols >= 1
    (layout,) = got.tangents
    assert layout.memory_format is torch.contiguous_format
    grown = forward_of(lambda x: x * 2, torch.ones(5, 3, requires_grad=True), dynamic=True)
    assert isinstance(grown, SimpleForward)
    assert grown.outputs[0].dynamic_dims == {0, 1}


def test_simple_forward_knows_what_a_graph_writes() -> None:
    def fn(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    got = forward_of(fn, torch.ones(3), torch.ones(3))
    assert isinstance(got, SimpleForward)
    assert got.mutated == (0,)
    assert got.bumped == (0,)


@pytest.mark.parametrize("kind", ["alias of input", "alias of output", "mutation with history"])
def test_what_is_not_simple(kind: str) -> None:
    x = torch.ones(3, requires_grad=True)
    if kind == "alias of input":
        got = forward_of(lambda x: (x.view(1, 3), x.sin()), torch.ones(3))
    elif kind == "alias of output":
        got = forward_of(lambda x: ((y := x.sin()), y[1:]), x)
    else:
        got = forward_of(lambda x: x.mul_(2).sin(), torch.ones(3, requires_grad=True) * 1)
    assert isinstance(got, str)


def test_simple_forward_outside_a_compilation() -> None:
    assert seams_aot.simple_forward(1, True) == "no record of AOTAutograd"


def test_release_saved_and_undefined_gradients() -> None:
    seen: list[Any] = []

    class Fn(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            ctx.save_for_backward(x)
            constant = x.detach() * 2
            ctx.mark_non_differentiable(constant)
            seams.leave_constant_gradients_undefined(ctx)
            return x * 2, constant

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            seen.append((ctx.saved_tensors[0].shape, grads[1]))
            seams.release_saved(ctx)
            return grads[0] * 2

    x = torch.ones(3, requires_grad=True)
    Fn.apply(x)[0].sum().backward()
    assert seen == [(torch.Size([3]), None)]


def test_without_output_check() -> None:
    """A subclass goes through the first call of a graph, as it does through all others."""

    class Sub(torch.Tensor):
        pass

    def compile_one(gm: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        def call(args: list[Any]) -> Any:
            with seams_aot.without_output_check():
                return gm(*args)

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return seams_aot.aot_module(
            gm,
            inputs,
            forward=compile_one,
            backward=compile_one,
            inference=compile_one,
            partition=seams_joint.torch_partition,
            decompositions={},
        )

    run(backend, lambda x: x.sin() * 2, torch.ones(2).as_subclass(Sub))


def test_sizes_are_compared_without_a_guard() -> None:
    def look() -> Any:
        env = seams.shape_env()
        a, b = (env.create_unbacked_symint() for _ in range(2))
        before = seams.shape_promises()
        found = [seams.surely_equal(*pair) for pair in ((a, a), (a, b), (a, 3), (3, 3), (3, 4))]
        assert seams.shape_promises() == before
        return found

    assert inside(look) == [True, False, False, True, False]


def test_fake_tensors_have_no_memory() -> None:
    with seams.fake_mode():
        made = torch.empty(1 << 50, device="meta").new_empty(1 << 50, device="cpu")
    assert seams.is_plain(made)
    assert made.device.type == "cpu"


def test_python_modes_leaves_fake_tensors_out() -> None:
    with seams.fake_mode():
        assert seams.is_fake(torch.ones(2))
        assert seams.python_modes() == 0
        with torch.device("meta"):
            assert seams.python_modes() == 1
    assert not seams.is_fake(torch.ones(2))


def test_what_splits_joint_graphs() -> None:
    """torch's private function takes what `split_joint` gives it, and needs nothing else."""
    made = inspect.signature(seams_joint.partitioners._extract_fwd_bwd_modules).parameters.values()
    given = {"joint_module", "saved_values", "saved_sym_nodes", "num_fwd_outputs"}
    assert given <= {p.name for p in made}
    assert {p.name for p in made if p.default is p.empty} <= given


def test_special_joint_graphs_are_torchs() -> None:
    """A setting of the user's, a tag, a collective or a sub-graph: not ours to cut."""
    import torch._functorch.config as config

    graph = torch.fx.Graph()
    node = graph.placeholder("primals_1")
    node.meta["val"] = torch.ones(2)
    graph.output((node,))
    joint = torch.fx.GraphModule({}, graph)
    assert not seams_joint.torch_partitions(joint)
    with config.patch(activation_memory_budget=0.5):
        assert seams_joint.torch_partitions(joint)
    node.meta["recompute"] = 1
    assert seams_joint.torch_partitions(joint)
    del node.meta["recompute"]
    node.meta["val"] = object()
    assert seams_joint.torch_partitions(joint)


def test_sizes_of_values() -> None:
    assert seams_joint.size_in_bytes(torch.ones(3, 4, dtype=torch.float64)) == 96
    assert seams_joint.size_in_bytes(torch.ones(3, 4).bool()) == 12
    assert seams_joint.size_in_bytes(None) is None
    seen: list[int | None] = []

    def backend(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        values = [n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")]
        seen.append(next(seams_joint.size_in_bytes(v) for v in values if isinstance(v, Tensor)))
        return gm.forward

    run(backend, torch.sin, torch.ones(5, 4), dynamic=True)
    first = seen[-1]
    torch._dynamo.reset()
    run(backend, torch.sin, torch.ones(50, 40), dynamic=True)
    assert seen[-1] == first  # a key must not depend on the size that came first
