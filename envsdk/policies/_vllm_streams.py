"""Joins the events of a streamed reply of vLLM to the response that the same request gets without a stream.

Source: vLLM 0.32's `/inference/v1/generate` and `/v1/completions`. Lists come in parts; anything else comes once.
"""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict, Field

from ..errors import ServerReplyError
from ._server_replies import OnTokens, TokenId, read_response


class _Choice(BaseModel):
    model_config = ConfigDict(extra="allow")

    token_ids: list[TokenId] | None = None
    logprobs: dict[str, Any] | None = None


class _Event(BaseModel):
    choices: list[_Choice] = Field(max_length=1)
    usage: dict[str, Any] | None = None
    prompt_token_ids: list[TokenId] | None = None


class StreamedReply:
    """A reply that is being streamed, whose tokens are reported as they come.

    Args:
        on_tokens: Called with the tokens.
        max_tokens: The maximum number of tokens that were requested.

    Attributes:
        count: How many tokens were reported.
        length: After how many tokens the reply was ended, if `on_tokens` ended it; later ones are not reported.
    """

    def __init__(self, on_tokens: OnTokens, max_tokens: int | None) -> None:
        self._max_tokens = max_tokens
        self._on_tokens = on_tokens
        self._choice: dict[str, Any] = {}
        self._usage: dict[str, Any] | None = None
        self._prompt: list[int] | None = None
        self.count: int = 0
        self.length: int | None = None

    def add(self, event: Any) -> bool:
        """Add an event; return whether it made the reply end, so that the server should stop.

        Raises:
            ServerReplyError: If it does not have the fields of an event, or more tokens come than were requested.
        """
        read = read_response(_Event, event)
        self._usage = read.usage or self._usage
        self._prompt = read.prompt_token_ids or self._prompt  # in the first event, if it was requested
        for choice in read.choices:
            given = {**choice.__dict__, **(choice.model_extra or {})}
            _join(self._choice, {name: value for name, value in given.items() if value is not None})
            if self._max_tokens is not None and len(self._choice.get("token_ids", ())) > self._max_tokens:
                raise ServerReplyError(f"more tokens come than max_tokens={self._max_tokens}")
            if choice.token_ids and self.length is None:
                self.count += len(choice.token_ids)
                if self._on_tokens(choice.token_ids) is True:
                    self.length = self.count
                    return "finish_reason" not in self._choice
        return False

    def response(self) -> dict[str, Any]:
        """Return the whole response, after the last event.

        Raises:
            ServerReplyError: If the reply did not end.
        """
        if "finish_reason" not in self._choice and self.length is None:
            raise ServerReplyError("the stream has no finish reason")
        choice: dict[str, Any] = {"token_ids": [], **self._choice}
        choices = [{"finish_reason": "stop", **choice}]
        return {"choices": choices, "usage": self._usage, "prompt_token_ids": self._prompt}


def _join(joined: dict[str, Any], part: dict[str, Any]) -> None:
    """Add a part of a JSON object: lists and objects are joined, and any other value counts from then on."""
    for name, value in part.items():
        known = joined.get(name)
        if isinstance(value, dict):
            _join(joined.setdefault(name, {}), cast("dict[str, Any]", value))
        elif isinstance(value, list) and isinstance(known, list):
            cast("list[Any]", known).extend(cast("list[Any]", value))
        else:
            joined[name] = list(cast("list[Any]", value)) if isinstance(value, list) else value
