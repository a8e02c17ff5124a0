"""Policies: what answers a prompt with sampled tokens."""

import inspect
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import numpy as np

from ..authoring.env import Env
from ..contexts.protocol import Action, Observation
from ..errors import PolicyError, unknown_name
from ..messages import Message
from ..rendering.renderer import Renderer
from .vocabularies import ANY_TOKENIZER, check_tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Policy(Protocol):
    """Samples a reply to a prompt; `async def` or plain.

    Its attribute `tokenizer`, if it has one, declares which tokenizer it was made for: what `load_tokenizer` takes, or
    `"any"`. A context whose renderer has another one is refused (`TokenizerMismatch`). A policy that declares none may
    get the ids of every environment whose tokenizer was chosen.
    """

    def __call__(
        self,
        prompt: "NDArray[np.int32]",
        *,
        episode_id: str,
        context: str,
        base: str,
        role: str,
        keep: int,
        stop_token_ids: tuple[int, ...],
        stop: tuple[str, ...],
        max_tokens: int | None,
        sampling: Mapping[str, Any],
    ) -> Action | Awaitable[Action]:
        """Sample a reply.

        Args:
            prompt: The whole prompt, int32 of shape (n,), a copy.
            episode_id: The episode; with `context`, the key of a KV cache.
            context: Whose prompt it is.
            base: The context whose cache may be used again, ...
            keep: ... for so many tokens.
            role: The role of the context.
            stop_token_ids: Ids at which to stop; the one that is sampled belongs to the action.
            stop: Strings at which to stop.
            max_tokens: How many tokens the reply may have; None if nothing limits it, and the policy chooses.
            sampling: Sampling parameters that the environment asks for.
        """
        ...


PolicyLike: TypeAlias = str | Policy | Callable[..., Any] | Mapping[str, Any]
"""A policy, or the name of one: `random`, `reference` or `null`; or a mapping from roles to these."""


def request_of(observation: Observation, info: Mapping[str, Any], episode_id: str) -> dict[str, Any]:
    """What a policy is asked beside the prompt; see `Policy`."""
    return {
        "episode_id": episode_id,
        "context": observation.context,
        "base": observation.base,
        "role": info["role"],
        "keep": observation.keep,
        "stop_token_ids": info["stop_token_ids"],
        "stop": info["stop"],
        "max_tokens": info["max_tokens"],
        "sampling": info["sampling"],
    }


_ASKED = (
    *("episode_id", "context", "base", "role", "keep"),
    *("stop_token_ids", "stop", "max_tokens", "sampling"),
)
"""What a policy is asked by name; see `request_of`."""


class RandomPolicy:
    """Random ids, with exact log-probabilities; the same prompt of the same episode gives the same reply.

    Args:
        vocab_size: Ids are below it.
        seed: Another seed gives other replies.
        stop_probability: How likely each token is to be the stop token.
    """

    tokenizer = ANY_TOKENIZER

    def __init__(self, vocab_size: int, *, seed: int = 0, stop_probability: float = 0.1) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._stop_probability = stop_probability

    def __call__(
        self,
        prompt: "NDArray[np.int32]",
        *,
        episode_id: str,
        stop_token_ids: tuple[int, ...],
        max_tokens: int | None,
        **_: Any,
    ) -> Action:
        """Sample: at each position the stop token with its probability, else any id, all alike."""
        rng = np.random.default_rng([abs(self._seed), zlib.crc32(episode_id.encode()), zlib.crc32(prompt.tobytes())])
        length = int(rng.geometric(self._stop_probability))
        is_cut = max_tokens is not None and length > max_tokens
        length = min(length, max_tokens) if max_tokens is not None else length
        tokens = rng.integers(0, self._vocab_size - 1, size=length, dtype=np.int32)
        tokens += tokens >= stop_token_ids[0]  # any id but the stop token
        logprobs = np.full(length, np.log((1 - self._stop_probability) / (self._vocab_size - 1)), dtype=np.float32)
        if not is_cut:
            tokens[-1], logprobs[-1] = stop_token_ids[0], np.log(self._stop_probability)
        return Action(tokens, logprobs, "length" if is_cut else "stop")


