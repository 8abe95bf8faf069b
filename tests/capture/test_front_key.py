"""The front key: every change that matters moves it and has a name; the rest does not move it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fusec.artifact.fingerprint import diff
from fusec.capture import callables, seams
from fusec.options import Options, Target
from tests.capture.keys import Keys

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


def f(x: Tensor, y: Tensor) -> Tensor:
    return functional.gelu(x + y * 2.0).sum(-1)


X, Y = torch.ones(4, 6), torch.ones(4, 6)


def strided(*shape: int) -> Tensor:
    return torch.ones(tuple(reversed(shape))).permute(*reversed(range(len(shape))))


def other_constant(x: Tensor, y: Tensor) -> Tensor:
    return functional.gelu(x + y * 2.5).sum(-1)


def other_type_of_constant(x: Tensor, y: Tensor) -> Tensor:
    return functional.gelu(x + y * 2).sum(-1)


def other_operator(x: Tensor, y: Tensor) -> Tensor:
    return functional.silu(x + y * 2.0).sum(-1)


def other_argument(x: Tensor, y: Tensor) -> Tensor:
    return functional.gelu(x + y * 2.0).sum(-2)


def other_keyword(x: Tensor, y: Tensor) -> Tensor:
    return functional.gelu(x + y * 2.0, approximate="tanh").sum(-1)


def other_order(x: Tensor, y: Tensor) -> Tensor:
    return functional.gelu((x + y) * 2.0).sum(-1)


def other_outputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = functional.gelu(x + y * 2.0)
    return z.sum(-1), z


@pytest.mark.parametrize(
    "other",
    [
        other_constant,
        other_type_of_constant,
        other_operator,
        other_argument,
        other_keyword,
        other_order,
        other_outputs,
    ],
)
def test_the_graph_is_in_the_key(other: Callable[..., Any]) -> None:
    assert diff(Keys().of(f, X, Y), Keys().of(other, X, Y)) == ("graph",)


def with_grad(t: Tensor) -> Tensor:
    return t.clone().requires_grad_()


INPUTS = {
    "shape": (torch.ones(5, 6), torch.ones(5, 6)),
    "dtype": (X.double(), Y.double()),
    "stride": (strided(4, 6), Y),
    "offset": (torch.ones(25)[1:].view(4, 6), Y),
    "requires_grad": (with_grad(X), Y),
    "requires_grad of the other": (X, with_grad(Y)),
    "parameter": (nn.Parameter(X.clone()), Y),
    "no leaf": (with_grad(X) * 1, Y),
}


def test_inputs_are_in_the_key() -> None:
    keys = {n: Keys().of(f, *args) for n, args in (INPUTS | {"base": (X, Y)}).items()}
    for name in INPUTS:
        assert diff(keys["base"], keys[name]) == ("inputs",), name
    assert len({k.hex for k in keys.values()}) == len(keys)


def test_complex_flags_are_in_the_key() -> None:
    def g(z: Tensor) -> Tensor:
        return z * 2

    z = torch.complex(torch.ones(4), torch.ones(4))
    keys = [Keys().of(g, z), Keys().of(g, z.conj()), Keys().of(g, z.conj().imag)]
    assert len({k.hex for k in keys}) == 3


def test_sharing_memory_is_in_the_key() -> None:
    base = torch.ones(8, 6)
    apart = Keys().of(f, torch.ones(8, 6)[:4], torch.ones(8, 6)[:4])
    shared = Keys().of(f, base[:4], base[:4].view(4, 6))
    assert diff(apart, shared) == ("aliasing",)


@contextlib.contextmanager
def setting(set_: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    set_(value)
    try:
        yield
    finally:
        set_(before)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "autocast to half": lambda: torch.autocast("cpu", torch.float16),
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "matmul": lambda: setting(torch.set_float32_matmul_precision, "medium", "highest"),
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
}


@pytest.mark.parametrize("name", STATES)
def test_global_state_is_in_the_key(name: str) -> None:
    x = torch.ones(4, 6)
    before = Keys().of(f, x, Y)
    with STATES[name]():
        assert "state" in diff(before, Keys().of(f, x, Y))
    assert Keys().of(f, x, Y) == before


def test_settings_of_functorch_are_in_the_key() -> None:
    before = Keys().of(f, X, Y)
    with torch._functorch.config.patch(activation_memory_budget=0.5):
        assert diff(before, Keys().of(f, X, Y)) == ("functorch",)


def test_target_options_and_toolchain_are_in_the_key() -> None:
    before = Keys().of(f, X, Y)
    others = {
        "target": Keys(target=Target("cpu", "x86-64-v4")),
        "options": Keys(options=Options(fusion=False)),
        "toolchain": Keys(toolchain_digest="1" * 64),
    }
    for name, keys in others.items():
        assert diff(before, keys.of(f, X, Y)) == (name,)


def test_the_table_of_decompositions_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Keys().of(f, X, Y)
    monkeypatch.setattr("fusec.capture.decompositions.version", lambda: "another")
    assert diff(before, Keys().of(f, X, Y)) == ("decompositions",)


def test_symbols_their_ranges_and_guards_are_in_the_key() -> None:
    def below_100(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] < 100 else x

    def below_200(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] < 200 else x

    def plain(x: Tensor) -> Tensor:
        return x * 2

    def even(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] % 2 == 0 else x

    x = torch.ones(8, 6)
    keys = [
        Keys().of(plain, x),
        Keys().of(plain, x, dynamic=True),
        Keys().of(below_100, x, dynamic=True),
        Keys().of(below_200, x, dynamic=True),
        Keys().of(even, x, dynamic=True),
    ]
    assert len({k.hex for k in keys}) == len(keys)
    for other in keys[2:]:
        assert diff(keys[1], other) == ("symbols",)


def test_names_of_symbols_are_not_in_the_key() -> None:
    """torch numbers symbols by the names of variables."""

    def one(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x * 2, y])

    def two(different: Tensor, names: Tensor) -> Tensor:
        return torch.cat([different * 2, names])

    args = torch.ones(4, 6), torch.ones(7, 6)
    assert Keys().of(one, *args, dynamic=True) == Keys().of(two, *args, dynamic=True)


def test_names_of_modules_are_not_in_the_key() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x).relu()

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.deep = nn.ModuleDict({"er": nn.Linear(6, 6)})

        def forward(self, hidden: Tensor) -> Tensor:
            result = self.deep["er"](hidden)
            return result.relu()

    assert Keys().of(One(), X) == Keys().of(Two(), X)


def test_values_of_tensors_are_not_in_the_key() -> None:
    assert Keys().of(f, X, Y) == Keys().of(f, X * 3, Y - 1)


def test_unknown_functions_have_no_key() -> None:
    @torch.compiler.allow_in_graph
    def mine(x: Tensor) -> Tensor:
        return x * 2

    assert "not known" in Keys().reason(lambda x: mine(x) + 1, X)


def test_higher_order_operators_have_no_key() -> None:
    def g(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    with torch.no_grad():
        assert Keys().reason(g, X)


def test_operators_of_other_libraries_have_no_key() -> None:
    @torch.library.custom_op("fusec_test::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return x * 2

    double.register_fake(lambda x: torch.empty_like(x))
    assert "not known" in Keys().reason(lambda x: double(x) + 1, X)


def test_sizes_that_the_data_decides_have_no_key() -> None:
    def g(x: Tensor) -> Tensor:
        return x.nonzero().sin()

    keys = Keys()
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(g, backend=keys)(X)
    # The graph itself is fine: nothing that comes in has such a size.
    assert len(keys.fronts) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("saved_tensor_hooks_active", True),
        ("functorch_active", True),
        ("compiled_autograd_active", True),
        ("expects_fake_outputs", True),
        ("custom_passes_installed", True),
        ("python_modes", 1),
    ],
)
def test_surroundings_rule_a_key_out(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seams, name, lambda: value)
    assert Keys().reason(f, X, Y)


def test_known_functions_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function put in place of torch's own has no name."""
    assert callables.name_of(torch.add) == "torch.add"
    assert callables.name_of(functional.gelu) is not None
    assert callables.name_of(math.sqrt) == "math.sqrt"
    assert callables.name_of(torch.compile) is None
    assert callables.name_of(lambda x: x) is None
    assert callables.name_of([]) is None

    def gelu(x: Tensor) -> Tensor:
        return x

    monkeypatch.setattr(functional, "gelu", gelu)
    callables._names.cache_clear()
    try:
        assert callables.name_of(gelu) is None
    finally:
        monkeypatch.undo()
        callables._names.cache_clear()


def test_computing_a_key_is_fast() -> None:
    """Under 20 ms for a 16-layer Llama on an idle machine; here with room for a busy one."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.LayerNorm(32)
            self.qkv = nn.Linear(32, 96)
            self.out = nn.Linear(32, 32)
            self.up = nn.Linear(32, 64)
            self.down = nn.Linear(64, 32)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
            a = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(a.transpose(1, 2).flatten(2))
            return x + self.down(functional.silu(self.up(self.norm(x))))

    seen: list[tuple[Any, Any]] = []

    def keep(gm: Any, inputs: Any) -> Any:
        for _ in range(3):
            start = time.perf_counter()
            keys = Keys()
            keys(gm, inputs)
            seen.append((time.perf_counter() - start, keys.fronts[0]))
        return gm.forward

    model = nn.Sequential(*(Layer() for _ in range(16)))
    torch.compile(model, backend=keep)(torch.ones(2, 8, 32))
    assert len({front.hex for _, front in seen}) == 1
    assert min(seconds for seconds, _ in seen) < 0.06
