"""The check that a policy and a renderer use the same tokenizer.

A policy declares the tokenizer that it was made for in its attribute `tokenizer`. A plain function may have this
attribute as well.
"""

import weakref
from collections.abc import Callable
from typing import Any

from ..errors import TokenizerError, TokenizerMismatch
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer

ANY_TOKENIZER = "any"
"""The declaration of a policy that works with any tokenizer."""

_loaded: "weakref.WeakKeyDictionary[Any, tuple[object, Tokenizer]]" = weakref.WeakKeyDictionary()
"""For each declared object, the tokens that were added to it when it was loaded, and the loaded tokenizer."""


class PolicyWrapper:
    """A policy that calls a function with another policy, and has all other attributes of that policy.

    Args:
        function: The function. It is called with the wrapped policy, the prompt and the request.
        policy: The wrapped policy.
        tokenizer: The tokenizer to declare if the policy declares none.
        refuses_sampling: See `Policy`: the parameters that the function refuses, in addition to those of the policy.
    """

    def __init__(
        self,
        function: Any,
        policy: Any,
        tokenizer: Any = None,
        refuses_sampling: Callable[[str, Any], str | None] = lambda name, value: None,
    ) -> None:
        self._function, self._policy, self._refuses = function, policy, refuses_sampling
        declared = getattr(policy, "tokenizer", None)
        self.tokenizer = tokenizer if declared is None else declared
        self.trainable = getattr(policy, "trainable", True)
        if hasattr(policy, "abort"):
            self.abort = policy.abort
        if hasattr(policy, "for_episode"):
            self.for_episode = self._for_episode

    def __call__(self, prompt: Any, **request: Any) -> Any:
        """Call the function."""
        return self._function(self._policy, prompt, **request)

    def _for_episode(self, env: Any, seed: int | None) -> "PolicyWrapper":
        return PolicyWrapper(self._function, self._policy.for_episode(env, seed), self.tokenizer, self._refuses)

    def refuses_sampling(self, name: str, value: Any) -> str | None:
        """Return why the function, or else the policy, does not honor a sampling parameter."""
        of_policy: Any = getattr(self._policy, "refuses_sampling", None)
        return self._refuses(name, value) or (None if of_policy is None else of_policy(name, value))


def check_tokenizer(policy: object, renderer: Renderer) -> None:
    """Check that a policy was made for a renderer's tokenizer.

    Args:
        policy: The policy. Its optional attribute `tokenizer` is anything that `load_tokenizer` accepts, or `"any"`.
        renderer: The renderer that writes the policy's prompts.

    Raises:
        TokenizerMismatch: If the policy declares a tokenizer that differs from the renderer's; or if it declares none
            and the renderer has the default tokenizer, which no model was trained with.
        TokenizerError: If the declared tokenizer cannot be loaded.
    """
    declared: Any = getattr(policy, "tokenizer", None)
    if isinstance(declared, str) and declared == ANY_TOKENIZER:
        return
    name = str(getattr(policy, "name", getattr(policy, "__name__", type(policy).__name__)))
    if declared is None:
        if getattr(renderer.tokenizer, "is_default", False):
            raise TokenizerMismatch(
                f"the policy {name} would get token ids of the embedded tokenizer. It is the default only for the "
                "policies 'random', 'reference' and 'null', because no model was trained with it. Set the tokenizer of "
                "the policy's model in the environment or its renderer: tokenizer='<folder or Hugging Face id>' "
                "(--tokenizer). If the policy was made for the embedded tokenizer, set tokenizer='embedded'"
            )
        return
    known = _load(declared, name)
    if known.fingerprint != renderer.tokenizer.fingerprint:
        own = renderer.tokenizer
        raise TokenizerMismatch(
            f"the policy {name} was made for the tokenizer {known.name!r} (fingerprint {known.fingerprint}), but the "
            f"environment's renderer {renderer.name!r} has {own.name!r} (fingerprint {own.fingerprint}), whose ids "
            "have different meanings. Use the tokenizer of the policy's model for both"
        )


def _load(declared: Any, name: str) -> Tokenizer:
    """Load a declared tokenizer. Loading takes a second, so it is cached until tokens are added to the object."""
    can_be_cached = type(declared).__weakrefoffset__ > 0 and type(declared).__hash__ is not None
    added_of: Any = getattr(declared, "get_added_vocab", None)  # a tokenizer of transformers may get tokens
    added = None if added_of is None else added_of()
    known, tokenizer = _loaded.get(declared, (None, None)) if can_be_cached else (None, None)
    if tokenizer is not None and known == added:
        return tokenizer
    try:
        tokenizer = load_tokenizer(declared)
    except TokenizerError as error:
        raise TokenizerError(f"the attribute `tokenizer` of the policy {name} cannot be loaded: {error}") from error
    if can_be_cached:
        _loaded[declared] = added, tokenizer
    return tokenizer
