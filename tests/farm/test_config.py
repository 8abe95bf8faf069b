"""Settings of the farm, and how kernels are grouped into tasks."""

import argparse

import pytest

from cache.errors import ConfigError
from cache.settings import add_flags
from farm.batch import BATCHES_PER_WORKER, MOST_IN_BATCH, SMALL_SOURCE, batches
from farm.config import ENV_PREFIX, FarmConfig
from farm.quota import Quota
from farm.workers import PlannedKernel


def test_environment_then_flags() -> None:
    environ = {"FUSEC_FARM_POOL": "memory", "FUSEC_FARM_PORT": "1", "HOME": "/nowhere"}
    config = FarmConfig.load(environ, {"port": "2", "insecure": "1", "task_s": "3.5"})
    assert (config.pool, config.port, config.insecure, config.task_s) == ("memory", 2, True, 3.5)


@pytest.mark.parametrize(
    "environ",
    [
        {"FUSEC_FARM_PROT": "1"},
        {"FUSEC_FARM_PORT": "many"},
        {"FUSEC_FARM_PORT": "70000"},
        {"FUSEC_FARM_POOL": "threads"},
        {"FUSEC_FARM_QUEUE_LIMIT": "0"},
        {"FUSEC_FARM_KEEP_S": "0"},
        {"FUSEC_FARM_KEEP_S": "nan"},
        {"FUSEC_FARM_INSECURE": "perhaps"},
    ],
)
def test_what_makes_no_sense_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        FarmConfig.load(environ)


def test_other_machines_need_a_token() -> None:
    with pytest.raises(ConfigError, match="without a token"):
        FarmConfig(host="0.0.0.0")
    assert FarmConfig(host="0.0.0.0", token="x").grants()
    assert FarmConfig(host="0.0.0.0", insecure=True)


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(FarmConfig(token="hush", cache_token="hush"))


def test_what_is_on_by_default_has_a_flag_that_turns_it_off() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, FarmConfig, ENV_PREFIX)
    given = vars(parser.parse_args(["--no-tune", "--insecure"]))
    config = FarmConfig.load({}, {name: text for name, text in given.items() if text is not None})
    assert (config.tune, config.insecure) == (False, True)


def _kernels(count: int, size: int) -> list[PlannedKernel]:
    return [PlannedKernel(f"{n}", f"kernel/{n}", bytes(size)) for n in range(count)]


def test_few_kernels_are_spread_over_the_workers() -> None:
    assert [len(batch) for batch in batches(_kernels(6, 100), 4)] == [1] * 6


def test_many_small_kernels_share_tasks_but_starve_nobody() -> None:
    made = batches(_kernels(500, 100), 4)
    assert max(len(batch) for batch in made) == MOST_IN_BATCH
    assert len(made) >= 4 * BATCHES_PER_WORKER
    assert sorted(k.digest for b in made for k in b) == sorted(str(n) for n in range(500))


def test_a_large_kernel_is_alone() -> None:
    made = batches(_kernels(400, SMALL_SOURCE), 2)
    assert [len(batch) for batch in made] == [1] * 400
    assert batches([], 2) == []


def test_quotas_of_tenants() -> None:
    limits = FarmConfig(queue_limit=400, running_limit=8).limits()
    assert limits.of("anybody") == Quota(queued=100, running=8)
    config = FarmConfig(tenants="research=500/8/2, ci=50/2,=/1", tenant_queued=7)
    limits = config.limits()
    assert limits.of("research") == Quota(500, 8, 2.0)
    assert limits.of("ci") == Quota(50, 2)
    assert limits.of("") == Quota(7, 1), "what is left out is as for the others"
    assert limits.of("other") == Quota(7, config.running_limit)


@pytest.mark.parametrize(
    "text",
    ["research", "A=1/1", "a=0/1", "a=1/1/0", "a=1/1/nan", "a=1/2/3/4", "a=1/1,a=2/2", "a=x"],
)
def test_quotas_that_make_no_sense(text: str) -> None:
    with pytest.raises(ConfigError, match="is no quota"):
        FarmConfig(tenants=text)
