"""Shares what is measured of a chat template among all renderers of a process."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer

from ._bound_template import BoundTemplate, bind_template
from ._chat_template import ChatTemplate
from ._dialect import Dialect
from ._mask import Mask
from ._store import Store
from ._turns import TemplateTurns

_MANY = 64
_DIALECT = TypeAdapter(Dialect)
_LOCK = threading.Lock()
_TURNS: OrderedDict[str, TemplateTurns] = OrderedDict()


def turns_of(
    source: ChatTemplateSource,
    tokenizer: Tokenizer,
    ends: Sequence[str],
    *,
    date: str,
    arguments: Mapping[str, Any],
    hides_names: bool,
) -> TemplateTurns:
    """Return the turns of a template, which all renderers with the same template, vocabulary and options share.

    Args:
        source: The template, with its special tokens.
        tokenizer: The tokenizer.
        ends: The tokens that are known to end a turn.
        date: The date that the template's `strftime_now` returns.
        arguments: Further arguments of the template.
        hides_names: Whether names of control tokens are hidden in content.

    Raises:
        TemplateUnsupported: If the template renders no user message.
    """
    options = [source.text, source.special_tokens, ends, date, arguments, hides_names, tokenizer.fingerprint]
    try:
        key = hashlib.sha256(json.dumps(options).encode(errors="surrogatepass")).hexdigest()
    except TypeError:  # an argument that is not JSON, which may change
        return TemplateTurns(_bound(source, tokenizer, date, arguments, hides_names), ends)
    with _LOCK:
        turns = _TURNS.get(key)
        if turns is None:
            store = Store(key)
            template = _bound(source, tokenizer, date, arguments, hides_names, store)
            turns = _TURNS[key] = TemplateTurns(template, ends, store)
        _TURNS.move_to_end(key)
        if len(_TURNS) > _MANY:
            _TURNS.popitem(last=False)
    return turns


def _bound(
    source: ChatTemplateSource,
    tokenizer: Tokenizer,
    date: str,
    arguments: Mapping[str, Any],
    hides_names: bool,
    store: Store | None = None,
) -> BoundTemplate:
    compiled = ChatTemplate(source.text, date=date, special_tokens=source.special_tokens)
    mask, given = Mask(list(tokenizer.control_tokens), hides_names=hides_names), dict(arguments)
    if store is None:
        return bind_template(compiled, mask, given)
    dialect = store.measured("dialect", _DIALECT, lambda: bind_template(compiled, mask, given).dialect)
    return BoundTemplate(compiled, mask, dialect, given)
