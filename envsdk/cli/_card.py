"""`envsdk card`: what an environment exercises, and what its reference and null policy score, measured."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Annotated, Any

import typer

from .._registry import find_creator
from ..authoring._driver import seeds_of
from ..authoring._env import Env
from ..authoring._making import CatalogEntry, describe, splits_of
from ..errors import PluginError
from ..rollouts import rollout_many
from ..trajectories._trajectory import Trajectory
from ._options import (
    SPECIFICATION,
    AsJson,
    EnvName,
    EnvOptions,
    RendererOption,
    SeedsOption,
    TasksOption,
    TokenizerOption,
    env_options,
    environment,
    maker,
    specification,
)
from ._output import print_json, print_text


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of an environment.

    Attributes:
        environment: What its class declares, and the package that registers it.
        measured: How many seeds were played, and the figures of a policy are the averages of their episodes.
        features: What its episodes use: `multi-turn`, `tools`, `images`, `contexts` (several agents), `sub-agents`.
        rewards: The names of its rewards.
        splits: The splits that it offers.
        breaks: For each history policy, the reasons of the breaks in its episodes.
        scores: For each policy, `reference` and `null`, the reward of each episode.
        steps, observed_tokens, sampled_tokens: For each policy, the average per episode.
    """

    environment: CatalogEntry
    measured: int
    features: tuple[str, ...] = ()
    rewards: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    breaks: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    scores: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    steps: dict[str, float] = field(default_factory=dict[str, float])
    observed_tokens: dict[str, float] = field(default_factory=dict[str, float])
    sampled_tokens: dict[str, float] = field(default_factory=dict[str, float])

    def score(self, policy: str) -> str:
        """Return the lowest and the highest score of a policy, `0 to 1`, or the only one."""
        scores = self.scores.get(policy, [])
        ends = dict.fromkeys(round(value, 9) for value in (min(scores), max(scores))) if scores else ()
        return " to ".join(f"{value:g}" for value in ends) or "none"

    def markdown(self) -> str:
        """Return the card as Markdown."""
        of = self.environment
        names = ", ".join(f"`{name}`" for name in self.rewards) or "none"
        least, most = ("?" if bound is None else f"{bound:g}" for bound in of.reward_range)
        facts = {
            "package": f"{of.package} {of.version}".strip(),
            "exercises": of.exercises,
            "features": ", ".join(self.features),
            "tools": ", ".join(f"`{tool}`" for tool in of.tools),
            "rewards": f"{names}; an episode earns {least} to {most}",
            "splits": ", ".join(self.splits),
            "tasks": "one for each seed" if of.n_tasks is None else f"{of.n_tasks:,}",
            "same seed, same episode": "no" if of.nondeterministic else "",
            **{f"breaks under {name}": ", ".join(reasons) or "none" for name, reasons in self.breaks.items()},
        }
        cells = {name: " ".join(text.split()).replace("|", "\\|") for name, text in facts.items() if text}
        rows = "".join(f"| {name} | {text} |\n" for name, text in cells.items())
        played = "".join(
            f"| {policy} | {fmean(scores):g} ({self.score(policy)}) | {self.steps[policy]:g} | "
            f"{self.observed_tokens[policy]:,.0f} | {self.sampled_tokens[policy]:,.0f} |\n"
            for policy, scores in self.scores.items()
        )
        head = "| policy | score | steps | observed tokens | sampled tokens |\n|---|---|---|---|---|\n"
        note = f"Averages of {self.measured} episodes, one for each seed."
        return f"# {of.id}\n\n{of.summary}\n\n| | |\n|---|---|\n{rows}\n{head}{played}\n{note}\n"


def card_of(name: str, *, seeds: int | str = 16, histories: Sequence[Any] = ("strip",), **options: Any) -> Card:
    """Measure an environment and return its card. A policy that the environment lacks is left out.

    Args:
        name: Its id, or its class as `module:Class`.
        seeds: The seeds to play; see `Rollouts`.
        histories: History policies besides `keep`, for which breaks are found, with the first policy.
        **options: Options of the environment.

    Raises:
        UnknownName: If no environment has that id.
        PluginError: If this machine cannot make it, or an episode of its own policies fails.
    """
    if ":" not in name:
        find_creator(name)
    entry = describe(name, **options)
    if entry.problem is not None:
        raise PluginError(f"{name} cannot be made on this machine: {entry.problem}")

    played_seeds = seeds_of(seeds)

    def played(policy: str, history: Any) -> list[Trajectory]:
        made = maker(name, {**options, "history": history})
        found = rollout_many(made, policy, seeds=played_seeds)
        if failed := [one.error for one in found if one.error is not None]:
            raise PluginError(f"an episode of {name} with the {policy} policy failed: {failed[0]}")
        return found

    env = maker(name, options)()
    env.close()
    policies = ["null"] if type(env).reference_reply is Env.reference_reply else ["reference", "null"]
    episodes = {policy: played(policy, "keep") for policy in policies}
    best = episodes[policies[0]]
    others = {_name(history): played(policies[0], history) for history in histories}

    def means(figure: Callable[[Trajectory], int]) -> dict[str, float]:
        return {policy: fmean(map(figure, found)) for policy, found in episodes.items()}

    return Card(
        entry,
        len(played_seeds),
        features=_features(env, best),
        rewards=tuple(dict.fromkeys(name for one in best for step in one.steps for name in step.rewards)),
        splits=tuple(splits_of(type(env))),
        breaks={name: _reasons(found) for name, found in {"keep": best, **others}.items()},
        scores={policy: [one.reward for one in found] for policy, found in episodes.items()},
        steps=means(lambda one: len(one.steps)),
        observed_tokens=means(lambda one: one.observed_tokens),
        sampled_tokens=means(lambda one: one.sampled_tokens),
    )


def _features(env: Env, episodes: Sequence[Trajectory]) -> tuple[str, ...]:
    logs = [log for one in episodes for log in one.contexts.values()]
    found = {
        "multi-turn": any(len(one.steps) > len(one.contexts) for one in episodes),
        "tools": any(log.tools for log in logs),
        "images": env.shows_images or any(log.media for log in logs),
        "contexts": any(len(one.contexts) > 1 for one in episodes),
        "sub-agents": any(log.parent is not None for log in logs),
    }
    return tuple(name for name, is_there in found.items() if is_there)


def _reasons(episodes: Sequence[Trajectory]) -> list[str]:
    return sorted({break_.reason for one in episodes for break_ in one.breaks})


def _name(history: Any) -> str:
    return history if isinstance(history, str) else str(history["name"])


def card(
    env: EnvName,
    seeds: SeedsOption = "16",
    history: Annotated[
        list[str] | None, typer.Option(help=SPECIFICATION + " Find its breaks, too; by default those of strip.")
    ] = None,
    renderer: RendererOption = None,
    tokenizer: TokenizerOption = None,
    option: EnvOptions = None,
    tasks: TasksOption = None,
    as_json: AsJson = False,
) -> None:
    """Print an environment's card: what it exercises, and what its reference and null policy score, measured."""
    _ = environment(env)  # raises now if its module cannot be imported
    options = env_options(option, renderer, tokenizer, None, tasks)
    found = card_of(env, seeds=seeds, histories=[*map(specification, history or ["strip"])], **options)
    print_json(asdict(found)) if as_json else print_text(found.markdown().rstrip())
