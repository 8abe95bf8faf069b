"""Integer expressions: sizes, strides and index arithmetic.

An `Expr` is immutable, interned (equal expressions are one object, so equality is identity) and
simplified when it is built. Sums are kept in the canonical form ``constant + Σ coefficient · atom``
where an atom is a symbol, a product, a floor division, a modulo, a minimum, a maximum or a
comparison. sympy stays at the border with torch: parsing and simplifying with it is slow.

Build expressions with the operators ``+ - * // %`` and with `minimum`, `maximum` and `compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeAlias
from weakref import WeakValueDictionary

_interned: WeakValueDictionary[tuple[object, ...], Expr] = WeakValueDictionary()


class Expr:
    """An integer-valued expression. Do not construct directly; see the module docstring."""

    __slots__ = ("__weakref__", "_bounds", "_order", "key")
    key: tuple[object, ...]
    _order: tuple[object, ...]
    _bounds: Bounds | None

    def __add__(self, other: ExprLike) -> Expr:
        return add(self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return add(other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return add(self, mul(-1, other))

    def __rsub__(self, other: ExprLike) -> Expr:
        return add(other, mul(-1, self))

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return mul(other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return mod(self, other)

    def __neg__(self) -> Expr:
        return mul(-1, self)

    def __repr__(self) -> str:
        return format_expr(self)

    def __reduce__(self) -> object:
        raise TypeError("expressions are serialised by fusec.ir.wire, never pickled")

    @property
    def order(self) -> tuple[object, ...]:
        """A sort key that depends on the structure alone, never on addresses or hash seeds."""
        return self._order


ExprLike: TypeAlias = "Expr | int"
Bounds: TypeAlias = "tuple[int | None, int | None]"


class Int(Expr):
    """An integer constant."""

    __slots__ = ("value",)
    value: int


class Sym(Expr):
    """A symbol. ``upper`` (exclusive) marks a loop axis: 0 <= symbol < upper. Without it the symbol
    is a size: at least ``lower``."""

    __slots__ = ("lower", "name", "upper")
    name: str
    upper: Expr | None
    lower: int


class Sum(Expr):
    """``const + Σ coefficient · atom``, atoms sorted by `order`, no coefficient zero."""

    __slots__ = ("const", "terms")
    const: int
    terms: tuple[tuple[Expr, int], ...]


class Product(Expr):
    """A product of two or more atoms (no constants), sorted by `order`."""

    __slots__ = ("factors",)
    factors: tuple[Expr, ...]


class Binary(Expr):
    """``//`` or ``%`` (floor semantics) or a comparison ``== != < <=`` (value 0 or 1)."""

    __slots__ = ("left", "op", "right")
    op: str
    left: Expr
    right: Expr


class Extremum(Expr):
    """``min`` or ``max`` of two or more expressions, sorted by `order`."""

    __slots__ = ("args", "op")
    op: str
    args: tuple[Expr, ...]


_RANK: Final = {Int: 0, Sym: 1, Product: 2, Binary: 3, Extremum: 4, Sum: 5}


def _intern(cls: type[Expr], key: tuple[object, ...], order: tuple[object, ...], **fields: object) -> Expr:
    found = _interned.get(key)
    if found is not None:
        return found
    node = object.__new__(cls)
    node.key = key
    node._order = (_RANK[cls], *order)
    node._bounds = None
    for name, value in fields.items():
        setattr(node, name, value)
    _interned[key] = node
    return node


def integer(value: int) -> Expr:
    return _intern(Int, ("int", value), (value,), value=value)


def symbol(name: str, lower: int = 0) -> Expr:
    """A size symbol: an integer not below ``lower``."""
    return _intern(Sym, ("sym", name, lower), (name,), name=name, upper=None, lower=lower)


def axis(name: str, upper: ExprLike) -> Expr:
    """A loop axis: 0 <= axis < upper."""
    bound = expr(upper)
    return _intern(Sym, ("axis", name, bound), (name, bound.order), name=name, upper=bound, lower=0)


def expr(value: ExprLike) -> Expr:
    if isinstance(value, Expr):
        return value
    return integer(int(value))


ZERO: Final = integer(0)
ONE: Final = integer(1)


def is_int(e: Expr) -> bool:
    return isinstance(e, Int)


def as_int(e: Expr) -> int | None:
    """The value of a constant expression, else None."""
    return e.value if isinstance(e, Int) else None


