"""Interned nodes: one object a key, gone when nobody holds it."""

import gc
import threading

from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.interning import Interning


class Node:
    pass


def test_a_node_lives_as_long_as_it_is_held():
    pool: Interning[Node] = Interning()
    node = pool.add(("a",), Node())
    assert pool.get(("a",)) is node
    assert pool.add(("a",), Node()) is node
    del node
    gc.collect()
    assert pool.get(("a",)) is None
    again = pool.add(("a",), Node())
    assert pool.get(("a",)) is again


def test_a_dead_node_does_not_take_its_successor_along():
    pool: Interning[Node] = Interning()
    old = Node()
    old.me = old  # dies in a collection, long after its successor is there
    pool.add(("a",), old)
    entry = pool._entries[("a",)]
    successor = Node()
    pool._entries.clear()
    pool.add(("a",), successor)
    pool._forget(entry)
    assert pool.get(("a",)) is successor


def test_threads_get_one_node():
    found = []
    start = threading.Barrier(4)

    def make():
        start.wait()
        made = [lp.load(i, "f32", (ex.axis("i0", 1000 + i),)) for i in range(500)]
        found.append(made)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(a is b for made in found[1:] for a, b in zip(found[0], made, strict=True))


def test_nodes_of_a_tree_come_before_their_users_and_once():
    x = lp.load(0, "f32", (ex.axis("i0", 8),))
    y = lp.op("exp", "f32", x)
    root = lp.op("add", "f32", lp.op("mul", "f32", y, x), y)
    found = list(lp.walk((root,)))
    assert found == [x, y, root.args[0], root]
    assert list(lp.walk((y, root))) == [x, y, root.args[0], root]
    assert lp.loads(root) == (x,)
    assert lp.loads(x) == (x,)


def test_a_long_chain_is_walked_without_recursion():
    value = lp.load(0, "f32", (ex.axis("i0", 8),))
    for _ in range(3000):
        value = lp.op("exp", "f32", value)
    assert len(lp.nodes(value)) == 3001
