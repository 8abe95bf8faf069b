"""docs/ops.md from the outcomes of all cases: one line an operator."""

from __future__ import annotations

from typing import Any, Final

_HEAD: Final = """\
# Operators

Made by `python -m tests.ops.opinfo`: torch's own samples for every operator, compiled by
fusec on a CPU and compared with eager. *native*: generated loops only. *library*: calls
on purpose what a library does better. *fallback*: calls ATen for want of a rule, inside
the compiled graph. *eager*: the graph cannot be compiled and runs eager. Each is right;
what is not stands under *wrong*. What an operator calls is that of float32, where it has
it; complex numbers are ATen's.

Differences from eager that are meant:

- An index out of range raises RuntimeError, also where eager raises IndexError; nothing
  is read there. The check is part of the program (`aten._assert_async`); on NVIDIA GPUs
  it is an assertion in the kernel, and on AMD GPUs indices are clamped unchecked.
- Half-precision arithmetic runs in float32 and rounds where a value is stored or cast;
  the option `strict_rounding` rounds after every operation, as eager does.
- `uint8` images are interpolated in float32, as torch itself breaks it down: a value can
  differ by one.
- Random numbers are eager's own: drawn by ATen, from its generator, in eager's order.

| operator | forward | gradient | dtypes | ATen calls |
|---|---|---|---|---|
"""
FAULTS: Final = ("crash", "wrong", "error", "slow")


def table(rows: list[dict[str, Any]]) -> str:
    """The page, of rows as `tests.ops.children` makes them."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_name.setdefault(row["name"], []).append(row)
    lines = []
    for name in sorted(by_name, key=str.lower):
        found = by_name[name]
        forward = [r for r in found if not r["gradients"] and r["status"] != "none"]
        backward = [r for r in found if r["gradients"] and r["status"] != "none"]
        if not forward and not backward:
            continue
        dtypes = list(dict.fromkeys(r["dtype"] for r in (*forward, *backward)))
        plain = [r for r in found if r["dtype"] == "float32" and r["status"] == "ok"] or found
        calls = sorted({c for r in plain for c in (*r.get("fallbacks", ()), *r.get("library", ()))})
        text = " ".join(c.removeprefix("aten.") for c in calls)
        lines.append(
            f"| {name} | {_kind(forward)} | {_kind(backward)} | {' '.join(dtypes)} | {text} |\n"
        )
    return _HEAD + "".join(lines)


def _kind(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    for status in FAULTS:
        if any(r["status"] == status for r in rows):
            return status
    if all(r["status"] == "eager" for r in rows):
        return "eager"
    plain = [r for r in rows if r["dtype"] == "float32"] or rows
    kinds = {
        "fallback" if r.get("fallbacks") else "library" if r.get("library") else "native"
        for r in plain
        if r["status"] == "ok"
    }
    return next((k for k in ("fallback", "library", "native") if k in kinds), "eager")
