"""Reads a reply with the response template of transformers, if the tokenizer's files have one.

A response template is data: it specifies where each field of a message opens and closes, and how its text is read. See
`transformers.PreTrainedTokenizerBase.parse_response`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any, cast

from pydantic import ValidationError

from envsdk._visible import shorten, type_of
from envsdk.errors import ConfigError
from envsdk.messages import Message, ToolCall
from envsdk.rendering.reading import Segment, SplitReply
from envsdk.rendering.renderer import errors_at_end

_REASONING = ("reasoning_content", "reasoning", "thinking")


class ResponseTemplate:
    """Reads replies as a response template specifies.

    Args:
        template: The template (of transformers 5.13 and later), or the schema that earlier versions read.

    Raises:
        ConfigError: If it is invalid, or the installed version of transformers does not read it.
    """

    _parse: Callable[[str, str], Mapping[str, Any]]
    """Reads a reply, given the scaffold before it."""

    def __init__(self, template: Mapping[str, Any]) -> None:
        is_schema = "fields" not in template
        try:
            if is_schema:
                recursive_parse: Any = import_module("transformers.utils.chat_parsing_utils").recursive_parse
                self._parse = lambda text, _: recursive_parse(text, dict(template))
            else:
                parsing = import_module("transformers.utils.chat_parsing")
                templates = import_module("transformers.utils.chat_parsing.response_templates")
                compiled = templates.load_response_template(dict(template))
                self._parse = lambda text, opening: parsing.parse_response(text, compiled, prefix=opening)
        except ImportError as error:
            raise ConfigError(
                f"the tokenizer's response {'schema' if is_schema else 'template'} needs transformers "
                f"{'before' if is_schema else 'from'} 5.13: {error}. Install that version, or give reply_format="
            ) from error
        except ValueError as error:
            raise ConfigError(f"the response template is not valid: {error}") from error

    def read(self, opening: str, segments: Iterable[Segment], sampled: SplitReply, stops: Sequence[str]) -> Message:
        """Read a reply. A reply that cannot be read is content, with an error.

        Args:
            opening: The scaffold before the reply.
            segments: The beginning of the reply in the prompt, and what was sampled.
            sampled: What was sampled, with how it ended.
            stops: The tokens that end a reply; the first is used for all of them.
        """
        text = "".join(segment.control + segment.text for segment in segments)
        errors = errors_at_end(is_ended=sampled.is_ended, overrun=sampled.overrun)
        try:
            found = self._parse(text + stops[0] if sampled.is_ended else text, opening)
            return _message(found, errors)
        except Exception as error:  # the template's regular expressions and JSON may raise anything
            why = f"the reply does not fit the response template: {type(error).__name__}: {shorten(str(error), 200)}"
            return Message(role="assistant", content=text, errors=(why, *errors))


def _message(found: Mapping[str, Any], errors: Sequence[str]) -> Message:
    reasoning = next((found[name] for name in _REASONING if isinstance(found.get(name), str)), None)
    content: Any = found.get("content") or ""
    given: Any = found.get("tool_calls") or []
    calls = [_call(item) for item in (cast("list[Any]", given) if isinstance(given, list) else [given])]
    broken = [call.error for call in calls if call.error]
    if not isinstance(content, str):
        raise TypeError(f"its content is {type_of(content)}")
    return Message(
        role="assistant",
        content=content,
        reasoning=reasoning,
        tool_calls=tuple(calls),
        errors=(*broken, *errors),
    )


def _call(item: Any) -> ToolCall:
    try:
        return ToolCall.from_openai(item)
    except (ValidationError, KeyError, TypeError, AttributeError) as error:
        return ToolCall(name="", arguments=str(item), error=f"a tool call cannot be read: {shorten(str(error), 200)}")
