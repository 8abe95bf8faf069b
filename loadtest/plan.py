"""What a process of ranks is told to do, as a file between it and its parent."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class RankModel:
    """A model as ranks know it: keys of its graphs, and a submit's bytes for each."""

    keys: tuple[str, ...]
    submits: tuple[str, ...]  # files


@dataclass(frozen=True, slots=True)
class Plan:
    """What this process does to `url`.

    ranks: how many at most at the same time; `per_second` of them begin a second. repeat: a rank
    starts a model, waits `think_s` seconds and starts another until `seconds` are over; else each
    starts one model once and `seconds` is the longest time. in_turn: the first rank takes the first
    model and so on; else any at random. tenant: as whom, for the records.
    """

    url: str
    token: str
    tenant: str
    namespace: str
    models: tuple[RankModel, ...]
    ranks: int
    per_second: float
    seconds: float
    repeat: bool = False
    in_turn: bool = False
    think_s: float = 1.0
    seed: int = 0

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        body: dict[str, Any] = json.loads(path.read_text())
        models = tuple(RankModel(tuple(m["keys"]), tuple(m["submits"])) for m in body["models"])
        return cls(**{**body, "models": models})
