"""Draws tasks."""

from typing import Literal, TypeAlias

import numpy as np

from envsdk.authoring.tasks import Split, split_of

from .forms import Builder
from .records import Customer
from .refused_wishes import GRANTED, REFUSED, TWISTED, impostor
from .tasks import Persona, RetailDeskTask
from .world import Dice, Name, World, random_customer, random_name, random_policy

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]


def draw_task(rng: np.random.Generator, split: Split, difficulty: Difficulty) -> RetailDeskTask:
    """A task. Its customer decides on the split: whoever writes in a task of one split writes in none of the other.

    Strangers, whose records are in the database too, are drawn from all names, whatever the split.
    """
    dice = Dice(rng)
    customer = random_customer(dice, f"C-{dice.number(1000, 9999)}", draw_name(dice, split))
    world = World(dice, random_policy(dice), customer, knows_numbers=_knows_numbers(dice, difficulty))
    builders = _choose(dice, difficulty)
    wishes = [build(world) for build in builders]
    world.add_order(dice.choice(("processing", "shipped")))  # one that no wish is about, and somebody else's
    world.add_order(dice.choice(("processing", "shipped")), owner=world.add_stranger())
    return RetailDeskTask(
        database=world.database(),
        policy=world.policy,
        persona=_persona(dice, customer, difficulty, is_impostor=impostor in builders),
        wishes=tuple(wishes),
    )


def draw_name(dice: Dice, split: Split) -> Name:
    """Who writes in a task of a split."""
    while True:
        name = random_name(dice)
        if split_of(" ".join(name)) == split:
            return name


def _knows_numbers(dice: Dice, difficulty: Difficulty) -> bool:
    return difficulty == "easy" or dice.chance(70 if difficulty == "medium" else 40)


def _choose(dice: Dice, difficulty: Difficulty) -> list[Builder]:
    """What the customer wants, one after the other."""
    if difficulty == "easy":
        return [dice.choice(GRANTED)]
    if difficulty == "medium":
        return [dice.choice(dice.choice((GRANTED, REFUSED, REFUSED, TWISTED, (*TWISTED, impostor))))]
    chosen = [dice.choice(REFUSED), dice.choice(TWISTED)]
    if dice.chance(50):
        chosen.append(dice.choice(GRANTED))
    return dice.sample(chosen, len(chosen))


def _persona(dice: Dice, customer: Customer, difficulty: Difficulty, *, is_impostor: bool) -> Persona:
    right = customer.address.postal_code
    wrong = str(10_000 + (int(right) - 10_000 + dice.number(1, 89_999)) % 90_000)
    opening = "all" if difficulty == "easy" else "wish"
    if difficulty == "medium" and dice.chance(30):
        opening = "identity"
    return Persona(
        name=customer.name,
        postal_code=wrong if is_impostor else right,
        email=None if is_impostor or dice.chance(50) else customer.email,
        opening=opening,
    )
