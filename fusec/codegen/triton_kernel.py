"""KernelLoop and tile → Triton text: one function, computed by all programs of a grid."""

from __future__ import annotations

from typing import Final, NamedTuple

from fusec.codegen.triton_body import MANY, Scope
from fusec.codegen.triton_expr import is_wide
from fusec.codegen.triton_folds import Folds
from fusec.codegen.triton_frame import Frame, dim_lines, shared_pointers
from fusec.codegen.triton_online import Merged, Online, merged
from fusec.codegen.triton_precision import precise_values
from fusec.codegen.triton_tile import FOLDED, STAGES, Dim, Tile, upper
from fusec.ir import expr as ex
from fusec.ir import loop as lp
from fusec.ir.expr import Expr, Sym
from fusec.ir.kernel import KernelLoop, Statement
from fusec.ir.loop import Load, Reduced, Scalar
from fusec.ir.remember import remember

_INDENT: Final = "    "


class Text(NamedTuple):
    """A function, and what must stay within 32 bits for it: expressions over the sizes."""

    text: str
    reached: frozenset[Expr]


def emit_text(
    loop: KernelLoop, tile: Tile, isa: str, name: str, sizes: tuple[Sym, ...], *, narrow: bool
) -> Text:
    """The function of that name; ``sizes`` become its arguments ``n0``, ``n1``, …, of 32 bits where
    it is narrow, else of 64.

    Raises CodegenError for an operation that there is no Triton for.
    """
    kernel = _Kernel(loop, tile, isa, sizes, narrow)
    return Text(kernel.emit(name), frozenset(kernel.frame.reached))


def text_key(tile: Tile) -> tuple[object, ...]:
    """What `emit_text` goes by in a tile. Blocks, stages and warps are numbers that Triton is given
    beside the text, so that most variants of a kernel have one."""
    return (
        tuple(_dim_key(d) for d in tile.dims),
        _if_wide(tile.programs),
        tile.single,
        tile.row,
        tile.early,
        tile.walkers > 0,
    )


@remember
def _dim_key(d: Dim) -> tuple[object, ...]:
    few = min(d.block, MANY)  # few points are divided, and draw random numbers, one by one
    uniform = tuple(d.uniform(axis) for axis in d.axes)
    return d.name, d.axes, d.looped, few, d.masked, uniform, _if_wide(d.count + d.range[1])


def _if_wide(e: Expr) -> Expr | None:
    return e if is_wide(e) else None


