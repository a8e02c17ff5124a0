"""Finds the policy that a caller names, and checks that it can be called."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..authoring._env import Env
from ..errors import PolicyError, unknown_name
from ..rendering.renderer import Renderer
from ..trajectories._trajectory import Trajectory
from ._policy import Policy, PolicyLike
from ._random import RandomPolicy
from ._reply import ReplyPolicy
from ._vocabularies import check_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BUILT_IN = ("random", "reference", "null")
"""The names of the policies that need no model."""
_REQUEST_FIELDS = tuple(
    name
    for name, parameter in inspect.signature(Policy.__call__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)


class _PolicyByRole:
    """A policy that passes each request on to the policy of its role."""

    def __init__(self, policies: Mapping[str, Callable[..., Any]]) -> None:
        self._policies = policies

    def of(self, role: str) -> Callable[..., Any]:
        if role not in self._policies:
            raise PolicyError(
                f"there is no policy for the role {role!r}, only for {sorted(self._policies)}: add one to the mapping "
                "that you pass as the policy"
            )
        return self._policies[role]

    def __call__(self, prompt: "NDArray[np.int32]", *, role: str, **others: Any) -> Any:
        return self.of(role)(prompt, role=role, **others)


def check_policy(policy: Callable[..., Any], role: str, renderer: Renderer) -> None:
    """Check that a policy (or the policy of that role) was made for the renderer's tokenizer.

    Raises:
        TokenizerMismatch: See `check_tokenizer`.
    """
    check_tokenizer(_of_role(policy, role), renderer)


def why_not_sampled(policy: Callable[..., Any], role: str, name: str, value: Any) -> str | None:
    """Return why a policy (or the policy of that role) does not honor a sampling parameter; None if it may."""
    refuses: Any = getattr(_of_role(policy, role), "refuses_sampling", None)
    return None if refuses is None else refuses(name, value)


def check_takes_images(policy: Callable[..., Any], role: str) -> None:
    """Check that a policy (or the policy of that role) accepts the images of a prompt; see `Policy`.

    Raises:
        PolicyError: If it has no argument `media`.
    """
    own = _of_role(policy, role)
    try:
        parameters = inspect.signature(own).parameters.values()
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    if not any(each.name == "media" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        name = getattr(own, "__name__", type(own).__name__)
        raise PolicyError(
            f"the prompt has images, and the policy {name} takes none: add the keyword argument media, the images "
            "(PlacedImage) in order, or use a renderer and an environment without images"
        )


def mark_untrainable(trajectory: Trajectory, policy: Callable[..., Any]) -> None:
    """Note in a trajectory the contexts whose policy does not return what it sampled; see `Policy`."""
    for name in {step.context for step in trajectory.steps if step.parts}:
        log = trajectory.contexts[name]
        log.is_trainable = log.is_trainable and bool(getattr(_of_role(policy, log.role), "trainable", True))


def streams(policy: Callable[..., Any], role: str) -> bool:
    """Return whether a policy (or the policy of that role) reports tokens while it samples them; see `Policy`."""
    return bool(getattr(_of_role(policy, role), "streams", False))


def _of_role(policy: Callable[..., Any], role: str) -> Callable[..., Any]:
    return policy.of(role) if isinstance(policy, _PolicyByRole) else policy


def asks_environment(policy: Callable[..., Any], role: str) -> bool:
    """Return whether the policy of a role is an environment's own replies, and so a method of it."""
    return isinstance(_of_role(policy, role), ReplyPolicy)


def find_policy(policy: PolicyLike, env: Env, seed: int | None) -> Callable[..., Any]:
    """Return the policy that plays an episode of `env`: the built-in one of that name, or the given one.

    Args:
        policy: A policy, the name of a built-in one, or a mapping from roles to either.
        env: The environment of the episode.
        seed: The seed of `RandomPolicy`; None means 0.

    Raises:
        UnknownName: If no built-in policy has that name.
        PolicyError: If it is neither a name nor callable, or does not accept the arguments of `Policy`.
    """
    named: dict[str, Callable[[], Callable[..., Any]]] = {
        "random": lambda: RandomPolicy(env.renderer.tokenizer.vocab_size, seed=seed or 0),
        "reference": lambda: ReplyPolicy(env, lambda acting: acting.reference_reply()),
        "null": lambda: ReplyPolicy(env, lambda acting: acting.null_reply()),
    }
    if isinstance(policy, Mapping):
        by_role = cast("Mapping[str, PolicyLike]", policy)
        return _PolicyByRole({role: find_policy(one, env, seed) for role, one in by_role.items()})
    if isinstance(policy, str):
        if policy not in named:
            raise unknown_name("policy", policy, named, "To use a policy of your own, pass the function itself.")
        return named[policy]()
    for_episode: Any = getattr(policy, "for_episode", None)
    if for_episode is not None:
        policy = cast("Callable[..., Any]", for_episode(env, seed))
    if not callable(policy):
        raise PolicyError(
            f"policy is a {type(policy).__name__}; expected a function from a prompt to an Action, the name of a "
            "policy, or a mapping from roles to policies"
        )
    _check_parameters(policy)
    return policy


def _check_parameters(policy: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(policy)
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    try:
        signature.bind(None, **dict.fromkeys(_REQUEST_FIELDS))
    except TypeError as error:
        name = getattr(policy, "__name__", type(policy).__name__)
        advice = (
            f"it is a class: pass an instance, {name}(...)"
            if isinstance(policy, type)
            else f"write {name}(prompt, *, max_tokens, **_), where `**_` takes the arguments that it does not use"
        )
        raise PolicyError(
            f"the policy {name}{signature} cannot be called: {error}. A policy is called with the prompt and the "
            f"keyword arguments {', '.join(_REQUEST_FIELDS)}; {advice}"
        ) from None
