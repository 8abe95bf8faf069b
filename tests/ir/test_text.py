"""The text form of graphs and expressions parses back; errors name line and column."""

from __future__ import annotations

import random

import pytest

from fusec.errors import ParseError, VerifyError
from fusec.ir import expr as ex
from fusec.ir.expr import format_expr
from fusec.ir.text import format_graph, parse_expr, parse_graph
from fusec.ir.wire import graph_from_bytes, graph_to_bytes
from tests.ir.expressions import AXES, SIZES, build, leaf, random_tree
from tests.ir.graphs import random_graph

_SAMPLE = """\
symbol s0 in [2, 1024]
symbol s1 in [0, inf]
%0 = input "x": f32[s0, 4]
%1 = const "table"(hex "0000803f"): f32[1]
%2 = call aten.add.Tensor(%0, %1, alpha=2.5): f32[s0, 4] stride [1, s0]
%3 = call aten.var_mean.correction(%2, [-1], keepdim=true): (f32[s0, 1], none, int(s0 // 2))
%4 = call aten._to_copy.default(%2, dtype:bf16, -inf, <max(s0, 3*s1)>): bf16[s0] @cuda offset (s1)
return %4, <s0 < s1>, none
"""


def test_a_graph_as_a_person_writes_it() -> None:
    graph = parse_graph(_SAMPLE)
    assert [n.target for n in graph.nodes][2:] == [
        "aten.add.Tensor",
        "aten.var_mean.correction",
        "aten._to_copy.default",
    ]
    assert format_graph(graph) == _SAMPLE
    spread = _SAMPLE.replace("(", "(\n   ").replace(", ", "  ,  # why\n") + "# the end"
    assert format_graph(parse_graph(spread)) == _SAMPLE


def test_graphs_round_trip() -> None:
    for seed in range(1500):
        graph = random_graph(seed)
        text = format_graph(graph)
        again = parse_graph(text)
        assert graph_to_bytes(again) == graph_to_bytes(graph), (seed, text)
        assert format_graph(again) == text


def test_wire_round_trips() -> None:
    for seed in range(1500):
        data = graph_to_bytes(random_graph(seed))
        assert graph_to_bytes(graph_from_bytes(data)) == data


def test_expressions_round_trip() -> None:
    names = {name: leaf(name) for name in (*SIZES, *AXES)}
    rng = random.Random(11)
    for _ in range(4000):
        tree = random_tree(rng, 4)
        try:
            made = build(tree)
        except ZeroDivisionError:
            continue
        assert parse_expr(format_expr(made), names) is made, (tree, made)


def test_names_are_sizes_where_none_are_given() -> None:
    assert parse_expr("s0*3 + 1") is ex.symbol("s0") * 3 + 1
    assert parse_expr("min(a, b) % 4 != -(2 - c) // 2") is ex.compare(
        "!=",
        ex.minimum(ex.symbol("a"), ex.symbol("b")) % 4,
        -((2 - ex.symbol("c")) // 2),
    )


@pytest.mark.parametrize(
    ("text", "line", "column"),
    [
        ("", 1, 1),
        ("%0 = input x\nreturn", 1, 12),
        ('%1 = input "x"\nreturn', 1, 1),
        ('%0 = input "x": f33[4]\nreturn', 1, 17),
        ('%0 = input "x": f32[4] stride [1, 1]\nreturn', 1, 31),
        ('%0 = input "x": f32[s0]\nreturn', 1, 21),
        ('%0 = input "x"\n%1 = call aten.add.Tensor(a=1, %0)\nreturn', 2, 32),
        ('%0 = input "x"\nreturn %0,', 2, 11),
        ('%0 = input "x" $', 1, 16),
        ("symbol s in [0, 3]\nsymbol s in [0, 3]\nreturn", 2, 8),
        ('%0 = const "x"(hex "0g")\nreturn', 1, 20),
        ('%0 = const "\\q"(hex "00")\nreturn', 1, 12),
        ("return <1 // 0>", 1, 11),
        ("return nan(0x12)", 1, 12),
        ("return -none", 1, 9),
        ("return " + "[" * 100, 1, 8 + 64),
        ("return <" + "(" * 100, 1, 9 + 64),
        ("return %0 %0", 1, 11),
        ("return 1.5.2", 1, 11),
    ],
)
def test_errors_name_the_place(text: str, line: int, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_graph(text)
    assert (caught.value.line, caught.value.column) == (line, column), caught.value
    assert f"line {line}, column {column}" in str(caught.value)


def test_a_graph_that_breaks_its_invariants_is_refused() -> None:
    with pytest.raises(VerifyError, match="not before it"):
        parse_graph("%0 = call aten.neg.default(%0)\nreturn %0")
    with pytest.raises(VerifyError, match="does not exist"):
        parse_graph("return %3")


def test_any_damage_to_a_text_is_an_error_of_ours() -> None:
    rng = random.Random(3)
    for seed in range(300):
        text = format_graph(random_graph(seed))
        for _ in range(5):
            at = rng.randrange(len(text))
            broken = (
                text[:at] + rng.choice(["", "(", "%", '"', "0", "=", " x ", "\n"]) + text[at + 1 :]
            )
            try:
                parse_graph(broken)
            except (ParseError, VerifyError):
                continue
