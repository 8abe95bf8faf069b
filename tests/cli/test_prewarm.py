"""`fusec prewarm`: what it compiles is what a program asks for, on this machine or for a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fusec.api as api
from fusec.cli.parser import run
from fusec.cli.prewarm import target_from
from fusec.codegen.isa import host_target
from fusec.errors import OptionsError
from fusec.options import Target

ROOT = Path(__file__).parents[2]
MODEL = """
import torch
from torch import nn

MADE_BEFORE = torch.ones(4)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.drop = nn.LayerNorm(16), nn.Linear(16, 32), nn.Dropout(0.5)

    def forward(self, x):
        return nn.functional.gelu(self.up(self.norm(x))).sum(-1)


def example():
    return Block(), (torch.randn(8, 16),)


def broken_in_two():
    block = Block()

    def step(x, scale):
        y = block(x)
        torch._dynamo.graph_break()
        return y * scale

    return step, {"x": torch.randn(8, 16), "scale": torch.ones(())}


def unsupported():
    return lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), torch.randn(4)


def made_before():
    return torch.sin, MADE_BEFORE


def wrong():
    return 3
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "subjects_of_prewarm.py").write_text(MODEL)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.delenv("FUSEC_REMOTE", raising=False)
    torch._dynamo.reset()
    yield __import__("subjects_of_prewarm")
    del sys.modules["subjects_of_prewarm"]
    torch._dynamo.reset()
    api.reset()


def prewarmed(capsys: pytest.CaptureFixture[str], name: str, *more: str) -> tuple[int, Any]:
    """The exit code and what was printed for a program."""
    torch._dynamo.reset()
    command = ["prewarm", f"subjects_of_prewarm:{name}", "--target", "cpu", "--json", *more]
    code = run(command)
    return code, json.loads(capsys.readouterr().out)


def test_a_program_finds_what_was_prewarmed(model: Any, capsys: Any) -> None:
    code, found = prewarmed(capsys, "example")
    (graph,) = found["graphs"]
    assert code == 0
    assert [p["role"] for p in graph["parts"]] == ["forward", "backward"]
    assert all(p["source"] == "compiled here" and p["numbers"]["kernels"] for p in graph["parts"])
    torch._dynamo.reset()
    api.reset()
    block, args = model.example()
    compiled = torch.compile(block, backend="fusec")
    torch.testing.assert_close(compiled(*args), block(*args))
    counters = api.snapshot().counters
    assert counters["front_hits"] == 1
    assert not any(counters.get(k) for k in ("kernel_compiles", "graph_misses", "lowerings"))
    _, again = prewarmed(capsys, "example")
    assert again["graphs"][0]["known"]
    _, keys = prewarmed(capsys, "example", "--keys-only")
    assert keys["graphs"][0]["front"] == graph["front"]
    assert [p["key"] for p in keys["graphs"][0]["parts"]] == [p["key"] for p in graph["parts"]]


def test_every_graph_of_a_call_is_compiled(model: Any, capsys: Any) -> None:
    code, found = prewarmed(capsys, "broken_in_two", "--no-grad", "--keys-only")
    assert code == 0
    assert [[p["role"] for p in g["parts"]] for g in found["graphs"]] == [["inference"]] * 2


def test_a_graph_that_will_run_eager_is_told(model: Any, capsys: Any) -> None:
    code, found = prewarmed(capsys, "unsupported")
    assert code == 1
    assert "sub-graph" in found["graphs"][0]["eager"]


def test_a_table_for_a_person(model: Any, capsys: Any) -> None:
    arguments = ["prewarm", "subjects_of_prewarm:example", "--target", "cpu", "--keys-only"]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "forward" in text
    assert "backward" in text
    assert "graph/" in text


@pytest.mark.parametrize(("name", "told"), [("wrong", "callable"), ("made_before", "made before")])
def test_what_is_wrong_is_told(model: Any, capsys: Any, name: str, told: str) -> None:
    assert run(["prewarm", f"subjects_of_prewarm:{name}", "--target", "cpu"]) == 1
    assert told in capsys.readouterr().err


def test_targets_by_name() -> None:
    assert target_from("cpu") == host_target()
    assert target_from("cuda:sm_90") == Target("cuda", "sm_90")
    assert target_from("cuda:gfx90a") == Target("cuda", "gfx90a")
    for text in ("cuda", "gpu:sm_90", "cuda:h100", "cuda:sm_90;rm", ""):
        with pytest.raises(OptionsError, match="no target"):
            target_from(text)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_kernels_for_a_gpu_are_compiled_without_one(model: Any, tmp_path: Path, shim: Path) -> None:
    """In a process of its own: its torch takes a pretended GPU for a real one."""
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    os.symlink(shim / "without-gpu", store / "without-gpu")
    (shim / "without-gpu").mkdir(mode=0o700, exist_ok=True)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fusec",
            "prewarm",
            "subjects_of_prewarm:example",
            "--target",
            "cuda:sm_90",
            "--json",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (graph,) = json.loads(done.stdout)["graphs"]
    assert [p["source"] for p in graph["parts"]] == ["compiled here"] * 2
    assert all(p["numbers"]["kernels"] for p in graph["parts"])
    assert all(p["numbers"]["fallback_calls"] == 0 for p in graph["parts"])


def test_a_model_of_the_demo(capsys: Any) -> None:
    assert run(["prewarm", "--demo", "mlp", "--target", "cpu", "--keys-only", "--json"]) == 0
    (graph,) = json.loads(capsys.readouterr().out)["graphs"]
    assert graph["parts"]
    assert not graph["eager"]
