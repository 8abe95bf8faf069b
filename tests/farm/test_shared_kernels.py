"""Graphs that are in flight together, and the kernels that they share: the real compiler."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from farm.embedded import embedded_farm
from fusec.remote.farm import FarmClient
from fusec.remote.protocol import FarmJob, JobState
from loadtest.chaos.clients import graphs
from loadtest.chaos.ledger import Ledger
from loadtest.servers import read_metrics
from tests.farm.clients import NewClient


def test_a_kernel_of_graphs_in_flight_together_is_built_once(client: NewClient) -> None:
    """Six graphs, each with one kernel of the one before it, and all with the same runner."""
    ledger, jobs = Ledger(), list(graphs(6, 7000))

    def compile_local(*arguments: object, **named: object) -> None:
        raise AssertionError("the farm compiles them")

    with embedded_farm(store=ledger, workers=2) as farm:
        here = client(farm.url, compile_local)  # type: ignore[arg-type]
        assert here.remote is not None
        asker = FarmClient(here.remote)

        def ask(job: FarmJob) -> JobState:
            return asker.wait(job, timeout_s=150.0).state

        with ThreadPoolExecutor(len(jobs)) as threads:
            assert list(threads.map(ask, jobs)) == [JobState.DONE] * len(jobs)
        counts = read_metrics(f"{farm.gateway_url}/metrics")
    built = counts["fusec_farm_kernels_total{source=built}"]
    others = sum(counts.get(f"fusec_farm_kernels_total{{source={s}}}", 0) for s in _OTHERS)
    assert built == len(jobs) + 1 + 1, "the distinct ones"
    assert built + others == 3 * len(jobs), "two kernels and the runner, of each graph"
    assert counts["fusec_farm_kernels_total{source=shared}"] > 0
    assert set(ledger.created.values()) == {1}
    assert not ledger.replaced


_OTHERS = ("shared", "stored")
