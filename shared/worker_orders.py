"""What operators ask of a worker: to claim nothing for a while, to go on, or to drain. Heard on the control channel.

A message may be lost: the worker's presence record tells what it does. An order ends with its process.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from turnstream.shared.broker import keys
from turnstream.shared.broker.client import command

if TYPE_CHECKING:
    from redis.asyncio import Redis


# What such a message begins with: no ref of a task has such a first word, since it has slashes.
_FIRST = "worker"


class Order(StrEnum):
    """What a worker is to do."""

    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"


async def give(primary: Redis, worker: str, order: Order) -> None:
    """Give a worker an order.

    Raises:
        BrokerAway: the broker did not answer.
    """
    await command(primary, "PUBLISH", keys.CONTROL, f"{_FIRST} {order} {worker}")


def ordered(message: bytes, worker: str) -> Order | None:
    """What a message of the control channel orders this worker; None: nothing.

    Raises:
        ValueError: it is an order of another release.
    """
    first, _, rest = message.decode().partition(" ")
    order, _, whom = rest.partition(" ")
    return Order(order) if first == _FIRST and whom == worker else None


def is_order(message: bytes) -> bool:
    """Whether a message of the control channel is for workers as such, and not of an attempt."""
    return message.startswith(f"{_FIRST} ".encode())
