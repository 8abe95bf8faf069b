"""Thousands of ranks in one process: what a training job's start asks of the service, over HTTP.

    python -m loadtest.ranks PLAN RESULT        (files of JSON; the parent writes and reads them)

A process of its own, since locust makes the sockets and sleeps of its process cooperative. A rank
speaks the client's protocol without its compiler: look up, join what is missing or submit it, poll,
look up again, fetch the blobs and check each against its digest.
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from locust import FastHttpUser, constant, events, task
from locust.env import Environment
from locust.exception import StopUser

from cache import protocol as wire
from cache.artifacts import open_entry
from cache.frames import decompress
from cache.protocol import Value
from cache.trust import OWN_STORE
from fusec.remote.protocol import SUBMIT_PATH, Join
from loadtest.plan import Plan, RankModel
from loadtest.samples import RankTimes, Request

POLL_S: Final = 5.0
PATIENCE_S: Final = 240.0
BATCH: Final = 64


class RankFailed(Exception):
    """A rank did not get its artifacts; the text says at which request and why."""


class Rank:
    """One rank over one connection."""

    def __init__(self, client: Any, plan: Plan, number: int) -> None:
        self._client = client
        # Else geventhttpclient makes an error of them, for which it reads msgpack as text.
        agent = client.client
        agent.valid_response_codes = agent.valid_response_codes | {404, 429}
        self._waiter = f"rank-{number}"
        self._headers = {"authorization": f"Bearer {plan.token}", "content-type": wire.MSGPACK}
        if plan.namespace:
            self._headers[wire.NAMESPACE_HEADER] = plan.namespace

    def start(self, model: RankModel) -> None:
        """Get every artifact of a model. Raises RankFailed."""
        found = self._lookup(model.keys)
        for key, submit in zip(model.keys, model.submits):
            if key not in found:
                self._compile(key, Path(submit).read_bytes())
        if len(found) < len(model.keys):
            found = self._lookup(model.keys)
        digests: dict[str, None] = {}
        for key in model.keys:
            if key not in found:
                raise RankFailed(f"{key[:20]} is absent after its compile")
            digests.update(dict.fromkeys(open_entry(key, found[key], OWN_STORE)[0].digests()))
        self._fetch(list(digests))

    def _lookup(self, keys: tuple[str, ...]) -> dict[str, bytes]:
        answer = self._post("lookup", wire.PATH_LOOKUP, {"keys": list(keys)}, wire.MAX_REPLY)
        return wire.bytes_map(wire.fields(answer, "lookup", ("found",))["found"], "found")

    def _compile(self, key: str, submit: bytes) -> None:
        fingerprint = key.removeprefix("graph/")
        join = f"{wire.PATH_COMPILE}/{fingerprint}?wait={POLL_S}"
        status = self._post("join", join, Join(self._waiter).to_wire(), wire.MAX_REPLY)
        if status is None:
            body = wire.unpack(submit, max_bytes=wire.MAX_SUBMIT)
            assert isinstance(body, dict)
            assert isinstance(body["body"], dict)
            body["body"]["waiter"] = self._waiter
            path = f"{SUBMIT_PATH}?fingerprint={fingerprint}"
            status = self._post("submit", path, body, wire.MAX_REPLY)
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert isinstance(status, dict)
            if status.get("state") == "done":
                return
            if status.get("state") == "failed":
                raise RankFailed(f"the farm: {status.get('error')!r}")
            if time.monotonic() > deadline:
                raise RankFailed(f"no artifact within {PATIENCE_S:.0f} s")
            path = (
                f"{wire.PATH_COMPILE}/{fingerprint}?wait={POLL_S}&after={status['seq']!r}"
                f"&waiter={self._waiter}"
            )
            status = self._request("poll", "GET", path, None, wire.MAX_REPLY)

    def _fetch(self, digests: list[str]) -> None:
        left = digests
        while left:
            batch: list[Value] = [*left[:BATCH]]
            body: Value = {"digests": batch}
            answer = self._post("blobs", wire.PATH_BLOBS_GET, body, wire.MAX_REPLY)
            frames = wire.bytes_map(wire.fields(answer, "blobs", ("blobs",))["blobs"], "blobs")
            if not frames:
                raise RankFailed(f"blob {left[0][:12]} is absent")
            for digest, frame in frames.items():
                decompress(frame, digest)
            # What is not in the reply did not fit it.
            left = [digest for digest in left if digest not in frames]

    def _post(self, name: str, path: str, body: Value, limit: int) -> Value:
        return self._request(name, "POST", path, wire.pack(body), limit)

    def _request(self, name: str, method: str, path: str, body: bytes | None, limit: int) -> Value:
        """One request; a full farm (429) is asked again after the pause that it names. None where
        a join is told to submit the graph."""
        while True:
            answer = self._client.request(
                method, path, name=name, data=body, headers=self._headers, catch_response=True
            )
            with answer as response:
                status = response.status_code
                wanted = status == 404 and name == "join"
                if status == 429 or wanted:
                    response.success()  # an answer that the protocol foresees
                elif status not in (200, 202):
                    response.failure(f"{name}: {status} {response.content[:200]!r}")
                    raise RankFailed(f"{name}: status {status}")
                else:
                    return wire.unpack(response.content, max_bytes=limit)
            if wanted:
                return None
            time.sleep(float(response.headers.get("retry-after", 1)) * random.uniform(0.75, 1.25))


def run(plan: Plan) -> tuple[list[Request], list[RankTimes]]:
    """Play a plan to its end."""
    requests: list[Request] = []
    ranks: list[RankTimes] = []
    numbers = itertools.count()
    choose = random.Random(plan.seed)
    begun = time.time()

    class User(FastHttpUser):
        host = plan.url
        wait_time = constant(0)
        network_timeout = 60.0
        connection_timeout = 60.0

        @task
        def live(self) -> None:
            number = next(numbers)
            rank = Rank(self.client, plan, number)
            while True:
                at = time.time()
                error = ""
                try:
                    at_random = choose.choice(plan.models)
                    rank.start(
                        plan.models[number % len(plan.models)] if plan.in_turn else at_random
                    )
                except (RankFailed, OSError) as failure:
                    error = str(failure)
                ranks.append(RankTimes(plan.tenant, at, time.time(), error))
                if not plan.repeat or time.time() - begun > plan.seconds:
                    raise StopUser
                time.sleep(choose.expovariate(1 / plan.think_s))

    def record(
        request_type: str, name: str, response_time: float, exception: object, **_: object
    ) -> None:
        requests.append(
            Request(plan.tenant, name, time.time(), response_time / 1e3, str(exception or ""))
        )

    environment = Environment(user_classes=[User], events=events)
    environment.events.request.add_listener(record)  # type: ignore[no-untyped-call]
    runner = environment.create_local_runner()
    runner.start(plan.ranks, spawn_rate=plan.per_second)
    limit = time.time() + plan.seconds + PATIENCE_S
    time.sleep(plan.ranks / plan.per_second)
    while runner.user_count and time.time() < limit:
        time.sleep(0.1)
    runner.quit()
    return requests, ranks


def main() -> None:
    plan, result = Path(sys.argv[1]), Path(sys.argv[2])
    requests, ranks = run(Plan.read(plan))
    result.write_text(
        json.dumps(
            {
                "requests": [list(asdict(each).values()) for each in requests],
                "ranks": [list(asdict(each).values()) for each in ranks],
            }
        )
    )


if __name__ == "__main__":
    main()
