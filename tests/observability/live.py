"""A real load, scraped by a real Prometheus: what dashboards are tested over and drawn from."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import yaml

from cache.embedded import listen
from fusec.demo.farm_process import importable

PATIENCE_S = 300.0
SCRAPE_S = 1


@dataclass(frozen=True)
class Live:
    """A Prometheus that scrapes, and what has been scraped so far."""

    url: str

    def query(self, expression: str, at: float) -> list[dict]:
        """The result of an expression at a time; Grafana's interval stands for five minutes."""
        return self._get("query", query=_filled(expression), time=at)["result"]

    def query_range(self, expression: str, start: float, end: float) -> list[dict]:
        """Its results over a while, a point a second."""
        return self._get(
            "query_range", query=_filled(expression), start=start, end=end, step=SCRAPE_S
        )["result"]

    def scraped(self, expression: str) -> bool:
        """Whether an expression has a result by now."""
        return bool(self.query(expression, time.time()))

    def _get(self, what: str, **params: object) -> dict:
        answer = httpx.get(f"{self.url}/api/v1/{what}", params=params, timeout=60)
        body = answer.json()
        assert body["status"] == "success", body
        return body["data"]


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "5m")


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.1)


@contextmanager
def text_files(folder: Path) -> Iterator[str]:
    """Serves the text files of clients as node_exporter's textfile collector does; host:port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"".join(path.read_bytes() for path in sorted(folder.glob("*.prom")))
            self.send_response(200)
            self.send_header("content-type", "text/plain; version=0.0.4")
            self.end_headers()
            with suppress(BrokenPipeError):  # Prometheus ends while it scrapes
                self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def prometheus(program: str, folder: Path, targets: dict[str, str], rules: Path) -> Iterator[Live]:
    """A Prometheus that scrapes the targets (job -> host:port) every second."""
    config = {
        "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [target]}]}
            for job, target in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/tsdb",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        live = Live(f"http://127.0.0.1:{port}")
        wait_until(partial(_answers, live.url), f"no Prometheus: {folder}/prometheus.log")
        yield live
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def client_process(url: str, public_key: str, folder: Path, **env: str) -> None:
    """A process that compiles a small model through the service, and writes its metrics."""
    (folder / "keys").write_text(public_key)
    clean = {name: text for name, text in os.environ.items() if not name.startswith("FUSEC_")}
    settings = {
        "FUSEC_REMOTE": url,
        "FUSEC_TRUSTED_KEYS": str(folder / "keys"),
        "FUSEC_BUDGET_S": "60",
        **env,
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.observability.traced_client"],
        env=importable({**clean, **settings}),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