def linear_terms(e: Expr) -> tuple[int, tuple[tuple[Expr, int], ...]]:
    """``(constant, ((atom, coefficient), …))`` of any expression."""
    if isinstance(e, Int):
        return e.value, ()
    if isinstance(e, Sum):
        return e.const, e.terms
    return 0, ((e, 1),)


def from_terms(const: int, terms: Mapping[Expr, int]) -> Expr:
    kept = {a: c for a, c in terms.items() if c}
    _recombine(kept)
    extra = kept.pop(ZERO, None)
    assert extra is None
    nested = [a for a in kept if isinstance(a, (Sum, Int))]
    if nested:  # recombination can expose a sum: x//4*4 + x%4 with x a sum
        flat: dict[Expr, int] = {}
        total = const
        for atom, coefficient in kept.items():
            inner_const, inner = linear_terms(atom)
            total += coefficient * inner_const
            for a, c in inner:
                flat[a] = flat.get(a, 0) + coefficient * c
        return from_terms(total, flat)
    if not kept:
        return integer(const)
    ordered = tuple(sorted(kept.items(), key=lambda item: item[0].order))
    if const == 0 and len(ordered) == 1 and ordered[0][1] == 1:
        return ordered[0][0]
    order = (len(ordered), tuple((a.order, c) for a, c in ordered), const)
    return _intern(Sum, ("sum", const, ordered), order, const=const, terms=ordered)


def _recombine(terms: dict[Expr, int]) -> None:
    """``d·(x // d) + x % d`` → ``x``, in place."""
    for atom in [a for a in terms if isinstance(a, Binary) and a.op == "%"]:
        assert isinstance(atom, Binary)
        coefficient = terms.get(atom, 0)
        divisor = as_int(atom.right)
        if not coefficient or divisor is None:
            continue
        quotient = floordiv(atom.left, divisor)
        if isinstance(quotient, (Int, Sum)) or terms.get(quotient) != coefficient * divisor:
            continue
        del terms[atom], terms[quotient]
        terms[atom.left] = terms.get(atom.left, 0) + coefficient


def add(left: ExprLike, right: ExprLike) -> Expr:
    a, b = expr(left), expr(right)
    if a is ZERO:
        return b
    if b is ZERO:
        return a
    const_a, terms_a = linear_terms(a)
    const_b, terms_b = linear_terms(b)
    merged = dict(terms_a)
    for atom, coefficient in terms_b:
        merged[atom] = merged.get(atom, 0) + coefficient
    return from_terms(const_a + const_b, merged)


def total(values: Iterable[ExprLike]) -> Expr:
    result: Expr = ZERO
    for value in values:
        result = add(result, value)
    return result


def product(values: Iterable[ExprLike]) -> Expr:
    result: Expr = ONE
    for value in values:
        result = mul(result, value)
    return result


def _times(a: Expr, b: Expr) -> Expr:
    """The product of two atoms."""
    factors: list[Expr] = []
    for e in (a, b):
        factors.extend(e.factors if isinstance(e, Product) else (e,))
    factors.sort(key=lambda f: f.order)
    return _intern(
        Product,
        ("mul", tuple(factors)),
        (len(factors), tuple(f.order for f in factors)),
        factors=tuple(factors),
    )


def mul(left: ExprLike, right: ExprLike) -> Expr:
    a, b = expr(left), expr(right)
    if a is ONE:
        return b
    if b is ONE:
        return a
    const_a, terms_a = linear_terms(a)
    const_b, terms_b = linear_terms(b)
    merged: dict[Expr, int] = {}

    def put(atom: Expr, coefficient: int) -> None:
        merged[atom] = merged.get(atom, 0) + coefficient

    for atom, coefficient in terms_a:
        put(atom, coefficient * const_b)
    for atom, coefficient in terms_b:
        put(atom, coefficient * const_a)
    for atom_a, c_a in terms_a:
        for atom_b, c_b in terms_b:
            put(_times(atom_a, atom_b), c_a * c_b)
    return from_terms(const_a * const_b, merged)


