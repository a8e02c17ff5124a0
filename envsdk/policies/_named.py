"""Policies by name, as the command line specifies them."""

from collections.abc import Callable
from typing import Any

from ..errors import ConfigError, unknown_name
from ._find import BUILT_IN
from ._openai_chat import OpenAIChat
from ._policy import PolicyLike
from ._sglang import SGLang
from ._transformers import TransformersPolicy, load_model
from ._vllm import VLLM

_SERVED: dict[str, Callable[..., Any]] = {"vllm": VLLM, "sglang": SGLang}
SERVED = (*_SERVED, "openai")
"""The policies whose models are on servers."""


def policy_of(text: str, **options: Any) -> PolicyLike:
    """Return the policy that a text specifies.

    Args:
        text: `random`, `reference` or `null`; `vllm:URL`, `sglang:URL` or `openai:URL`; or `transformers:FOLDER`. The
            URLs of several servers are separated by commas.
        options: The arguments of `VLLM`, `SGLang` or `OpenAIChat`, such as `model`; or those of `TransformersPolicy`
            and the `dtype` of the weights.

    Raises:
        UnknownName: If there is no such policy.
        ConfigError: If an option is missing or not valid, a built-in policy has one, or a folder has no model.
        MissingPackage: If the policy needs a package that is not installed.
    """
    kind, separator, urls = text.partition(":")
    if not separator and kind in BUILT_IN:
        if options:
            raise ConfigError(f"the policy {text!r} has no options, but {sorted(options)} were given")
        return text
    kinds = [*SERVED, "transformers"]
    if kind not in kinds and separator and not urls.startswith("http"):
        raise ConfigError(
            f"the policy {text!r} is neither a built-in one nor one of {', '.join(f'{name}:...' for name in kinds)}; a "
            "function or class of yours is passed in Python: Rollouts(env, policy, seeds=range(8)).run()"
        )
    if kind not in kinds:
        forms = [*BUILT_IN, *(f"{name}:URL" for name in kinds[:-1]), "transformers:FOLDER"]
        raise unknown_name("policy", f"{kind}:URL" if separator else kind, forms)
    if not urls:
        what = "folder; expected transformers:FOLDER" if kind == "transformers" else f"URL; expected {kind}:URL"
        example = "./my-model" if kind == "transformers" else "http://localhost:8000"
        raise ConfigError(f"the policy {text!r} has no {what}, such as {kind}:{example}")
    try:
        if kind == "transformers":
            return _local(urls, **options)
        if kind == "openai":
            return OpenAIChat(urls, **options)
        return _SERVED[kind](urls.split(","), **options)
    except TypeError as error:
        raise ConfigError(f"the options {sorted(options)} do not fit the policy {text!r}: {error}") from error


def _local(folder: str, *, dtype: str = "float32", **options: Any) -> TransformersPolicy:
    return TransformersPolicy(load_model(folder, dtype=dtype), **options)
