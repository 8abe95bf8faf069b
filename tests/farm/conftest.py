"""Fixtures of the farm's tests. One Ray for the whole run: its start takes ten seconds."""

from collections.abc import Iterator
from typing import Any

import pytest

from farm.pool import Pool
from tests.farm.clients import client

__all__ = ["client", "ray_cluster"]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray cluster on this machine, one node that tests may add others to; pools made in the
    meantime join it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        import ray

        from farm.ray_pool import RayPool
        from loadtest.chaos.cluster import simulated_cluster
        from tests.farm.pool_tasks import work

        # Nobody here is served by the GPU: a name is all that leasing by class needs.
        gpu = {"num_gpus": 1, "resources": {"gpu:sm_90:nvidia-h200": 1.0}}
        with simulated_cluster(num_cpus=2, **gpu) as cluster:
            pool: Pool = RayPool(work, address=cluster.address, workers=2)
            assert ray.is_initialized()
            yield cluster
            pool.close()