def _divisible(atom: Expr, coefficient: int, divisor: Expr) -> tuple[Expr, int] | None:
    """``coefficient · atom / divisor`` as (atom, coefficient) where it is exact."""
    value = as_int(divisor)
    if value is not None:
        return (atom, coefficient // value) if coefficient % value == 0 else None
    divisor_const, divisor_terms = linear_terms(divisor)
    if divisor_const or len(divisor_terms) != 1:
        return None
    div_atom, div_coefficient = divisor_terms[0]
    if coefficient % div_coefficient:
        return None
    have = list(atom.factors) if isinstance(atom, Product) else [atom]
    for factor in div_atom.factors if isinstance(div_atom, Product) else (div_atom,):
        if factor not in have:
            return None
        have.remove(factor)
    rest = product(have)
    return rest, coefficient // div_coefficient


def _split(e: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """``(quotient, rest)`` with ``e == divisor · quotient + rest``, taking only exact terms."""
    const, terms = linear_terms(e)
    value = as_int(divisor)
    quotient: Expr = ZERO
    rest: dict[Expr, int] = {}
    rest_const = const
    if value is not None:
        quotient = integer(const // value)
        rest_const = const % value
    for atom, coefficient in terms:
        exact = _divisible(atom, coefficient, divisor)
        if exact is None:
            rest[atom] = coefficient
        else:
            quotient = add(quotient, mul(exact[0], exact[1]))
    return quotient, from_terms(rest_const, rest)


def below(e: Expr, limit: Expr) -> bool:
    """True when ``0 <= e < limit`` is certain."""
    low, high = bounds(e)
    if low is None or low < 0:
        return False
    value = as_int(limit)
    if value is not None and high is not None:
        return high < value
    return isinstance(e, Sym) and e.upper is limit


def _gcd_reduce(e: Expr, divisor: int) -> tuple[int, Expr, int] | None:
    """``(g, x, r)`` with ``e == g·x + r``, g | divisor, 0 <= r < g, g > 1."""
    const, terms = linear_terms(e)
    g = divisor
    for _, coefficient in terms:
        g = _gcd(g, abs(coefficient))
    if g <= 1:
        return None
    rest = const % g
    return g, from_terms((const - rest) // g, {a: c // g for a, c in terms}), rest


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def _binary(op: str, left: Expr, right: Expr) -> Expr:
    return _intern(Binary, (op, left, right), (op, left.order, right.order), op=op, left=left, right=right)


def floordiv(left: ExprLike, right: ExprLike) -> Expr:
    """Floor division. Raises ZeroDivisionError for a constant zero divisor."""
    a, b = expr(left), expr(right)
    if b is ONE:
        return a
    if b is ZERO:
        raise ZeroDivisionError(f"division of {a} by zero")
    va, vb = as_int(a), as_int(b)
    if va is not None and vb is not None:
        return integer(va // vb)
    if a is ZERO:
        return ZERO
    if vb is not None and vb < 0:
        return _binary("//", a, b)
    quotient, rest = _split(a, b)
    if below(rest, b):
        return quotient
    if quotient is not ZERO:
        return add(quotient, floordiv(rest, b))
    if vb is not None:
        reduced = _gcd_reduce(rest, vb)
        if reduced is not None:
            g, inner, _ = reduced
            return floordiv(inner, vb // g)
        if isinstance(rest, Binary) and rest.op == "//":
            inner_divisor = as_int(rest.right)
            if inner_divisor is not None and inner_divisor > 0:
                return floordiv(rest.left, inner_divisor * vb)
    return _binary("//", rest, b)


def mod(left: ExprLike, right: ExprLike) -> Expr:
    """The remainder of floor division: for a positive divisor, in [0, divisor)."""
    a, b = expr(left), expr(right)
    if b is ZERO:
        raise ZeroDivisionError(f"remainder of {a} by zero")
    if b is ONE:
        return ZERO
    va, vb = as_int(a), as_int(b)
    if va is not None and vb is not None:
        return integer(va % vb)
    if vb is not None and vb < 0:
        return _binary("%", a, b)
    _, rest = _split(a, b)
    if below(rest, b):
        return rest
    if vb is not None:
        reduced = _gcd_reduce(rest, vb)
        if reduced is not None:
            g, inner, remainder = reduced
            return add(mul(g, mod(inner, vb // g)), remainder)
        if isinstance(rest, Binary) and rest.op == "%":
            inner_divisor = as_int(rest.right)
            if inner_divisor is not None and inner_divisor % vb == 0:
                return mod(rest.left, vb)
    return _binary("%", rest, b)


def _extremum(op: str, values: Iterable[ExprLike]) -> Expr:
    flat: set[Expr] = set()
    const: int | None = None
    pick = min if op == "min" else max
    for value in values:
        e = expr(value)
        for part in e.args if isinstance(e, Extremum) and e.op == op else (e,):
            number = as_int(part)
            if number is None:
                flat.add(part)
            else:
                const = number if const is None else pick(const, number)
    if const is not None:
        # Drop what the constant decides: for max, a part that never exceeds it; or the constant
        # itself where one part always reaches it. For min the other way round.
        kept: set[Expr] = set()
        constant_needed = True
        for part in flat:
            low, high = bounds(part)
            reaches = low is not None and low >= const if op == "max" else high is not None and high <= const
            never = high is not None and high <= const if op == "max" else low is not None and low >= const
            if reaches:
                constant_needed = False
            if reaches or not never:
                kept.add(part)
        flat = kept
        if constant_needed or not flat:
            flat = flat | {integer(const)}
    args = tuple(sorted(flat, key=lambda e: e.order))
    if len(args) == 1:
        return args[0]
    return _intern(Extremum, (op, args), (op, tuple(a.order for a in args)), op=op, args=args)


def minimum(*values: ExprLike) -> Expr:
    return _extremum("min", values)


def maximum(*values: ExprLike) -> Expr:
    return _extremum("max", values)


_COMPARE: Final[dict[str, Callable[[int, int], bool]]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}


def compare(op: str, left: ExprLike, right: ExprLike) -> Expr:
    """A comparison (``== != < <= > >=``) with value 0 or 1, decided where bounds allow."""
    a, b = expr(left), expr(right)
    if op in (">", ">="):
        return compare("<" if op == ">" else "<=", b, a)
    difference = a - b
    value = as_int(difference)
    if value is not None:
        return integer(int(_COMPARE[op](value, 0)))
    low, high = bounds(difference)
    if op in ("<", "<="):
        edge = 0 if op == "<" else 1
        if high is not None and high < edge:
            return ONE
        if low is not None and low >= edge:
            return ZERO
        coarse = _coarsen(difference, op)
        if coarse is not None:
            return compare(op, coarse, 0)
    elif (low is not None and low > 0) or (high is not None and high < 0):
        return ONE if op == "!=" else ZERO
    return _binary(op, a, b)


def _coarsen(difference: Expr, op: str) -> Expr | None:
    """``g·q + r < 0`` → ``q < 0`` and ``g·q - r <= 0`` → ``q <= 0``, where 0 <= r < g."""
    const, terms = linear_terms(difference)
    for g in sorted({abs(c) for _, c in terms if abs(c) > 1}, reverse=True):
        quotient = {a: c // g for a, c in terms if c % g == 0}
        rest = {a: c for a, c in terms if c % g}
        if not rest and const % g == 0:
            continue  # nothing but a common factor; leave the form alone
        if op == "<":
            r = from_terms(const % g, rest)
            q = from_terms(const // g, quotient)
        else:
            r = mul(-1, from_terms(-((-const) % g), rest))
            q = from_terms(-((-const) // g), quotient)
        if below(r, integer(g)):
            return q
    return None


def bounds(e: Expr) -> Bounds:
    """Inclusive ``(low, high)``; None where unbounded or unknown."""
    if e._bounds is None:
        e._bounds = _bounds(e)
    return e._bounds


def _bounds(e: Expr) -> Bounds:
    if isinstance(e, Int):
        return e.value, e.value
    if isinstance(e, Sym):
        if e.upper is None:
            return e.lower, None
        high = bounds(e.upper)[1]
        return 0, None if high is None else max(high - 1, 0)
    if isinstance(e, Sum):
        low: int | None = e.const
        high = e.const
        for atom, coefficient in e.terms:
            a_low, a_high = bounds(atom)
            if coefficient < 0:
                a_low, a_high = a_high, a_low
            low = None if low is None or a_low is None else low + coefficient * a_low
            high = None if high is None or a_high is None else high + coefficient * a_high
        return low, high
    if isinstance(e, Product):
        low, high = 1, 1
        for factor in e.factors:
            f_low, f_high = bounds(factor)
            if f_low is None or f_low < 0:
                return None, None
            low = low * f_low
            high = None if high is None or f_high is None else high * f_high
        return low, high
    if isinstance(e, Binary):
        return _binary_bounds(e)
    assert isinstance(e, Extremum)
    pairs = [bounds(a) for a in e.args]
    lows = [p[0] for p in pairs if p[0] is not None]
    highs = [p[1] for p in pairs if p[1] is not None]
    whole = len(pairs)
    if e.op == "min":
        return (min(lows) if len(lows) == whole else None), (min(highs) if highs else None)
    return (max(lows) if lows else None), (max(highs) if len(highs) == whole else None)


def _binary_bounds(e: Binary) -> Bounds:
    if e.op in _COMPARE:
        return 0, 1
    low, high = bounds(e.left)
    divisor = as_int(e.right)
    if e.op == "%":
        if divisor is not None and divisor > 0:
            top = divisor - 1
            return 0, top if low is None or low < 0 or high is None else min(top, high)
        right_low, right_high = bounds(e.right)
        if right_low is not None and right_low >= 0:
            return 0, None if right_high is None else max(right_high - 1, 0)
        return None, None
    if divisor is not None and divisor > 0:
        return (None if low is None else low // divisor), (None if high is None else high // divisor)
    right_low = bounds(e.right)[0]
    if low is not None and low >= 0 and right_low is not None and right_low >= 1:
        return 0, high
    return None, None


def children(e: Expr) -> tuple[Expr, ...]:
    if isinstance(e, Sum):
        return tuple(atom for atom, _ in e.terms)
    if isinstance(e, Product):
        return e.factors
    if isinstance(e, Binary):
        return e.left, e.right
    if isinstance(e, Extremum):
        return e.args
    return ()


def symbols(e: Expr) -> Iterator[Sym]:
    """Every symbol of an expression, with repetitions, depth first."""
    stack = [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Sym):
            yield node
        stack.extend(reversed(children(node)))


def substitute(e: Expr, mapping: Mapping[Expr, Expr]) -> Expr:
    """Replace symbols (or whole atoms) and simplify again."""
    if not mapping:
        return e
    hit = mapping.get(e)
    if hit is not None:
        return hit
    if isinstance(e, (Int, Sym)):
        return e
    if isinstance(e, Sum):
        result = integer(e.const)
        for atom, coefficient in e.terms:
            result = add(result, mul(coefficient, substitute(atom, mapping)))
        return result
    if isinstance(e, Product):
        return product(substitute(f, mapping) for f in e.factors)
    if isinstance(e, Binary):
        left, right = substitute(e.left, mapping), substitute(e.right, mapping)
        if e.op == "//":
            return floordiv(left, right)
        if e.op == "%":
            return mod(left, right)
        return compare(e.op, left, right)
    assert isinstance(e, Extremum)
    return _extremum(e.op, [substitute(a, mapping) for a in e.args])


def evaluate(e: Expr, values: Mapping[str, int]) -> int:
    """The value of an expression with its symbols bound by name. Raises KeyError for an unbound one."""
    if isinstance(e, Int):
        return e.value
    if isinstance(e, Sym):
        return values[e.name]
    if isinstance(e, Sum):
        return e.const + sum(c * evaluate(a, values) for a, c in e.terms)
    if isinstance(e, Product):
        result = 1
        for factor in e.factors:
            result *= evaluate(factor, values)
        return result
    if isinstance(e, Binary):
        left, right = evaluate(e.left, values), evaluate(e.right, values)
        if e.op == "//":
            return left // right
        if e.op == "%":
            return left % right
        return int(_COMPARE[e.op](left, right))
    assert isinstance(e, Extremum)
    pick = min if e.op == "min" else max
    return pick(evaluate(a, values) for a in e.args)


def format_expr(e: Expr) -> str:
    """Infix text that `fusec.ir.text.parse_expr` reads back."""
    if isinstance(e, Int):
        return str(e.value)
    if isinstance(e, Sym):
        return e.name
    if isinstance(e, Sum):
        parts: list[str] = []
        for atom, coefficient in e.terms:
            body = _operand(atom)
            text = body if abs(coefficient) == 1 else f"{abs(coefficient)}*{body}"
            sign = "-" if coefficient < 0 else "+"
            parts.append(text if not parts and sign == "+" else f"-{text}" if not parts else f" {sign} {text}")
        if e.const:
            parts.append(f" {'-' if e.const < 0 else '+'} {abs(e.const)}")
        return "".join(parts)
    if isinstance(e, Product):
        return "*".join(_operand(f) for f in e.factors)
    if isinstance(e, Binary):
        return f"{_operand(e.left)} {e.op} {_operand(e.right)}"
    assert isinstance(e, Extremum)
    return f"{e.op}({', '.join(format_expr(a) for a in e.args)})"


def _operand(e: Expr) -> str:
    text = format_expr(e)
    return text if isinstance(e, (Sym, Extremum)) or (isinstance(e, Int) and e.value >= 0) else f"({text})"