class _Kernel:
    def __init__(
        self, loop: KernelLoop, tile: Tile, isa: str, sizes: tuple[Sym, ...], narrow: bool
    ) -> None:
        self.loop = loop
        self.tile = tile
        pointers = shared_pointers(loop)
        kept = list(dict.fromkeys(pointers.values()))
        names = {b: f"b{kept.index(pointer)}" for b, pointer in pointers.items()}
        self.stage = 0
        self.done: set[int] = set()  # stages whose pass an earlier one made along
        self.last_use = _last_uses(loop)
        self.read: set[Load] = set()  # in passes over rows so far
        self.backwards = False  # the direction of the last of them
        self.across = [s for s in loop.statements if s.across]
        self.frame = Frame(
            tile,
            isa,
            loop.buffers,
            names,
            precise_values(loop),
            frozenset(s.buffer for s in self.across if s.fold is not None),
            frozenset(s.buffer for s in loop.statements if s.fold in lp.SCANS),
            self._eviction,
            sizes,
            narrow,
        )
        self.root = Scope(self.frame, frozenset())
        self.folds = Folds(loop, self.frame, tile.folded)

    def emit(self, name: str) -> str:
        self._places()
        if self.loop.carried is not None:
            self._rows(self.loop.carried)
        elif self.tile.walkers:
            self._walk()
        else:
            if self.tile.early:
                self._load_early()
            for stage in range(self.loop.stages):
                self._stage(self.root, stage)
        parameters = [
            *dict.fromkeys(self.frame.names.values()),
            *(f"n{i}" for i in range(len(self.frame.sizes))),
            *(f"{name}: tl.constexpr" for name, _ in self.tile.constants),
        ]
        lines = [f"def {name}({', '.join(parameters)}):"]
        lines += [_INDENT + line for line in self.root.lines or ["pass"]]
        return "\n".join(lines) + "\n"

    # -- where a program is -----------------------------------------------------------------

    def _places(self) -> None:
        """The indices of the tile's dimensions and of the single axes."""
        tile, root = self.tile, self.root
        if tile.walkers:
            self.frame.single = "point"
            root.lines += dim_lines(self.frame, tile.dims[0], "")
            return
        kept = [d for d in tile.kept if not d.looped]
        reached = [tile.programs, *(d.count + d.range[1] for d in tile.kept)]
        wide = sum(self.frame.wide(e) for e in reached) > 0  # all are asked: the frame notes them
        if kept or tile.single:
            root.emit(f"pid = tl.program_id(0){'.to(tl.int64)' if wide else ''}")
        rest = "pid"
        slower = len(kept) + bool(tile.single)
        for d in reversed(kept):
            block = rest
            slower -= 1
            if slower:
                count = f"tl.cdiv({self.frame.size_text(d.count)}, {d.constant})"
                block = f"{d.name}block"
                root.emit(f"{block} = {rest} % {count}")
                root.emit(f"{d.name}rest = {rest} // {count}")
                rest = f"{d.name}rest"
            for line in dim_lines(self.frame, d, f"{block} * {d.constant}"):
                root.emit(line)
        self.frame.single = rest
        folded = tile.folded
        if folded is not None and not folded.looped:
            for line in dim_lines(self.frame, folded, ""):
                root.emit(line)

    def _load_early(self) -> None:
        """Ask for everything at once: a fold waits for all threads, and so would loads after it."""
        for s in self.loop.statements:
            for node in lp.walk((s.value,)):
                if isinstance(node, Load) and not _waits(node):
                    self.root.value(node)

    # -- stages -----------------------------------------------------------------------------

    def _rows(self, axis: Sym) -> None:
        """Row by row, or a few rows at once: what is folded within rows, and across them."""
        root, dim = self.root, self.tile.carried
        folds = Folds(self.loop, self.frame, dim)
        across = [s for s in self.across if s.fold is not None]
        for s in across:
            folds.declare(root, s)
        body = Scope(self.frame, frozenset((axis,)), root)
        if dim is not None:
            body.lines += dim_lines(self.frame, dim, "start")
        for stage in range(self.loop.stages):
            for s in across:  # before any store: what is read here may be overwritten by one
                if s.stage == stage:
                    folds.accumulate(body, s)
            self._stage(body, stage)
        if dim is None:
            root.emit(self._range("row", self.frame.size_text(upper(axis))))
        else:
            root.emit(self._blocks(dim))
        root.lines += [_INDENT + line for line in body.lines]
        for s in across:
            folds.finish(root, s)
        for s in self.across:
            if s.fold is None:
                root.store(s, frozenset((FOLDED,)))

    def _walk(self) -> None:
        """Point by point of the single axes, the next one's row on its way."""
        root, tile = self.root, self.tile
        body = Scope(self.frame, frozenset(tile.single), root)
        for stage in range(self.loop.stages):
            self._stage(body, stage)
        count = self.frame.size_text(ex.product(upper(a) for a in tile.single))
        root.emit(self._range("point", f"tl.program_id(0), {count}, tl.num_programs(0)"))
        root.lines += [_INDENT + line for line in body.lines]

    def _stage(self, scope: Scope, stage: int) -> None:
        """What happens at the kept axes' points, then what happens along the folded ones."""
        self.stage = stage
        if self.loop.folded:
            self._comment(scope, stage)
            for s in self._statements(stage, inner=False):
                self._store(scope, s)
        statements = self._statements(stage, inner=True)
        if statements and self.tile.looped:
            if stage not in self.done:
                self._loop(statements, merged(self.loop, stage))
        else:
            self._at_once(scope, statements)

    def _statements(self, stage: int, *, inner: bool) -> list[Statement]:
        """Statements of a stage; stores that overwrite an input come last."""
        found = [
            s
            for s in self.loop.statements
            if s.stage == stage and s.inner == inner and not s.across
        ]
        buffers = self.loop.buffers
        return sorted(found, key=lambda s: s.fold is None and buffers[s.buffer].alias_of >= 0)

    def _comment(self, scope: Scope, stage: int) -> None:
        folds = [s.fold or "" for s in self._statements(stage, inner=True) if s.fold is not None]
        if folds and stage not in self.done:
            scope.emit(f"# stage {stage}: {', '.join(folds)}")
        elif stage:
            scope.emit(f"# stage {stage}")

    def _store(self, scope: Scope, s: Statement) -> None:
        dims = self.tile.dims if s.inner else self.tile.kept
        scope.store(s, frozenset(d.name for d in dims))

    def _read_first(self, scope: Scope, statements: list[Statement]) -> None:
        """Load what inputs hold before any of them is overwritten."""
        for s in statements:
            if s.fold is None and self.loop.buffers[s.buffer].alias_of >= 0:
                for node in lp.walk(s.scalars):
                    if isinstance(node, Load) and not _waits(node):
                        scope.value(node)

    def _at_once(self, scope: Scope, statements: list[Statement]) -> None:
        self._read_first(scope, statements)
        for s in statements:
            if s.fold is None:
                self._store(scope, s)
            else:
                self.folds.fold(scope, s)

    def _loop(self, statements: list[Statement], groups: tuple[Merged, ...]) -> None:
        """One pass over the folded axes, block by block; ``groups`` take the next stage along."""
        root, dim = self.root, self.tile.folded
        assert dim is not None
        online = {g.first: Online(self.loop, self.frame, self.folds, g) for g in groups}
        folds = [s for s in statements if s.fold is not None and s not in online]
        if online:
            self.done.add(self.stage + 1)
            root.emit(f"# and what stage {self.stage + 1} folds")
        for both in online.values():
            both.declare(root)
        for s in folds:
            self.folds.declare(root, s)
        body = Scope(self.frame, frozenset(dim.axes), root)
        for line in dim_lines(self.frame, dim, self._way(statements, dim)):
            body.emit(line)
        self._read_first(body, statements)
        for s in statements:
            if s in online:
                online[s].accumulate(body)
            elif s.fold is None:
                self._store(body, s)
            else:
                self.folds.accumulate(body, s)
        root.emit(self._blocks(dim))
        root.lines += [_INDENT + line for line in body.lines]
        for both in online.values():
            both.finish(root)
        for s in folds:
            self.folds.finish(root, s)

    def _way(self, statements: list[Statement], dim: Dim) -> str:
        """The first point of a pass's blocks. What is read again is walked the other way: of a row
        that the cache does not hold, what was read last is still there."""
        reads = {load for s in statements for load in lp.loads(s.value)}
        again = not reads.isdisjoint(self.read) and not any(s.fold in lp.SCANS for s in statements)
        self.read |= reads
        self.backwards = again and not self.backwards
        if not self.backwards:
            return "start"
        count = self.frame.size_text(dim.count)
        self.root.emit(f"last = (tl.cdiv({count}, {dim.constant}) - 1) * {dim.constant}")
        return "last - start"

    def _blocks(self, dim: Dim) -> str:
        wide = self.frame.wide(dim.count + dim.range[1])
        first = "tl.full([], 0, tl.int64)" if wide and ex.as_int(dim.count) is not None else "0"
        return self._range("start", f"{first}, {self.frame.size_text(dim.count)}, {dim.constant}")

    def _range(self, name: str, bounds: str) -> str:
        return f"for {name} in tl.range({bounds}, num_stages={STAGES}):"

    def _eviction(self, load: Load) -> str:
        """What programs share stays in the cache; what a loop is done with leaves it."""
        shape = self.frame.shape(load)
        shared = not any(s in self.loop.kept for e in load.index for s in ex.symbols(e))
        if not self.loop.folded or load.indirect or not shape:
            return ""
        if shared and self.loop.kept:
            return "evict_last"
        if self.tile.looped and FOLDED in shape:
            stage = self.stage + (self.stage + 1 in self.done)
            return "evict_last" if self.last_use[load] > stage else "evict_first"
        return ""


def _waits(node: Scalar) -> bool:
    """Whether a value depends on a reduction."""
    return any(isinstance(n, Reduced) for n in lp.walk((node,)))


def _last_uses(loop: KernelLoop) -> dict[Load, int]:
    """The last stage in which each element is loaded at inner points."""
    found: dict[Load, int] = {}
    for s in loop.statements:
        if s.inner:
            for load in lp.loads(s.value):
                found[load] = max(found.get(load, 0), s.stage)
    return found
