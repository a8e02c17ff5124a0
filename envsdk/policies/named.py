"""Policies by name, as the command line specifies them."""

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, unknown_name
from .find import BUILT_IN
from .openai_chat import OpenAIChat
from .policy import PolicyLike
from .sglang import SGLang
from .vllm import VLLM

_SERVED: dict[str, Callable[..., Any]] = {"vllm": VLLM, "sglang": SGLang}


def policy_of(text: str, **options: Any) -> PolicyLike:
    """Return the policy that a text specifies.

    Args:
        text: `random`, `reference` or `null`; or `vllm:URL`, `sglang:URL` or `openai:URL`. The URLs of several servers
            are separated by commas.
        options: The arguments of `VLLM`, `SGLang` or `OpenAIChat`, such as `model`.

    Raises:
        UnknownName: If there is no such policy.
        ConfigError: If an option is missing or not valid, or a built-in policy has one.
    """
    kind, separator, urls = text.partition(":")
    if not separator and kind in BUILT_IN:
        if options:
            raise ConfigError(f"the policy {text!r} has no options, but {sorted(options)} were given")
        return text
    kinds = [*_SERVED, "openai"]
    if kind not in kinds:
        forms = [*BUILT_IN, *(f"{name}:URL" for name in kinds)]
        raise unknown_name("policy", f"{kind}:URL" if separator else kind, forms)
    if not urls:
        raise ConfigError(f"the policy {text!r} has no URL; expected {kind}:URL, such as {kind}:http://localhost:8000")
    try:
        if kind == "openai":
            return OpenAIChat(urls, **options)
        return _SERVED[kind](urls.split(","), **options)
    except TypeError as error:
        raise ConfigError(f"the options {sorted(options)} do not fit the policy {text!r}: {error}") from error
