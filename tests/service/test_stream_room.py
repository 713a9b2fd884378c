"""What a stream may hold before it is read no further."""

from __future__ import annotations

import asyncio

import pytest

from service.methods import StreamRoom
from tests.service.asynchronous import asynchronous


async def fits(room: StreamRoom) -> bool:
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    done = waiting.done()
    waiting.cancel()
    return done


async def fill(room: StreamRoom) -> int:
    """Ask for as long as there is room."""
    begun = len(room)
    while await fits(room):
        room.asked()
    return len(room) - begun


@asynchronous
async def test_so_many_queries_of_small_answers_fit() -> None:
    room = StreamRoom(8, 800)
    assert await fill(room) == 8
    for _ in range(8):
        room.answered(10)
    assert not await fits(room), "until they are taken"
    for _ in range(8):
        room.written(10)
    assert await fill(room) == 8


@asynchronous
async def test_fewer_queries_of_large_answers_fit() -> None:
    room = StreamRoom(8, 800)
    room.asked()
    room.answered(300)
    assert await fill(room) == 1, "that one waits, one more is expected to be as large"
    room.answered(300)
    room.written(300)
    room.written(300)
    assert await fill(room) == 2


@pytest.mark.parametrize("size", [800, 10_000])
@asynchronous
async def test_one_answer_may_be_larger_than_all_the_room(size: int) -> None:
    room = StreamRoom(8, 800)
    room.asked()
    room.answered(size)
    assert not await fits(room)
    room.written(size)
    assert await fill(room) == 1


@asynchronous
async def test_one_large_answer_is_forgotten() -> None:
    room = StreamRoom(8, 800)
    for size in (10_000, *[1] * 200):
        await asyncio.wait_for(room.wait(), 60)
        room.asked()
        room.answered(size)
        room.written(size)
    assert await fill(room) == 8


@asynchronous
async def test_who_waits_is_let_in_as_answers_leave() -> None:
    room = StreamRoom(1, 800)
    room.asked()
    waiting = asyncio.create_task(room.wait())
    room.answered(10)
    await asyncio.sleep(0)
    assert not waiting.done()
    room.written(10)
    await asyncio.wait_for(waiting, 60)


@asynchronous
async def test_an_open_room_holds_nobody_back() -> None:
    room = StreamRoom(1, 800)
    room.asked()
    waiting = asyncio.create_task(room.wait())
    await asyncio.sleep(0)
    room.open()
    await asyncio.wait_for(waiting, 60)
