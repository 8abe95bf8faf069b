"""One process of bench.farm: compiles a model's graphs here, or at a farm of its own."""

import argparse
import time
from typing import Any

from bench import display, process

_TASKS = 24


def main() -> int:
    """Capture, compile from empty stores, print one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.farm_process")
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--pool", default="memory")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    process.die_with_parent()

    from bench.captured import capture
    from fusec.demo import models

    def graphs_of(model: str, layers: int, hidden: int) -> list[Any]:
        example = models.build(model, layers=layers, hidden=hidden, length=32, batch=2)
        return [graph for _, graph in capture(example).graphs]

    hidden = 32 if arguments.model == "convnet" else 128
    graphs = graphs_of(arguments.model, arguments.layers, hidden)
    if arguments.workers:
        # Enough for every worker to have planned, built and verified before the clock starts.
        first = [g for n in range(1, 3 * arguments.workers) for g in graphs_of("mlp", 1, 8 * n)]
        made = _farm(graphs, first, arguments)
    else:
        made = _here(graphs)
    display.result({"graphs": len(graphs), "workers": arguments.workers, **made})
    return 0


def _here(graphs: list[Any]) -> dict[str, Any]:
    from cache.memory import MemoryStore
    from fusec.codegen.isa import host_target
    from fusec.options import Options
    from fusec.pipeline import compile_local
    from fusec.trace import Recorder
    from loadtest.costs.processor import spending

    store, target, options = MemoryStore(), host_target(), Options()
    begin = time.perf_counter()
    with spending() as spent:
        found = [compile_local(g, target, options, store, recorder=Recorder()) for g in graphs]
    wall_s = time.perf_counter() - begin
    return {"wall_s": wall_s, "cpu_s": spent.cpu_s, **_artifacts(found)}


def _farm(graphs: list[Any], first: list[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """first: graphs to compile before the others, whose time does not count."""
    from dataclasses import replace
    from pathlib import Path

    from cache.client import CacheClient
    from cache.memory import MemoryStore
    from cache.trust import signed_by
    from farm.config import FarmConfig
    from farm.embedded import embedded_farm
    from farm.open_farm import open_pool
    from fusec.artifact.fingerprint import graph_fingerprint, toolchain
    from fusec.codegen.isa import host_target
    from fusec.ir.wire import graph_to_bytes
    from fusec.options import Options
    from fusec.remote.jobs import GraphJob
    from fusec.remote.resolve import Resolver
    from fusec.trace import Recorder
    from loadtest.costs.processor import spending

    target, recorder = host_target(), Recorder()
    options = replace(Options(cache_dir=Path("cache")), policy="require", wait_s=600.0)

    def job_of(graph: Any) -> GraphJob:
        data = graph_to_bytes(graph)
        return GraphJob(graph, data, graph_fingerprint(data, target, options, toolchain()), target)

    config = FarmConfig(pool=arguments.pool, workers=arguments.workers)
    pool = open_pool(config)
    try:
        overhead = _overhead(pool, arguments.workers)
        # With Ray, the farm's own pool joins the cluster of the first one.
        with (
            embedded_farm(pool=arguments.pool, workers=arguments.workers) as farm,
            CacheClient(farm.url) as client,
        ):
            trust = signed_by((farm.public_key,))
            resolver = Resolver(MemoryStore(), client, options, recorder, trust=trust)
            for ticket in [resolver.submit(job_of(graph)) for graph in first]:
                ticket.result()
            waited_s, fetched_s = (recorder.stages.get(s, 0.0) for s in ("submit", "fetch"))
            jobs = [job_of(graph) for graph in graphs]
            begin = time.perf_counter()
            with spending() as spent:
                tickets = [resolver.submit(job) for job in jobs]
                found = [ticket.result() for ticket in tickets]
            wall_s = time.perf_counter() - begin
            resolver.close()
    finally:
        pool.close()
    assert recorder.counters.get("farm_compiles") == len(first) + len(graphs), recorder.counters
    return {
        "wall_s": wall_s,
        "cpu_s": spent.cpu_s,
        "wait_s": recorder.stages.get("submit", 0.0) - waited_s,
        "fetch_s": recorder.stages.get("fetch", 0.0) - fetched_s,
        **overhead,
        **_artifacts(found),
    }


def _overhead(pool: Any, workers: int) -> dict[str, float]:
    """Seconds of tasks that do nothing, in workers that have loaded what they need."""
    from farm.workers import warm_task

    for future in [pool.submit(warm_task()) for _ in range(2 * workers)]:
        future.result()
    alone = []
    for _ in range(_TASKS):
        begin = time.perf_counter()
        pool.submit(warm_task()).result()
        alone.append(time.perf_counter() - begin)
    begin = time.perf_counter()
    for future in [pool.submit(warm_task()) for _ in range(_TASKS * workers)]:
        future.result()
    in_row = (time.perf_counter() - begin) / _TASKS
    return {"alone_s": sorted(alone)[len(alone) // 2], "in_row_s": in_row}


def _artifacts(found: list[Any]) -> dict[str, Any]:
    from cache.digest import digest

    names = {name for item in found for name in item.blobs if name.startswith("kernel/")}
    # Their blobs: a farm's manifest also says how it was verified.
    manifests = sorted(digest(repr(item.manifest.blobs).encode()) for item in found)
    return {"kernels": len(names), "artifacts": manifests}


if __name__ == "__main__":
    raise SystemExit(main())