class ReplyPolicy:
    """Says what a function returns as a message, with probability 1.

    Args:
        env: The environment that is played; the renderer of the context writes the message.
        reply: Returns the next reply of an environment, which may be a sub-agent: a message, or its text.
    """

    tokenizer = ANY_TOKENIZER

    def __init__(self, env: Env, reply: Callable[[Env], Message | str]) -> None:
        self._env = env
        self._reply = reply

    def __call__(
        self, prompt: "NDArray[np.int32]", *, context: str, max_tokens: int | None, stop: tuple[str, ...], **_: Any
    ) -> Action:
        """The reply as tokens: up to the first stop string in it, and at most `max_tokens`."""
        agent = self._env.episode.owners[context]
        renderer = agent.context.renderer
        reply = self._reply(agent.env)
        message = Message(role="assistant", content=reply) if isinstance(reply, str) else reply
        tokens = renderer.reply(message)
        tokens = tokens[: self._stop_at(renderer, tokens, stop)]
        is_cut = max_tokens is not None and len(tokens) > max_tokens
        tokens = tokens[:max_tokens]
        return Action(tokens, np.zeros(len(tokens), dtype=np.float32), "length" if is_cut else "stop")

    def _stop_at(self, renderer: Renderer, tokens: "NDArray[np.int32]", stop: tuple[str, ...]) -> int:
        """The position behind the token that completes the first stop string."""
        pieces = renderer.tokenizer.token_bytes(tokens)
        text = b"".join(pieces)
        ends = [text.index(name) + len(name) for name in map(str.encode, stop) if name in text]
        return int(np.searchsorted(np.cumsum([len(piece) for piece in pieces]), min(ends))) + 1 if ends else len(tokens)


class _ByRole:
    """Asks the policy of the role that the context has."""

    def __init__(self, policies: Mapping[str, Callable[..., Any]]) -> None:
        self._policies = policies

    def of(self, role: str) -> Callable[..., Any]:
        if role not in self._policies:
            raise PolicyError(f"there is no policy for the role {role!r}; there are some for {sorted(self._policies)}")
        return self._policies[role]

    def __call__(self, prompt: "NDArray[np.int32]", *, role: str, **others: Any) -> Any:
        return self.of(role)(prompt, role=role, **others)


def check_policy(policy: Callable[..., Any], role: str, renderer: Renderer) -> None:
    """Refuse a policy (the role's, if there are several) that does not know the renderer's ids."""
    check_tokenizer(policy.of(role) if isinstance(policy, _ByRole) else policy, renderer)


def find_policy(policy: PolicyLike, env: Env, seed: int | None) -> Callable[..., Any]:
    """The policy of that name for `env`, or the policy itself.

    Raises:
        UnknownName: If there is none of that name.
        PolicyError: If it is neither a name nor a callable.
    """
    named: dict[str, Callable[[], Callable[..., Any]]] = {
        "random": lambda: RandomPolicy(env.renderer.tokenizer.vocab_size, seed=seed or 0),
        "reference": lambda: ReplyPolicy(env, lambda speaker: speaker.reference_reply()),
        "null": lambda: ReplyPolicy(env, lambda speaker: speaker.null_reply()),
    }
    if isinstance(policy, Mapping):
        by_role = cast("Mapping[str, PolicyLike]", policy)
        return _ByRole({role: find_policy(one, env, seed) for role, one in by_role.items()})
    if isinstance(policy, str):
        if policy not in named:
            raise unknown_name("policy", policy, named, "One of your own is passed as a function.")
        return named[policy]()
    if not callable(policy):
        raise PolicyError(f"a policy is a function from a prompt to an Action, got a {type(policy).__name__}")
    _check_parameters(policy)
    return policy


def _check_parameters(policy: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(policy)
    except (TypeError, ValueError):  # a built-in function does not tell
        return
    try:
        signature.bind(None, **dict.fromkeys(_ASKED))
    except TypeError as error:
        name = getattr(policy, "__name__", type(policy).__name__)
        advice = (
            f"it is a class: give an object of it, {name}(...)"
            if isinstance(policy, type)
            else f"write {name}(prompt, *, max_tokens, **_): `**_` takes what it has no use for"
        )
        raise PolicyError(
            f"the policy {name}{signature} cannot be asked for a reply: {error}. It gets the prompt, and by name "
            f"{', '.join(_ASKED)}; {advice}"
        ) from None
