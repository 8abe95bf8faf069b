"""What series an expression of PromQL reads, and whether the code emits them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import promql_parser

from cache.series import OTHER, Series

_BELOW = ("lhs", "rhs", "expr", "param", "args", "vector_selector")
_ADDED = frozenset({"namespace", "instance", "job", "pod", "local_rank"})
"""Labels that scraping adds, and the client's own (`fusec.metrics.RANK_LABEL`)."""


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """The selectors of an expression, in order. Raises ValueError where it does not parse."""
    return list(_selectors(promql_parser.parse(expression)))


def _selectors(node: object) -> Iterator[promql_parser.VectorSelector]:
    if isinstance(node, promql_parser.VectorSelector):
        yield node
        return
    for name in _BELOW:
        below = getattr(node, name, None)
        for each in below if isinstance(below, list) else [below]:
            if each is not None:
                yield from _selectors(each)


def unknown(expression: str, series: Iterable[Series], recorded: Iterable[str] = ()) -> list[str]:
    """What of an expression nothing emits: names of series, labels, values of labels.

    recorded: the names that recording rules make.
    """
    declared = {name: each for each in series for name in each.sample_names()}
    wrong: list[str] = []
    for selector in selectors(expression):
        if selector.name in recorded:
            continue
        each = declared.get(selector.name)
        if each is None:
            wrong.append(f"{selector.name} is not emitted")
            continue
        labels = {name: {*values, OTHER} for name, values in each.labels}
        if selector.name.endswith("_bucket"):
            labels["le"] = {f"{bound:g}" for bound in each.buckets} | {"+Inf"}
        for matcher in selector.matchers.matchers:
            if matcher.name in _ADDED:
                continue
            if matcher.name not in labels:
                wrong.append(f"{selector.name} has no label {matcher.name}")
                continue
            for value in matcher.value.split("|"):
                known = labels[matcher.name]
                if value not in known and not any(re.fullmatch(value, text) for text in known):
                    wrong.append(f"{selector.name}: {matcher.name} is never {value!r}")
    return wrong
