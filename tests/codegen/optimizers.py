"""Steps of optimizers over many parameters, as graphs."""

from __future__ import annotations

from collections.abc import Sequence


def adamw(sizes: Sequence[str], *, clipped: bool = False) -> str:
    """AdamW over f32 parameters of those sizes; everything but the gradients is overwritten.

    clipped: gradients are first divided by the root of the sum of all their squares.
    """
    lines = [f'%{i} = input "x{i}": f32[{sizes[i // 4]}]' for i in range(4 * len(sizes))]

    def call(name: str, arguments: str, size: str) -> int:
        lines.append(f"%{len(lines)} = call aten.{name}({arguments}): f32[{size}]")
        return len(lines) - 1

    gradients = [4 * i + 1 for i in range(len(sizes))]
    if clipped:
        squares = [
            call("sum.default", f"%{call('mul.Tensor', f'%{g}, %{g}', size)}", "")
            for g, size in zip(gradients, sizes, strict=True)
        ]
        total = squares[0]
        for square in squares[1:]:
            total = call("add.Tensor", f"%{total}, %{square}", "")
        norm = call("sqrt.default", f"%{total}", "")
        gradients = [
            call("div.Tensor", f"%{g}, %{norm}", size)
            for g, size in zip(gradients, sizes, strict=True)
        ]
    for i, (g, size) in enumerate(zip(gradients, sizes, strict=True)):
        p, m, v = 4 * i, 4 * i + 2, 4 * i + 3
        decayed = call("mul.Tensor", f"%{p}, 0.99", size)
        first = call("lerp.Scalar", f"%{m}, %{g}, 0.1", size)
        kept = call("mul.Tensor", f"%{v}, %{v}", size)  # never negative, whatever the input
        second = call("addcmul.default", f"%{kept}, %{g}, %{g}, value=0.001", size)
        root = call("add.Tensor", f"%{call('sqrt.default', f'%{second}', size)}, 0.001", size)
        new = call("addcdiv.default", f"%{decayed}, %{first}, %{root}, value=-0.001", size)
        for old, value in ((p, new), (m, first), (v, second)):
            call("copy_.default", f"%{old}, %{value}", size)
    return "\n".join([*lines, "return", ""])
