"""Scoring functions, as a user's package has them."""

import asyncio
from typing import Any

from envsdk.rewards import numeric


def exact(reply: str, answer: str) -> float:
    return float(reply.strip() == answer)


async def slowly(reply: str, answer: str) -> dict[str, float]:
    await asyncio.sleep(0)
    return {"right": float(reply.strip() == answer), "short": float(len(reply) < 10) / 10}


def of_the_row(reply: str, answer: str, row: dict[str, Any]) -> dict[str, float] | None:
    return None if row.get("unscored") else {"right": float(reply == answer), "weight": row["weight"]}


class Scorers:
    """Some of a class."""

    @staticmethod
    def length(reply: str) -> float:
        return float(len(reply))


number = numeric(find="last")
