"""Options and Target: everything that changes what fusec does, as frozen values.

This module is the only reader of ``FUSEC_*`` variables on the client. A field marked with
``key=True`` changes the artifact and so enters its fingerprint; the others must never do so.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from cache.tracing import SETTING_HELP
from fusec.errors import OptionsError

POLICIES: Final = ("wait", "async", "require", "off")
JOB_NAME: Final = re.compile(r"[0-9A-Za-z_.:/-]{0,64}")
SCHEDULERS: Final = (
    "SLURM_JOB_ID",
    "LSB_JOBID",
    "PBS_JOBID",
    "RAY_JOB_ID",
    "TORCHELASTIC_RUN_ID",
)
"""Variables that name the training job for all its ranks, the first that is set counts."""
_SERVERS: Final = ("FUSEC_CACHE_", "FUSEC_FARM_")
"""Before the settings of the service and of the farm, which look at theirs by themselves."""
MODES: Final = ("default", "reduce-overhead", "max-autotune")


def _option(default: Any, *, key: bool, help: str) -> Any:
    return field(default=default, metadata={"key": key, "help": help})


@dataclass(frozen=True, slots=True)
class Options:
    """What the user chose: `Options.from_env`, and `torch.compile(options=…)` over it."""

    strict_rounding: bool = _option(
        False, key=True, help="round half-precision values after every operation, as eager does"
    )
    fusion: bool = _option(True, key=True, help="fuse kernels; off is for finding faults")
    mode: str = _option("default", key=True, help="one of " + ", ".join(MODES))
    remote: str | None = _option(None, key=False, help="address of the cache service")
    policy: str = _option("wait", key=False, help="what to do on a miss: " + ", ".join(POLICIES))
    cache_dir: Path = _option(
        Path("~/.cache/fusec"), key=False, help="local artifact store, owner-only"
    )
    cache_bytes: int = _option(
        32 << 30, key=False, help="bytes of the local store above which the least used goes"
    )
    token_file: Path | None = _option(None, key=False, help="file holding the bearer token")
    token: str | None = field(
        default=None,
        repr=False,  # never in a log
        metadata={"key": False, "help": "the bearer token itself; prefer token_file"},
    )
    namespace: str = _option(
        "", key=False, help="the part of the service that this job uses; empty is the default one"
    )
    job: str = _option(
        "",
        key=False,
        help="name of the training job, whose ranks have one share of the farm; by default the"
        " scheduler's (Slurm, LSF, PBS, Ray, torchrun)",
    )
    trusted_keys: Path | None = _option(
        None, key=False, help="file of the public keys whose artifacts are used from the remote"
    )
    unsigned: bool = _option(
        False,
        key=False,
        help="use unsigned artifacts of the remote too: whoever writes to it may"
        " then run code here",
    )
    inductor_key: Path | None = _option(
        None, key=False, help="signing key for Inductor's own artifacts (see `fusec.inductor`)"
    )
    inductor_namespace: str = _option("inductor", key=False, help="the namespace that those lie in")
    tls_ca: Path | None = _option(
        None, key=False, help="authority of the service's certificate, if not the system's (PEM)"
    )
    tls_cert: Path | None = _option(
        None, key=False, help="certificate to show to the service, where it asks for one (PEM)"
    )
    tls_key: Path | None = _option(None, key=False, help="its key (PEM)")
    wait_s: float = _option(600.0, key=False, help="longest wait for the farm, a graph, in seconds")
    budget_s: float = _option(
        2.0, key=False, help="total delay a dead or slow remote may cost the process, in seconds"
    )
    front_key: bool = _option(True, key=False, help="look up by Dynamo's graph, before AOTAutograd")
    tune_s: float = _option(
        20.0,
        key=False,
        help="longest time for choosing variants of a graph's GPU kernels by measurement, in"
        " seconds; 0: the cost model's choice stands",
    )
    metrics_dir: Path | None = _option(
        None,
        key=False,
        help="directory of node_exporter's textfile collector, for this process's metrics",
    )
    metrics_push: str | None = _option(
        None, key=False, help="address of a Pushgateway, for this process's metrics"
    )
    tracing: str = _option("", key=False, help=SETTING_HELP)
    progress: bool = _option(True, key=False, help="show a progress bar in a terminal")

    def __post_init__(self) -> None:
        for name, known in (("policy", POLICIES), ("mode", MODES)):
            value = getattr(self, name)
            if value not in known:
                hint = f"use one of {', '.join(known)}"
                raise OptionsError(f"{name} {value!r} is unknown", hint=hint)
        if self.remote and not self.remote.startswith(("http://", "https://")):
            raise OptionsError(
                f"remote {self.remote!r:.80} is no address of a service",
                hint="FUSEC_REMOTE is as http://cache:8765",
            )
        if not JOB_NAME.fullmatch(self.job):
            raise OptionsError(
                f"job {self.job!r:.80} is no name of a job",
                hint="use up to 64 letters, digits, - _ . : or /",
            )
        for name in ("wait_s", "budget_s", "tune_s", "cache_bytes"):
            if not 0 <= getattr(self, name) < math.inf:  # also refuses a NaN
                raise OptionsError(f"{name} is {getattr(self, name)}", hint="use 0 or more")
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, Path):
                object.__setattr__(self, item.name, value.expanduser())

    @classmethod
    def from_env(
        cls, env: Mapping[str, str] = os.environ, overrides: Mapping[str, object] | None = None
    ) -> Options:
        """Defaults, then ``FUSEC_<FIELD>`` variables, then ``overrides`` by field name.

        Raises OptionsError for an unknown field or a value that does not parse.
        """
        known = {f.name: f for f in fields(cls)}
        values: dict[str, object] = {}
        for name, f in known.items():
            text = env.get(f"FUSEC_{name.upper()}")
            if text:
                values[name] = _parse(f"variable FUSEC_{name.upper()}", str(f.type), text)
        for name, value in (overrides or {}).items():
            if name not in known:
                names = ", ".join(sorted(known))
                raise OptionsError(f"there is no option {name!r}", hint=f"the options are {names}")
            values[name] = _parse(f"option {name}", str(known[name].type), value)
        values.setdefault("job", _scheduler_job(env))
        return cls(**values)  # type: ignore[arg-type]

    @property
    def store_dir(self) -> Path:
        """Where the local store of the namespace lies."""
        return self.cache_dir / "ns" / self.namespace if self.namespace else self.cache_dir

    def key_entries(self) -> dict[str, object]:
        """The options that change an artifact, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["key"]}


