"""Where servers and proxies put token ids and log-probabilities in the body of a response.

- vLLM (`return_token_ids`): `prompt_token_ids`, `choices[].token_ids`, `choices[].logprobs.content`. With
  `return_tokens_as_token_ids`, the ids of the reply are in the log-probabilities, as `token_id:123`.
- SGLang (`return_prompt_token_ids`, `return_meta_info`): `choices[].prompt_token_ids`, and
  `choices[].meta_info.output_token_logprobs`, a list of (log-probability, id, text).
- LiteLLM, and so agent-lightning: what vLLM adds to a choice is in `choices[].provider_specific_fields`.
- NeMo Gym: `prompt_token_ids`, `generation_token_ids` and `generation_log_probs` of a message, or of an item of
  Responses.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from ..trainers._log_fields import Found

_PROMPT = ("prompt_token_ids",)
_TOKENS = ("token_ids", "generation_token_ids", "response_token_ids", "completion_token_ids")
_LOGPROBS = ("generation_log_probs", "token_logprobs")
_PREFIX = "token_id:"


class LoggedIds(NamedTuple):
    """The values that were found; their value is None if they are missing."""

    prompt: Found
    tokens: Found
    logprobs: Found


def ids_of(places: Sequence[Found]) -> LoggedIds:
    """Return the ids and log-probabilities of a reply.

    Args:
        places: The objects that may have them, the most specific one first.

    Raises:
        InvalidRecord: If one of the fields has a wrong type.
    """
    inside = [field.object() for place in places for field in (place.get("provider_specific_fields"),)]
    known = [*places, *(place for place in inside if place is not None)]
    pairs = _meta_info(known)
    content = _content(known)
    tokens = _first(known, _TOKENS) or pairs[0] or _ids_in(content)
    logprobs = pairs[1] or _first(known, _LOGPROBS) or _logprobs_in(content)
    return LoggedIds(
        _first(known, _PROMPT) or Found(None, f"{places[-1].where}.prompt_token_ids"),
        tokens or Found(None, f"{places[0].where}.token_ids"),
        logprobs or Found(None, f"{places[0].where}.logprobs"),
    )


def _first(places: Sequence[Found], keys: Sequence[str]) -> Found | None:
    fields = (place.get(key) for place in places for key in keys)
    return next((field for field in fields if field.value is not None), None)


def _meta_info(places: Sequence[Found]) -> tuple[Found | None, Found | None]:
    """Return SGLang's ids and log-probabilities."""
    for place in places:
        info = place.get("meta_info").object()
        if info is None or info.get("output_token_logprobs").value is None:
            continue
        field = info.get("output_token_logprobs")
        triples = [item.items() for item in field.items()]
        for item, triple in zip(field.items(), triples, strict=True):
            if len(triple) < 2:
                raise item.invalid("a log-probability, an id and a text")
        columns = ([triple[1].value for triple in triples], [triple[0].value for triple in triples])
        return Found(columns[0], field.where), Found(columns[1], field.where)
    return None, None


def _content(places: Sequence[Found]) -> Found | None:
    """Return OpenAI's list of log-probabilities, one object for each token."""
    for place in places:
        logprobs = place.get("logprobs")
        content = logprobs.get("content") if isinstance(logprobs.value, dict) else logprobs
        if content.value is not None:
            return content
    return None


def _logprobs_in(content: Found | None) -> Found | None:
    if content is None:
        return None
    return Found([_field(item, "logprob") for item in _list(content)], content.where)


def _field(item: Any, key: str) -> Any:
    """Return a field of the entry of a token; an entry may be the value itself."""
    return cast("dict[str, Any]", item).get(key) if isinstance(item, dict) else item


def _list(content: Found) -> "list[Any]":
    value = content.value
    if not isinstance(value, list):
        raise content.invalid("a list")
    return cast("list[Any]", value)


def _ids_in(content: Found | None) -> Found | None:
    """Return the ids that vLLM writes in the place of the tokens' texts."""
    if content is None:
        return None
    texts = [_field(entry, "token") for entry in _list(content)]
    found = [text.removeprefix(_PREFIX) for text in texts if isinstance(text, str) and text.startswith(_PREFIX)]
    if not found or len(found) < len(texts) or not all(text.isascii() and text.isdigit() for text in found):
        return None
    return Found([int(text) for text in found], content.where)
