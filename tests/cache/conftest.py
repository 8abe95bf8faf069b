"""Stores of every kind, each over the real thing that it stands for."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from moto.server import ThreadedMotoServer

from cache.breaker import DelayBudget
from cache.client import CacheClient
from cache.config import ServiceConfig
from cache.embedded import serve_in_thread
from cache.errors import NoSwap
from cache.local import LocalStore
from cache.memory import MemoryStore
from cache.s3 import S3Store
from cache.store import Store
from cache.testing import S3Server, seaweedfs_server
from cache.tiered import TieredStore
from tests.cache.radosgw import missing_programs, radosgw_server
from tests.cache.samples import fresh_name

MakeStore = Callable[[], Store]


@pytest.fixture(scope="session")
def seaweedfs() -> Iterator[S3Server]:
    with seaweedfs_server() as server:
        yield server


@pytest.fixture(scope="session")
def radosgw() -> Iterator[S3Server]:
    missing = missing_programs()
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (apt radosgw ceph-mon ceph-osd)")
    with radosgw_server() as server:
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The address of a moto server with a bucket named fusec."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    with s3_store(endpoint) as store:
        store.bucket.client.create_bucket(Bucket="fusec")
    yield endpoint
    server.stop()


def s3_store(endpoint: str, access: str = "any", secret: str = "any", **more: object) -> S3Store:
    """A store under a prefix of its own."""
    return S3Store(
        "fusec",
        fresh_name(),
        endpoint=endpoint,
        access_key=access,
        secret_key=secret,
        **more,
    )


@pytest.fixture
def seaweed_store(seaweedfs: S3Server) -> Iterator[S3Store]:
    with s3_store(seaweedfs.endpoint, seaweedfs.access_key, seaweedfs.secret_key) as store:
        yield store


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def http(memory: MemoryStore) -> Iterator[httpx.Client]:
    """To a service over `memory`."""
    with (
        serve_in_thread(ServiceConfig(port=0), store=memory) as running,
        httpx.Client(base_url=running.url, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(
    params=[
        "memory",
        "local",
        "tiered",
        "client",
        "s3-moto",
        pytest.param("s3-seaweedfs", marks=pytest.mark.s3),
        pytest.param("s3-radosgw", marks=[pytest.mark.s3, pytest.mark.extended]),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    with ExitStack() as stack:
        match request.param:
            case "memory":
                yield MemoryStore()
            case "local":
                yield LocalStore(tmp_path / "store")
            case "tiered":
                yield TieredStore(MemoryStore(), LocalStore(tmp_path / "store"))
            case "client":
                config = ServiceConfig(port=0)
                running = stack.enter_context(serve_in_thread(config))
                budget = DelayBudget(30.0)
                yield stack.enter_context(CacheClient(running.url, budget=budget))
            case "s3-moto":
                yield stack.enter_context(s3_store(request.getfixturevalue("moto")))
            case "s3-seaweedfs":
                yield request.getfixturevalue("seaweed_store")
            case "s3-radosgw":
                server = request.getfixturevalue("radosgw")
                keys = (server.access_key, server.secret_key)
                yield stack.enter_context(s3_store(server.endpoint, *keys))


@pytest.fixture
def swaps(store: Store, request: pytest.FixtureRequest) -> None:
    """For tests of compare and swap. Of a store that cannot, all that is asked is to say so."""
    if "s3-radosgw" in request.node.name:
        mark = pytest.mark.xfail(raises=NoSwap, strict=True, reason="its If-Match is wrong")
        request.applymarker(mark)