def unknown_variables(env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables that look like ours and that nobody reads: mistakes, most likely. To each the one
    that was meant, as far as there is one like it, else an empty text."""
    known = [f"FUSEC_{f.name.upper()}" for f in fields(Options)]
    strange = sorted(
        name
        for name in env
        if name.startswith("FUSEC_") and name not in known and not name.startswith(_SERVERS)
    )
    return {name: next(iter(get_close_matches(name, known, 1)), "") for name in strange}


def _scheduler_job(env: Mapping[str, str]) -> str:
    """What the scheduler calls the training job, in the letters of a job's name."""
    for variable in SCHEDULERS:
        name = env.get(variable, "")
        if name and name != "none":  # torchrun's word for a run without an id
            return re.sub(r"[^0-9A-Za-z_.:/-]", "_", name)[:64]
    return ""


def _parse(shown: str, kind: str, value: object) -> object:
    if not isinstance(value, str):
        # By the very type: 1 in the place of True would be another key.
        given = "Path" if isinstance(value, Path) else type(value).__name__
        allowed = kind.replace("None", "NoneType").split(" | ")
        if given in allowed or (given, kind) == ("int", "float"):
            return value
        raise OptionsError(f"{shown}: {value!r:.60} is no {kind}")
    if kind == "bool":
        lowered = value.lower()
        if lowered in ("1", "true", "yes", "on"):
            return True
        if lowered in ("0", "false", "no", "off"):
            return False
        raise OptionsError(f"{shown}: {value!r} is neither true nor false", hint="use 1 or 0")
    if kind == "int":
        try:
            return int(value)
        except ValueError as error:
            raise OptionsError(f"{shown}: {value!r} is not a whole number") from error
    if kind == "float":
        try:
            return float(value)
        except ValueError as error:
            raise OptionsError(f"{shown}: {value!r} is not a number of seconds") from error
    if kind.startswith("Path"):
        return Path(value)
    return value


@dataclass(frozen=True, slots=True)
class Target:
    """What code is made for.

    ``device`` is cpu or cuda; ``isa`` the instruction-set level (``x86-64-v3``) or compute
    capability (``sm_90``); ``device_class`` names the model that tuning is for, empty for a CPU.
    Which C compiler makes the binaries is the compiling machine's matter: it enters kernel keys,
    not the keys that a client without any compiler has to compute.
    """

    device: str
    isa: str
    device_class: str = ""

    def to_wire(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in ("device", "isa", "device_class")}

    @classmethod
    def from_wire(cls, data: Mapping[str, object]) -> Target:
        """Raises OptionsError for missing, unknown or non-text fields."""
        names = {f.name for f in fields(cls)}
        if set(data) != names or not all(isinstance(v, str) for v in data.values()):
            raise OptionsError(f"a target needs exactly the text fields {sorted(names)}")
        return cls(**{k: str(v) for k, v in data.items()})
