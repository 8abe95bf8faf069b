"""What a farm says of itself to its operators, as values that travel.

    GET  /v1/farm/status                   -> FarmStatus
    POST /v1/farm/drain  /v1/farm/undrain  -> {"draining": bool}
    POST /v1/farm/cancel                   {"fingerprint": HEX} -> {"cancelled": HEX}
    POST /v1/farm/retune                   {"fingerprint": HEX, "force"?: bool} -> Retuned
    GET  /farm                             a page for a browser

All take the role admin. An admin of the default namespace looks after the whole farm; one of
another namespace sees and cancels that namespace's jobs, and has its graphs tuned.
"""

from __future__ import annotations

import collections.abc
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from cache.protocol import Value
from fusec.errors import WireError

STATUS_PATH: Final = "/v1/farm/status"
DRAIN_PATH: Final = "/v1/farm/drain"
UNDRAIN_PATH: Final = "/v1/farm/undrain"
CANCEL_PATH: Final = "/v1/farm/cancel"
RETUNE_PATH: Final = "/v1/farm/retune"
PAGE_PATH: Final = "/farm"
MAX_CONTROL: Final = 4096  # bytes of a request's body
MAX_ROWS: Final = 200  # of each list

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Waiting:
    """What waits of one tenant at one priority. ``needs``: the class of worker, empty for jobs.
    ``oldest_s``: for how long the oldest has waited."""

    needs: str
    tenant: str
    priority: str
    length: int
    oldest_s: float


@dataclass(frozen=True, slots=True)
class Workers:
    """A class of workers, and the tasks that they have or that are next."""

    needs: str
    workers: int
    busy: int


@dataclass(frozen=True, slots=True)
class Running:
    """A job in work. Times in seconds: since its submit, since its stage began, and left."""

    tenant: str
    training_job: str
    fingerprint: str
    stage: str
    age_s: float
    stage_s: float
    kernels_done: int
    kernels_total: int
    waiters: int
    left_s: float | None


@dataclass(frozen=True, slots=True)
class Compiled:
    """A job that is over: ``seconds`` in work after ``queued_s`` in the queue. ``error`` is empty
    for success."""

    tenant: str
    training_job: str
    fingerprint: str
    device: str
    seconds: float
    queued_s: float
    kernels_total: int
    kernels_stored: int
    merged: int
    ago_s: float
    error: str


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A graph whose failure is given to whoever asks for it, for ``left_s`` seconds more."""

    tenant: str
    fingerprint: str
    error: str
    message: str
    left_s: float


class RetuneState(StrEnum):
    """What becomes of a graph that an operator wants tuned."""

    BEGUN = "begun"  # its turn comes behind all that somebody waits for
    KNOWN = "known"  # it waits for its turn already, or is being tuned
    WAITS = "waits"  # no worker has such a GPU: its turn comes when one joins


@dataclass(frozen=True, slots=True)
class Retuned:
    """The answer to a wish to have a graph tuned. ``state``: a `RetuneState`; ``isa``: the
    capability of the GPUs that may do it, as ``sm_90``."""

    fingerprint: str
    state: str
    isa: str

    def to_wire(self) -> dict[str, Value]:
        return {"fingerprint": self.fingerprint, "state": str(self.state), "isa": self.isa}

    @classmethod
    def from_wire(cls, body: object) -> Retuned:
        """Raises WireError for anything that `to_wire` does not write."""
        made = _read(cls, body, "an answer to retune")
        if made.state not in set(RetuneState):
            raise WireError(f"an answer to retune has the state {made.state!r:.60}")
        return made


@dataclass(frozen=True, slots=True)
class FarmStatus:
    """A gateway at one moment. ``submits`` and ``kernels`` count since its start, by outcome and by
    source; ``seconds_saved`` estimates the compiling that was not done again. Who sees one tenant
    is not told these three. Lists hold at most MAX_ROWS; ``queued`` and ``in_work`` count all jobs
    that the caller may see."""

    pool: str
    up_s: float
    draining: bool
    queued: int
    in_work: int
    workers: tuple[Workers, ...]
    queue: tuple[Waiting, ...]
    tasks: tuple[Waiting, ...]
    running: tuple[Running, ...]
    recent: tuple[Compiled, ...]
    slowest: tuple[Compiled, ...]
    poisoned: tuple[Poisoned, ...]
    submits: Mapping[str, int]
    kernels: Mapping[str, int]
    seconds_saved: float | None

    @property
    def submit_hits(self) -> float | None:
        """Share of submits that needed no compile of their own, None without any."""
        hits = sum(self.submits.get(name, 0) for name in ("stored", "merged", "known"))
        return _share(hits, self.submits.get("queued", 0))

    @property
    def kernel_hits(self) -> float | None:
        """Share of jobs' kernels that were there or being built, None without any."""
        hits = sum(self.kernels.get(name, 0) for name in ("stored", "shared"))
        return _share(hits, self.kernels.get("built", 0))

    def to_wire(self) -> dict[str, Value]:
        """Plain values, for msgpack and for JSON."""
        made = _plain(self)
        assert isinstance(made, dict)
        return made

    @classmethod
    def from_wire(cls, body: object) -> FarmStatus:
        """Raises WireError for anything that `to_wire` does not write."""
        return _read(cls, body, "a farm's status")


def _share(hits: int, misses: int) -> float | None:
    return hits / (hits + misses) if hits + misses else None


def _plain(value: Any) -> Value:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    made: Value = value
    return made


def _read(cls: type[D], body: object, where: str) -> D:
    hints = get_type_hints(cls)
    if not isinstance(body, dict) or set(body) != set(hints):
        raise WireError(
            f"{where} must have exactly the fields {sorted(hints)}",
            hint="client and farm run different releases of fusec: upgrade the older",
        )
    return cls(
        **{name: _typed(hint, body[name], f"{where}.{name}") for name, hint in hints.items()}
    )


def _typed(hint: Any, value: object, where: str) -> Any:
    """`value` as what a field's annotation says. Raises WireError."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        if isinstance(value, list) and len(value) <= MAX_ROWS:
            return tuple(_typed(inner[0], item, where) for item in value)
    elif origin is collections.abc.Mapping:
        if isinstance(value, dict) and len(value) <= MAX_ROWS:
            return {str(name): _typed(inner[1], item, where) for name, item in value.items()}
    elif origin in (Union, types.UnionType):
        return None if value is None else _typed(inner[0], value, where)
    elif is_dataclass(hint) and isinstance(hint, type):
        return _read(hint, value, where)
    elif hint is float and type(value) in (int, float):
        return float(value)  # type: ignore[arg-type]
    elif type(value) is hint:
        return value
    raise WireError(f"{where}: {value!r:.60} is no {hint}")
