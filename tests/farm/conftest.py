"""Fixtures of the farm's tests. One Ray for the whole run: its start takes ten seconds."""

from collections.abc import Iterator

import pytest

from farm.pool import Pool
from tests.farm.clients import client

__all__ = ["client", "ray_cluster"]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray on this machine; pools made in the meantime join it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_AUTH_MODE", "disabled")
        import ray

        from farm.ray_pool import RayPool
        from tests.farm.pool_tasks import work

        # Nobody here is served by it: a name is all that leasing by class needs.
        patch.setattr("farm.ray_pool.detected", lambda: {"gpu:sm_90:nvidia-h200": (0,)})
        pool: Pool = RayPool(work, workers=2)
        assert ray.is_initialized()
        yield
        pool.close()
