"""The contract of a policy: a function from a prompt to an action."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from ..contexts._protocol import Action, Observation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Policy(Protocol):
    """A function that samples a reply to a prompt; `async def` or plain.

    Its optional attribute `tokenizer` declares the tokenizer that the policy was made for: anything that
    `load_tokenizer` accepts, or `"any"`. If a context's renderer has a different tokenizer, the rollout raises
    `TokenizerMismatch`. A policy without the attribute may be used with any environment whose tokenizer was set
    explicitly.

    A policy may also have:

    - `name`: what reports call it; by default, the name of the function or the class.
    - `trainable`: False if it exchanges text, so that the tokens of its actions are not the sampled ones. Its contexts
      give no samples.
    - `for_episode(env, seed)`: returns the policy that plays one episode of `env`. A rollout calls it once for each
      episode, and calls the returned policy.
    - `streams`: True if it also accepts the keyword `on_tokens`: a function that it calls with the tokens of the reply
      while it samples them, one or several at a time. Together they are exactly those of the action that it returns. If
      the function returns True, the policy ends the reply after these tokens, with the finish reason `stop`. The
      argument is given only where the reply is read while it is sampled.
    - `refuses_sampling(name, value)`: returns why the policy does not honor a sampling parameter, or None if it does. A
      request of an agent program with such a parameter is then answered with an error, and the episode goes on.
    - `media`, a keyword that it accepts: the images of the prompt (`PlacedImage`, in order), each with the range of its
      placeholder tokens in the prompt. The argument is given only where the prompt has images.
    - `abort()`: ends the replies that are being sampled, each with the tokens sampled so far and the finish reason
      `abort`; `async def` or plain.
    - `aclose()`: `async def`; closes its connections.
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
            prompt: The whole prompt, int32 of shape (n,). It is a copy, so the policy may change it.
            episode_id: The episode's id. Key a KV cache by `(episode_id, context)`.
            context: The name of the context that the prompt belongs to.
            base: The name of the context whose prefix the prompt starts with.
            keep: The number of tokens in that prefix. The KV cache of `base` is valid for these tokens.
            role: The role of the agent that acts.
            stop_token_ids: Token ids that end the reply. The sampled stop token is part of the action.
            stop: Strings that end the reply.
            max_tokens: The maximum number of tokens in the reply. None if there is no limit; the policy then
                chooses one.
            sampling: Sampling parameters that the environment requests, such as `{"temperature": 0.0}`.
        """
        ...


PolicyLike: TypeAlias = str | Policy | Callable[..., Any] | Mapping[str, Any]
"""A policy; the name of a built-in one (`random`, `reference` or `null`); or a mapping from roles to either."""


def request_of(observation: Observation, info: Mapping[str, Any], episode_id: str) -> dict[str, Any]:
    """Return the keyword arguments for a `Policy`: everything but the prompt."""
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
        **({"media": info["media"]} if "media" in info else {}),
    }
