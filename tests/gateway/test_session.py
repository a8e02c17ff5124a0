"""How a result reaches the one who waits for it, from the same thread or another one."""

import asyncio
import threading
from concurrent.futures import Future

import pytest

from envsdk.gateway._session import result_of


@pytest.mark.parametrize("is_same_thread", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_result_and_an_error_arrive_from_any_thread(is_same_thread, fails):
    def give(future: Future[int]) -> None:
        if fails:
            future.set_exception(KeyError("no"))
        else:
            future.set_result(7)

    async def run() -> int:
        future: Future[int] = Future()
        waiting = asyncio.create_task(result_of(future))
        await asyncio.sleep(0)
        if is_same_thread:
            give(future)
        else:
            threading.Thread(target=give, args=(future,)).start()
        return await waiting

    if fails:
        with pytest.raises(KeyError):
            asyncio.run(run())
    else:
        assert asyncio.run(run()) == 7


def test_a_result_that_is_there_already_is_returned():
    future: Future[int] = Future()
    future.set_result(7)
    assert asyncio.run(result_of(future)) == 7


def test_a_future_is_canceled_with_its_waiter():
    async def run() -> Future[int]:
        future: Future[int] = Future()
        waiting = asyncio.create_task(result_of(future))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        return future

    assert asyncio.run(run()).cancelled()


def test_a_result_after_the_end_of_the_event_loop_is_no_error():
    future: Future[int] = Future()

    async def run() -> None:
        waiting = asyncio.create_task(result_of(future))
        await asyncio.sleep(0)
        future.set_running_or_notify_cancel()  # so that it cannot be canceled anymore
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(run())
    giving = threading.Thread(target=future.set_result, args=(7,))
    giving.start()
    giving.join()
    assert future.result() == 7
