"""Startup checks of a model server: is it set up so that its replies can be trained on?

Each failed check raises `ServerMismatch`, which names the server's flag.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, Field

from ..errors import ConfigError, RequestRefused, ServerMismatch, ServerReplyError
from ..limits import Limits
from ..rendering.tokenizers import Tokenizer
from ._client import Client
from ._sampling import Sampling
from ._server_replies import ServerReply, ServerRequest, read_response
from ._servers import Server

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "  two  spaces,\ttabs\nand\r\n\nlines ",
    "1234567890 3.14159 1,000,000 0x7f",
    "def f(x: int) -> str:\n    return f'{x!r}' if x != 0 else \"\"",
    '{"name": "search", "arguments": {"query": "naïve café"}}',
    "Größe, façade, żółw, Ελληνικά, русский, עברית, العربية, हिन्दी",
    "语言模型从文本中学习。日本語の文章。한국어 문장입니다.",
    "🙂🚀 ∑∫√ ≤ ≠ → ™",
    "ANTIDISESTABLISHMENTARIANISM xqzvwk aaaaaaaaaaaaaaaa",
)
"""Texts that different vocabularies split differently."""
_MAX_CONTROL_TOKENS = 64
_PROBE_TOKENS = 64  # of a prompt
_TOP = 5
_TEMPERATURE = 2.0
_IS_RAW = 0.75  # the ratio of differences is 1 / _TEMPERATURE if log-probabilities are processed, else 1
_SUM_TOLERANCE = 0.02


class Checked(Protocol):
    """What the checks need of a policy."""

    name: ClassVar[str]
    model: str | None
    spare_tokens: ClassVar[int]
    """How many tokens of a context the server keeps free."""

    @property
    def flags(self) -> Mapping[str, str]:
        """What to change on the server if a check fails."""
        ...

    async def generate(self, client: Client, server: Server, request: ServerRequest) -> ServerReply:
        """Let a server sample a reply."""
        ...

    def check_sampling(self, sampling: Sampling) -> None:
        """Refuse sampling parameters."""
        ...


class _Model(BaseModel):
    id: str
    max_model_len: int | None = None
    parent: str | None = None


class _Models(BaseModel):
    data: list[_Model] = Field(min_length=1)


class _Tokens(BaseModel):
    tokens: list[int]


async def check_server(policy: Checked, client: Client, server: Server, prompt: "NDArray[np.int32]") -> None:
    """Check a server's model and its log-probabilities, and read the length of its contexts.

    Args:
        policy: The policy.
        client: Sends the requests.
        server: The server.
        prompt: Tokens that the model knows, for the probe of log-probabilities.

    Raises:
        ServerMismatch: If a check fails.
        Failure: If the server cannot be reached.
    """
    await check_model(policy, client, server)
    await _check_logprobs(policy, client, server, prompt[-_PROBE_TOKENS:])
    server.is_checked = True


async def check_vocabulary(policy: Checked, client: Client, server: Server, tokenizer: Tokenizer) -> None:
    """Check that a server's model has the same vocabulary as a tokenizer, with a few dozen texts and control tokens.

    Raises:
        ServerMismatch: If a text has other ids, or the server does not tokenize.
        Failure: If the server cannot be reached.
    """
    names = list(tokenizer.control_tokens)[:_MAX_CONTROL_TOKENS]
    expected = {text: tokenizer.encode(text).tolist() for text in _TEXTS}
    expected |= {name: [tokenizer.token_id(name)] for name in names}
    for text, ids in expected.items():
        body = {"prompt": text, "add_special_tokens": False, **_named(policy)}
        try:
            found = read_response(_Tokens, await client.request(server, "POST", "/tokenize", body))
        except RequestRefused as error:
            raise ServerMismatch(
                f"{server.url} cannot tokenize, so its vocabulary cannot be compared with that of the tokenizer "
                f"{tokenizer.name!r}: {error}. {policy.flags['tokenize']}, or pass check=False"
            ) from error
        if found.tokens != ids:
            raise ServerMismatch(
                f"the model of {server.url} has another vocabulary than the tokenizer {tokenizer.name!r} of the "
                f"environment: the text {text!r:.60} has the ids {found.tokens[:8]} on the server and {ids[:8]} in the "
                f"environment. {policy.flags['vocabulary']}, or pass the model's tokenizer to the environment"
            )
    server.tokenizers.add(tokenizer.fingerprint)


def check_length(server: Server, limits: Limits, flags: Mapping[str, str]) -> None:
    """Check that a server's contexts are as long as an environment's limits allow.

    Raises:
        ServerMismatch: If they are shorter.
    """
    wanted, longest = limits.max_context_tokens, server.max_model_len
    if wanted is not None and longest is not None and wanted > longest:
        raise ServerMismatch(
            f"the environment's contexts may have {wanted} tokens (Limits.max_context_tokens), but {server.url} "
            f"takes at most {longest}: {flags['length'].format(wanted)}, or lower the limit"
        )


async def check_model(policy: Checked, client: Client, server: Server) -> None:
    """Check that a server has the policy's model, and read the length of its contexts and whether it is an adapter.

    Raises:
        ServerMismatch: If it does not list the model.
        Failure: If the server cannot be reached.
    """
    try:
        response = await client.request(server, "GET", "/v1/models")
    except RequestRefused as error:
        raise ServerMismatch(f"{server.url} does not list its models: {error}. {policy.flags['models']}") from error
    models = read_response(_Models, response).data
    named = [model for model in models if policy.model in (None, model.id)]
    if not named:
        raise ServerMismatch(
            f"{server.url} has no model named {policy.model!r}, only {[model.id for model in models]}: pass one of "
            f"these as `model`, or {policy.flags['model'].format(policy.model)}"
        )
    lengths = [model.max_model_len for model in (named[0], *models) if model.max_model_len is not None]
    if lengths:  # an adapter has that of its base model
        server.max_model_len = lengths[0] - policy.spare_tokens
    is_adapter = named[0].parent is not None or named[0] is not models[0]
    server.adapter = policy.model if is_adapter else None
    server.has_model = True


async def _check_logprobs(policy: Checked, client: Client, server: Server, prompt: "NDArray[np.int32]") -> None:
    """Check that log-probabilities are those of the distribution that tokens are sampled from.

    At temperature T, the difference of two log-probabilities is 1/T of that at temperature 1. And if only the most
    likely tokens are sampled from, their probabilities add up to 1.
    """
    top_k = None if _is_refused(policy, Sampling(top_k=_TOP)) else _TOP
    plain = await _probe(policy, client, server, prompt, Sampling(1.0, top_k))
    heated = await _probe(policy, client, server, prompt, Sampling(_TEMPERATURE, top_k))
    spread, heated_spread = plain[0] - plain[-1], heated[0] - heated[-1]
    is_raw = spread > 0 and heated_spread / spread > _IS_RAW
    sums = [sum(map(math.exp, values)) for values in (plain, heated)]
    is_cut = top_k is not None and any(abs(total - 1) > _SUM_TOLERANCE for total in sums)
    if is_raw or is_cut:
        seen = f"at temperatures 1 and {_TEMPERATURE:g}, the log-probabilities of the {len(plain)} most likely tokens "
        raise ServerMismatch(
            f"the log-probabilities of {server.url} are not those of the distribution that it samples from: {seen}"
            f"range over {spread:.3f} and {heated_spread:.3f}, expected {spread / _TEMPERATURE:.3f} for the latter"
            + (
                f"; sampled with top_k={top_k}, their probabilities add up to {sums[0]:.3f}, expected 1"
                if is_cut
                else ""
            )
            + f". {policy.flags['logprobs']}"
        )


async def _probe(
    policy: Checked, client: Client, server: Server, prompt: "NDArray[np.int32]", sampling: Sampling
) -> Sequence[float]:
    """Return the largest log-probabilities of the first token after a prompt, in descending order."""
    request = ServerRequest(id="envsdk-probe", prompt=prompt, sampling=sampling, max_tokens=1, top_logprobs=_TOP)
    try:
        reply = await policy.generate(client, server, request)
    except RequestRefused as error:
        raise ServerMismatch(
            f"{server.url} does not return the {_TOP} largest log-probabilities, which check=True needs: {error}. "
            f"{policy.flags['top_logprobs']}, or pass check=False"
        ) from error
    except ServerReplyError as error:
        raise ServerMismatch(
            f"{server.url} answers in a form that {policy.name} does not read: {error}. Use a version of the server "
            "that docs/how-to/servers.md lists"
        ) from error
    values = sorted(reply.top_logprobs[0] if reply.top_logprobs else (), reverse=True)[:_TOP]
    if len(values) < _TOP:
        raise ServerMismatch(
            f"{server.url} returned {len(values)} of the {_TOP} largest log-probabilities. "
            f"{policy.flags['top_logprobs']}, or pass check=False"
        )
    return values


def _is_refused(policy: Checked, sampling: Sampling) -> bool:
    try:
        policy.check_sampling(sampling)
    except ConfigError:
        return True
    return False


def _named(policy: Checked) -> dict[str, Any]:
    return {} if policy.model is None else {"model": policy.model}
