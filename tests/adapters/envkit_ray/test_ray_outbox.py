"""Answers of a Ray worker on their way to the driver."""

import asyncio

from envkit_ray.messages import Parcel
from envkit_ray.worker import Outbox


def _parcel(name: str) -> Parcel:
    return name, b"", []


async def test_outbox_gives_each_answer_to_one_call_only() -> None:
    outbox = Outbox()
    first = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.add(_parcel("a"), is_last=False)
    assert not first.done()  # others may finish soon
    second = asyncio.create_task(outbox.take())
    assert await first == (_parcel("a"),)
    outbox.add(_parcel("b"), is_last=False)
    outbox.add(_parcel("c"), is_last=True)
    assert await second == (_parcel("b"), _parcel("c"))
    outbox.add(_parcel("d"), is_last=True)  # no call waits
    assert await outbox.take() == (_parcel("d"),)


async def test_outbox_forgets_what_the_driver_abandoned() -> None:
    outbox = Outbox()
    waiting = asyncio.create_task(outbox.take())
    await asyncio.sleep(0)
    outbox.add(_parcel("a"), is_last=False)
    outbox.clear()
    assert await waiting == ()
    outbox.add(_parcel("b"), is_last=True)
    assert await outbox.take() == (_parcel("b"),)
