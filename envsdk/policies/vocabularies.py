"""Whether a policy knows what the ids mean that a renderer writes: the tokenizers of both are compared.

A policy declares the tokenizer that it was made for as its attribute `tokenizer`; a plain function may have one, too.
"""

import weakref
from typing import Any

from ..errors import TokenizerError, TokenizerMismatch
from ..rendering.renderer import Renderer
from ..rendering.tokenizers import Tokenizer, load_tokenizer

ANY_TOKENIZER = "any"
"""What a policy declares that answers in any vocabulary."""

_loaded: "weakref.WeakKeyDictionary[Any, tuple[object, Tokenizer]]" = weakref.WeakKeyDictionary()
"""For each object the tokens that were added to it when it was loaded, and what it was loaded as."""


class Layer:
    """A function in front of a policy. It declares what the policy declares.

    Args:
        ask: Called in the policy's place.
        policy: The policy.
        tokenizer: What it declares if the policy declares nothing.
    """

    def __init__(self, ask: Any, policy: Any, tokenizer: Any = None) -> None:
        self._ask = ask
        declared = getattr(policy, "tokenizer", None)
        self.tokenizer = tokenizer if declared is None else declared

    def __call__(self, *args: Any, **request: Any) -> Any:
        """Ask."""
        return self._ask(*args, **request)


def check_tokenizer(policy: object, renderer: Renderer) -> None:
    """Refuse to show a policy ids that mean something else to it.

    Args:
        policy: What samples. Its attribute `tokenizer`, if it has one, is what `load_tokenizer` takes, or `"any"`.
        renderer: What writes its prompts.

    Raises:
        TokenizerMismatch: If the policy declares another tokenizer than the renderer has; or if it declares none, and
            nobody chose the renderer's: no model knows the default.
        TokenizerError: If what it declares is not a tokenizer.
    """
    declared: Any = getattr(policy, "tokenizer", None)
    if isinstance(declared, str) and declared == ANY_TOKENIZER:
        return
    name = str(getattr(policy, "__name__", type(policy).__name__))
    if declared is None:
        _refuse_default(name, renderer)
        return
    known = _load(declared, name)
    if known.fingerprint != renderer.tokenizer.fingerprint:
        own = renderer.tokenizer
        raise TokenizerMismatch(
            f"the policy {name} was made for the tokenizer {known.name!r} (fingerprint {known.fingerprint}), but the "
            f"environment's renderer {renderer.name!r} has {own.name!r} (fingerprint {own.fingerprint}), whose ids "
            "mean something else. Give both the same tokenizer, that of the policy's model"
        )


def _refuse_default(name: str, renderer: Renderer) -> None:
    if getattr(renderer.tokenizer, "is_default", False):
        raise TokenizerMismatch(
            f"the policy {name} would get ids of the embedded vocabulary, which is the default for the policies "
            "'random', 'reference' and 'null' alone, since no model knows it. Give the environment (or its renderer) "
            "the tokenizer of the policy's model: tokenizer='<folder or Hugging Face id>'. If the policy was made for "
            "the embedded vocabulary, choose it: tokenizer='embedded'"
        )


def _load(declared: Any, name: str) -> Tokenizer:
    """Load what a policy declares, once for each object until tokens are added to it: one takes a second."""
    can_be_kept = type(declared).__weakrefoffset__ > 0 and type(declared).__hash__ is not None
    added = _added_to(declared)
    known, tokenizer = _loaded.get(declared, (None, None)) if can_be_kept else (None, None)
    if tokenizer is not None and known == added:
        return tokenizer
    try:
        tokenizer = load_tokenizer(declared)
    except TokenizerError as error:
        raise TokenizerError(f"the attribute `tokenizer` of the policy {name}: {error}") from error
    if can_be_kept:
        _loaded[declared] = added, tokenizer
    return tokenizer


def _added_to(declared: Any) -> object:
    """The tokens that were added to a tokenizer of transformers; None for any other object."""
    read: Any = getattr(declared, "get_added_vocab", None)
    return None if read is None else read()
