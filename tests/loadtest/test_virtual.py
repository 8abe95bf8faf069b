"""The loop in simulated time: timers in order, nothing sleeps, what cannot end is an error."""

import asyncio
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from loadtest.simulate import virtual
from loadtest.simulate.virtual import Deadlock, Gone, OutOfTime, VirtualLoop


def test_timers_come_in_order_and_nothing_sleeps():
    async def main(loop: VirtualLoop) -> list[tuple[str, float]]:
        seen = []

        async def one(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, round(loop.time(), 6)))

        await asyncio.gather(one("day", 86400.0), one("hour", 3600.0), one("hour too", 3600.0))
        return seen

    begin = time.process_time()
    assert virtual.run(main) == [("hour", 3600.0), ("hour too", 3600.0), ("day", 86400.0)]
    assert time.process_time() - begin < 10.0


def test_a_wait_of_less_than_a_rounding_error_ends():
    async def main(loop: VirtualLoop) -> int:
        deadline, turns = loop.time() + 5.0, 0
        while (left := deadline - loop.time()) > 0:
            turns += 1
            try:
                await asyncio.wait_for(asyncio.Event().wait(), left)
            except TimeoutError:
                continue
        return turns

    assert virtual.run(main) < 5


def test_waiting_for_nothing_is_a_deadlock():
    async def main(loop: VirtualLoop) -> None:
        await loop.create_future()

    with pytest.raises(Deadlock):
        virtual.run(main)


def test_trying_for_ever_runs_out_of_time():
    async def main(loop: VirtualLoop) -> None:
        while True:
            await asyncio.sleep(1.0)

    with pytest.raises(OutOfTime, match="100"):
        virtual.run(main, longest_s=100.0)


def test_blocking_work_takes_what_it_charges_and_a_thread():
    async def main(loop: VirtualLoop) -> list[float]:
        pool = ThreadPoolExecutor(2)
        ends = []

        async def one() -> None:
            await loop.run_in_executor(pool, loop.charge, 10.0)
            ends.append(round(loop.time(), 3))

        await asyncio.gather(*(one() for _ in range(4)))
        assert not pool._threads, "the work is done in the loop"
        await asyncio.to_thread(loop.charge, 5.0)
        ends.append(round(loop.time(), 3))
        return ends

    assert virtual.run(main) == [10.0, 10.0, 20.0, 20.0, 25.0]


def test_blocking_work_that_fails_takes_its_time_too():
    async def main(loop: VirtualLoop) -> float:
        def work() -> None:
            loop.charge(3.0)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(work)
        return round(loop.time(), 3)

    assert virtual.run(main) == 3.0


def test_who_asks_a_dead_host_never_hears_again():
    async def main(loop: VirtualLoop) -> bool:
        def work() -> None:
            raise Gone

        asked = asyncio.ensure_future(asyncio.to_thread(work))
        await asyncio.sleep(1e5)
        return asked.done()

    assert virtual.run(main) is False


def test_a_concurrent_future_is_waited_for_in_the_loop():
    async def main(loop: VirtualLoop) -> str:
        future: Future[str] = Future()
        loop.call_later(7.0, future.set_result, "there")
        return f"{await asyncio.wrap_future(future)} {loop.time():.0f}"

    assert virtual.run(main) == "there 7"
