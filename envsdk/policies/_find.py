"""Finds the policy that a caller names, or the policy of a role, and checks that it can be called."""

import inspect
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from .._visible import type_of
from ..authoring._env import Env
from ..authoring._event_loops import run
from ..authoring._making import imported
from ..errors import ConfigError, PolicyError, UnknownName
from ._built_in import RandomPolicy, ReplyPolicy
from ._openai_chat import OpenAIChat
from ._policy import Policy, PolicyLike
from ._sglang import SGLang
from ._transformers import TransformersPolicy, load_model
from ._vllm import VLLM

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BUILT_IN = ("random", "reference", "null")
"""The names of the policies that need no model."""
_SERVED: dict[str, Callable[..., Any]] = {"vllm": VLLM, "sglang": SGLang}
SERVED = (*_SERVED, "openai")
"""The policies whose models are on servers."""
_REQUEST_FIELDS = tuple(
    name
    for name, parameter in inspect.signature(Policy.__call__).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)


@dataclass(eq=False, repr=False)
class _PolicyByRole:
    """A policy that passes each request on to the policy of its role."""

    _policies: Mapping[str, Callable[..., Any]]

    def of(self, role: str) -> Callable[..., Any]:
        if role not in self._policies:
            raise PolicyError(
                f"there is no policy for the role {role!r}, only for {sorted(self._policies)}: add one to the mapping "
                "that you pass as the policy"
            )
        return self._policies[role]

    def __call__(self, prompt: "NDArray[np.int32]", *, role: str, **others: Any) -> Any:
        return self.of(role)(prompt, role=role, **others)


def of_role(policy: Callable[..., Any], role: str) -> Callable[..., Any]:
    """Return the policy of a role, if there is a mapping with one for each role."""
    return policy.of(role) if isinstance(policy, _PolicyByRole) else policy


def why_not_sampled(policy: Callable[..., Any], role: str, name: str, value: Any) -> str | None:
    """Return why a policy (or the policy of that role) does not honor a sampling parameter; None if it may."""
    refuses: Any = getattr(of_role(policy, role), "refuses_sampling", None)
    return None if refuses is None else refuses(name, value)


def check_takes_images(policy: Callable[..., Any], role: str) -> None:
    """Check that a policy (or the policy of that role) accepts the images of a prompt; see `Policy`.

    Raises:
        PolicyError: If it has no argument `media`.
    """
    own = of_role(policy, role)
    try:
        parameters = inspect.signature(own).parameters.values()
    except (TypeError, ValueError):  # a built-in function without a signature
        return
    if not any(each.name == "media" or each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        name = getattr(own, "__name__", type(own).__name__)
        raise PolicyError(
            f"the prompt has images, and the policy {name} does not take images: add the keyword argument media, the "
            "images (PlacedImage) in order, or use a renderer and an environment without images"
        )


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
            raise UnknownName.of("policy", policy, named, "To use your own policy, pass the function itself.")
        return named[policy]()
    if isinstance(policy, type):
        raise PolicyError(f"the policy is {type_of(policy)}: pass an instance, {policy.__name__}(...)")
    for_episode: Any = getattr(policy, "for_episode", None)
    if for_episode is not None:
        policy = cast("Callable[..., Any]", for_episode(env, seed))
    if not callable(policy):
        raise PolicyError(
            f"policy is {type_of(policy)}; expected a function from a prompt to an Action, the name of a "
            "policy, or a mapping from roles to policies"
        )
    try:
        signature = inspect.signature(policy)
    except (TypeError, ValueError):  # a built-in function without a signature
        return policy
    try:
        signature.bind(None, **dict.fromkeys(_REQUEST_FIELDS))
    except TypeError as error:
        name = getattr(policy, "__name__", type(policy).__name__)
        raise PolicyError(
            f"the policy {name}{signature} cannot be called: {error}. A policy is called with the prompt and the "
            f"keyword arguments {', '.join(_REQUEST_FIELDS)}; write {name}(prompt, *, max_tokens, **_), where "
            "`**_` takes the arguments that it does not use"
        ) from None
    return policy


@contextmanager
def closing_policy(policy: Any) -> Generator[None]:
    """Close the connections of a policy at the end, if it has any."""
    try:
        yield
    finally:
        if hasattr(policy, "aclose"):
            run(policy.aclose())


def policy_of(text: str, **options: Any) -> PolicyLike:
    """Return the policy that a string specifies.

    Args:
        text: `random`, `reference` or `null`; `vllm:URL`, `sglang:URL` or `openai:URL`, with commas between the URLs of
            several servers; `transformers:FOLDER`; or `module:name` of a policy, or of a class whose object is one.
        options: The arguments of `VLLM`, `SGLang` or `OpenAIChat`, such as `model`; those of `TransformersPolicy` and
            the `dtype` of the weights; or those of the class, or further ones of the function.

    Raises:
        UnknownName: If there is no such policy.
        PluginError: If `module:name` cannot be imported.
        ConfigError: If an option is missing or not valid, a built-in policy has one, or a folder has no model.
        MissingPackage: If the policy needs a package that is not installed.
    """
    kind, separator, urls = text.partition(":")
    if not separator and kind in BUILT_IN:
        if options:
            raise ConfigError(f"the policy {text!r} has no options, but {sorted(options)} were given")
        return text
    kinds = [*SERVED, "transformers"]
    is_own = kind not in kinds and separator and not urls.startswith("http")
    if kind not in kinds and not is_own:
        forms = [*BUILT_IN, *(f"{name}:URL" for name in kinds[:-1]), "transformers:FOLDER"]
        raise UnknownName.of("policy", f"{kind}:URL" if separator else kind, forms, "Your own is module:function.")
    if not urls:
        what = "folder; expected transformers:FOLDER" if kind == "transformers" else f"URL; expected {kind}:URL"
        example = "./my-model" if kind == "transformers" else "http://localhost:8000"
        raise ConfigError(f"the policy {text!r} has no {what}, such as {kind}:{example}")
    try:
        if is_own:
            found = imported(
                text, f"your own policy, as module:function, or {', '.join(f'{name}:...' for name in kinds)}"
            )
            if isinstance(found, type):
                return found(**options)
            _, *own = inspect.signature(found).parameters.values() if options else (None,)
            known = [one.name for one in own if one.kind is one.KEYWORD_ONLY and one.name not in _REQUEST_FIELDS]
            for name in options.keys() - known:
                raise UnknownName.of(f"option of the policy {text!r}", name, known)
            return partial(found, **options) if options else found
        if kind == "transformers":
            model = load_model(urls, dtype=options.pop("dtype", "float32"))
            return TransformersPolicy(model, **options)
        if kind == "openai":
            return OpenAIChat(urls, **options)
        return _SERVED[kind](urls.split(","), **options)
    except TypeError as error:
        raise ConfigError(f"the options {sorted(options)} do not fit the policy {text!r}: {error}") from error
