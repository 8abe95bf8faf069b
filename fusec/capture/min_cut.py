"""Minimum cut of a directed graph with some thousands of nodes: Dinic's algorithm (1970).

Blocking flows along shortest ways, found by depth-first search with one pointer a node into its
edges. Where several cuts are smallest, the one nearest to the sink is taken: it depends on the
order of nodes and edges alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

UNLIMITED: Final = 1 << 62
"""The capacity of an edge that must not be cut."""


class FlowNetwork:
    """Nodes are numbers from 0 on; capacities whole and not negative."""

    def __init__(self, nodes: int, edges: Iterable[tuple[int, int, int]]) -> None:
        """edges: (from, to, capacity)."""
        self._edges: list[list[int]] = [[] for _ in range(nodes)]
        self._target: list[int] = []  # by edge; edge ^ 1 is its reverse
        self._room: list[int] = []
        for start, end, capacity in edges:
            self._edges[start].append(len(self._target))
            self._edges[end].append(len(self._target) + 1)
            self._target += (end, start)
            self._room += (capacity, 0)

    def cut(self, source: int, sink: int) -> frozenset[int] | None:
        """The nodes on the sink's side of a minimum cut; None where every cut has an unlimited
        edge. Uses the network up."""
        flow = 0
        while (level := self._levels(source, sink)) is not None:
            flow += self._blocking_flow(source, sink, level)
            if flow >= UNLIMITED:
                return None
        return self._reaching(sink)

    def _levels(self, source: int, sink: int) -> list[int] | None:
        """Edges on the shortest way with room from the source to each node, -1 where there is none;
        None when there is none to the sink."""
        level = [-1] * len(self._edges)
        level[source] = 0
        front = [source]
        while front and level[sink] < 0:
            after = []
            for node in front:
                for edge in self._edges[node]:
                    end = self._target[edge]
                    if self._room[edge] and level[end] < 0:
                        level[end] = level[node] + 1
                        after.append(end)
            front = after
        return level if level[sink] >= 0 else None

    def _blocking_flow(self, source: int, sink: int, level: list[int]) -> int:
        target, room = self._target, self._room
        following = [0] * len(self._edges)
        flow = 0
        way: list[int] = []
        node = source
        while True:
            if node == sink:
                amount = min(room[edge] for edge in way)
                flow += amount
                for edge in way:
                    room[edge] -= amount
                    room[edge ^ 1] += amount
                full = next(i for i, edge in enumerate(way) if not room[edge])
                node = target[way[full] ^ 1]
                del way[full:]
                if flow >= UNLIMITED:
                    return flow
            edges = self._edges[node]
            while following[node] < len(edges):
                edge = edges[following[node]]
                if room[edge] and level[target[edge]] == level[node] + 1:
                    way.append(edge)
                    node = target[edge]
                    break
                following[node] += 1
            else:
                if node == source:
                    return flow
                level[node] = -1
                node = target[way.pop() ^ 1]

    def _reaching(self, sink: int) -> frozenset[int]:
        """Nodes from which there is still a way with room to the sink."""
        found = {sink}
        pending = [sink]
        while pending:
            for edge in self._edges[pending.pop()]:
                start = self._target[edge]
                if self._room[edge ^ 1] and start not in found:
                    found.add(start)
                    pending.append(start)
        return frozenset(found)
