"""Data parallelism: DDP cuts the graph into buckets and calls each part once with fake tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.capture.twin import Twin

pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    dist.destroy_process_group()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # A layer fills DDP's first bucket of 1 MiB.
        self.layers = nn.ModuleList(nn.Linear(600, 600) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


@pytest.mark.usefixtures("one_rank")
def test_buckets_are_compiled_apart() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 600)
    plain = Net()
    weights = plain.state_dict()
    plain(x).sum().backward()
    store = None
    for graph_hits in (0, 1):
        torch._dynamo.reset()
        twin = Twin(store)
        store = twin.store
        model = Net()
        model.load_state_dict(weights)
        wrapped = DistributedDataParallel(model, bucket_cap_mb=2)
        torch.compile(wrapped, backend=twin)(x).sum().backward()
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)
        assert len(twin.graphs) > 1
        assert twin.count("fallbacks_to_eager") == 0
        assert (twin.count("graph_hits") > 0) == bool(graph_hits)
        assert twin.count("front_hits") == 0
