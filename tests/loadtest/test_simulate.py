"""The farm's own code in simulated time, in small runs: what must hold, and the two bounds."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.costs.model import dump, load
from loadtest.simulate import virtual
from loadtest.simulate.__main__ import main
from loadtest.simulate.figures import Figures, figures
from loadtest.simulate.scenarios import SCENARIOS, Size, play

SMALL = Size(ranks=60, workers=32, kernels=48, jobs=40)
ROOT = Path(__file__).parents[2]


def _play(name: str, size: Size = SMALL, seed: int = 1) -> Figures:
    world = virtual.run(lambda loop: play(SCENARIOS[name], size, load(), seed, loop))
    assert sum(world.tally.outcomes.values()) == sum(
        len(rank.model.graphs) for rank in world.played
    ), "every rank has every graph"
    return figures(world)


def _farm_alone(run: Figures) -> bool:
    return set(run.sources) <= {"farm", "store"}


def test_a_cold_start_is_one_compile_for_all_ranks():
    run = _play("cold")
    assert run.ranks == SMALL.ranks
    assert run.kernels == SMALL.kernels
    assert (run.compiles_per_kernel, run.most_compiles, run.plans_per_graph) == (1.0, 1, 1.0)
    assert (run.retries, run.tasks_lost) == (0, 0)
    assert _farm_alone(run)


def test_of_the_ranks_that_come_at_once_few_send_their_graphs():
    world = virtual.run(lambda loop: play(SCENARIOS["cold"], SMALL, load(), 1, loop))
    asked = world.tally.outcomes["farm"]
    assert asked > 4 * SMALL.graphs
    sent = world.counted("fusec_farm_graphs_received_total")
    assert SMALL.graphs <= sent <= 2 * SMALL.graphs


def test_a_tenant_is_not_held_up_by_anothers_jobs():
    """The first job's delay beside many of another tenant, over the same on an idle farm."""
    size = Size(workers=4, jobs=90)
    alone, beside = (_play(name, size).tenants for name in ("mixed-alone", "mixed"))
    assert beside["large"].ready_last_s > 45.0, "there is work for all workers all the time"
    delay_s = beside["small"].ready_last_s - 30.0
    assert delay_s <= 2.0 * (alone["small"].ready_last_s - 30.0)


def test_workers_are_busy_while_kernels_are_built():
    run = _play("cold", Size(ranks=4, workers=8, kernels=300))
    assert run.build_efficiency >= 0.85


def test_two_gpus_tune_in_half_the_time_and_ranks_do_not_wait_for_it():
    size = Size(ranks=8, workers=32, kernels=128)
    one, two = (_play("tuned", replace(size, gpus=gpus)) for gpus in (1, 2))
    assert one.tuning is not None
    assert two.tuning is not None
    assert one.tuning.graphs == two.tuning.graphs == 8, "four of each model"
    assert one.tuning.leases == two.tuning.leases
    assert one.tuning.use > 0.95
    assert two.tuning.use > 0.8
    assert two.tuning.span_s < 0.6 * one.tuning.span_s
    for name, tenant in one.tenants.items():
        assert two.tenants[name].ready_last_s == pytest.approx(tenant.ready_last_s, rel=0.02)


def test_workers_and_nodes_die_and_every_rank_ends():
    run = _play("node-losses", Size(ranks=64, workers=32, kernels=192))
    assert run.tasks_lost > 0
    assert run.retries > 0
    assert run.ranks == 64
    assert run.compiles_per_kernel < 2.0


def test_a_poisoned_model_costs_bounded_attempts_and_no_other_its_turn():
    run = _play("poisoned")
    assert run.tenants["good"].ranks == 54
    assert any(source.startswith("here") for source in run.sources)
    assert run.most_compiles <= 10
    good = _play("cold", Size(ranks=54, workers=32, kernels=48))
    assert run.tenants["good"].ready_last_s <= 2.0 * good.last_ready_s


def test_a_slow_store_delays_and_loses_nothing():
    run = _play("slow-store")
    assert run.most_compiles == 1
    assert run.ranks == SMALL.ranks


def test_a_gateway_dies_with_its_work_and_another_does_it():
    run = _play("gateway-dies", Size(ranks=40, workers=4, kernels=48))
    assert run.ranks == 40
    assert run.compiles_per_kernel <= 2.0
    assert run.plans_per_graph <= 2.0
    assert _farm_alone(run), "the service asks the other one at once"


def test_the_same_seed_is_the_same_run_in_every_process():
    code = (
        "import json, dataclasses; from tests.loadtest.test_simulate import _play, SMALL;"
        "print(json.dumps([dataclasses.asdict(_play(n)) for n in ('cold', 'poisoned')]))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(seed), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert len(runs) == 1
    assert json.loads(runs.pop())[0]["kernels"] == SMALL.kernels


def test_another_seed_is_another_run():
    assert _play("cold", seed=1).last_ready_s != _play("cold", seed=2).last_ready_s


def test_the_command_prints_tables_and_writes_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pytest.importorskip("matplotlib", reason="plots need the extra loadtest")
    out = tmp_path / "out.json"
    arguments = ["cold", "--ranks", "20", "--workers", "8", "--kernels", "16", "--json", str(out)]
    assert main([*arguments, "--out", str(tmp_path / "plots"), "--format", "svg"]) == 0
    text = capsys.readouterr().out
    assert "efficiency" in text
    assert "queue p99" in text
    assert json.loads(out.read_text())["scenarios"]["cold"]["ranks"] == 20
    assert (tmp_path / "plots" / "cold.svg").read_text().startswith("<?xml")


def test_costs_survive_their_file(tmp_path: Path):
    path = tmp_path / "costs.json"
    path.write_text(dump(load()))
    assert load(path) == load()


def test_costs_make_sense():
    costs = load()
    for kind, kernels in costs.kernels.items():
        assert len(kernels) >= 50, kind
        assert all(0 < kernel.cpu_s < 60 and kernel.source_bytes > 0 for kernel in kernels)
        times = costs.plan_times(kind, 7)
        assert list(times.handed_on_s) == sorted(times.handed_on_s)
        assert len(times.handed_on_s) == 7
        assert 0 < times.handed_on_s[0] < times.handed_on_s[-1] <= times.all_s
    assert random.Random(1).choice(costs.kernels["triton"]).binary_bytes > 0
