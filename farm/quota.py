"""What a tenant may have of the farm at once, and the refusal of more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from cache.errors import ConfigError
from cache.key import is_namespace


@dataclass(frozen=True, slots=True)
class Quota:
    """``queued`` jobs may wait and ``running`` be in work; ``weight`` is the share of the farm
    beside other tenants."""

    queued: int = 1024
    running: int = 16
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What the farm takes on. Jobs that wait and jobs in work are counted apart.

    ``queued``, ``running``: jobs of all tenants together. ``held_bytes``: graphs of jobs that are
    not over, in bytes; one tenant may have half of it. ``quota``: that of a tenant that ``tenants``
    does not name. ``keep_s``: how long a finished job answers polls. ``abandon_s``: a waiting job
    that nobody asked for this long is dropped.
    """

    queued: int = 4096
    running: int = 16
    held_bytes: int = 2 << 30
    quota: Quota = Quota()
    tenants: Mapping[str, Quota] = field(default_factory=dict)
    keep_s: float = 60.0
    abandon_s: float = 120.0

    def of(self, tenant: str) -> Quota:
        """A tenant's quota."""
        return self.tenants.get(tenant, self.quota)


class Full(StrEnum):
    """Which limit a submit met."""

    FARM = "farm"
    TENANT = "tenant"
    FARM_BYTES = "farm_bytes"
    TENANT_BYTES = "tenant_bytes"


class QueueFull(Exception):
    """No room for another job now: ``limit`` says whose room it is."""

    def __init__(self, limit: Full, tenant: str, most: int) -> None:
        whose = f"the namespace {tenant!r}" if tenant else "the default namespace"
        text = {
            Full.FARM: f"{most} jobs wait at the farm, its limit (queue_limit)",
            Full.TENANT: f"{most} jobs of {whose} wait at the farm, its quota (tenant_queued)",
            Full.FARM_BYTES: f"the farm holds {most} bytes of graphs, its limit (queue_bytes)",
            Full.TENANT_BYTES: f"graphs of {whose} take {most} bytes of the farm, its quota "
            "(half of queue_bytes)",
        }[limit]
        super().__init__(text)
        self.limit = limit


def parse_tenants(text: str, default: Quota) -> Mapping[str, Quota]:
    """Quotas from ``name=queued/running[/weight]`` items with commas between; an empty number is
    that of `default`, and the name of the default namespace is empty. Raises ConfigError."""
    made: dict[str, Quota] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        name, equals, numbers = item.partition("=")
        parts = [*numbers.split("/"), "", ""][: max(3, numbers.count("/") + 1)]
        try:
            if not equals or not is_namespace(name) or name in made or len(parts) != 3:
                raise ValueError
            quota = Quota(
                int(parts[0] or default.queued),
                int(parts[1] or default.running),
                float(parts[2] or default.weight),
            )
            if quota.queued < 1 or quota.running < 1 or not 0.001 <= quota.weight <= 1000.0:
                raise ValueError
        except ValueError as error:
            raise ConfigError(
                f"tenants: {item!r:.80} is no quota",
                hint="a quota is namespace=queued/running[/weight], as in research=500/8/2;"
                " counts are 1 or more, a weight is from 0.001 to 1000",
            ) from error
        made[name] = quota
    return MappingProxyType(made)
