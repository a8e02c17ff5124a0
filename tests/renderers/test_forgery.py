"""No field of a conversation, of a schema, or of what an environment puts into a reply can forge a control token.

On every renderer and every template: the control tokens are those of the same conversation with a harmless text.
"""

from typing import Any

import pytest
from envsdk_renderers._fixed_base import FixedBase
from envsdk_renderers._qwen3 import Qwen3
from families import vocabulary
from forgeries import BEGINNINGS, FIELDS, forged
from hostile_replies import every_reader, reader
from template_conversations import end_token, templates, tokenizer_of

SHORT = ("all", "end of a name")
NOT_WRITTEN = {"id of a call", "the name of a user", "arguments that are a text"}
"""What not every one of the templates here writes."""


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("name", every_reader())
def test_no_field_forges_a_control_token(name: str, is_full: bool) -> None:
    if name.startswith("template deepseek") and not is_full:
        pytest.skip("the eight hundred control tokens of the real vocabulary take ten seconds; `--full` takes them")
    found, counts = forged(reader(name), () if is_full else SHORT)
    assert found == []
    assert counts["written"] >= 40 * (6 if is_full else 2)
    assert counts["refused"] <= counts["written"] / 20  # names of arguments that would end them are refused


def unsafe(name: str) -> Any:
    if name == "qwen3":
        return Qwen3(vocabulary("qwen3"), unsafe_content=True)
    options = {"template": templates()[name], "stop": end_token(name), "unsafe_content": True}
    return FixedBase(tokenizer_of(name), special_tokens={"bos_token": "<bos>", "eos_token": end_token(name)}, **options)


@pytest.mark.parametrize("name", ["qwen3", "gemma4_v5", "glm4moe"])
def test_every_field_is_a_way_to_forge_where_content_is_not_safe(name: str) -> None:
    found, _ = forged(unsafe(name), ["turn"])
    ways = {way.split(" in ", 1)[1].split(":")[0] for way in found}
    missing = {*FIELDS, *(f"begins with {beginning}" for beginning in BEGINNINGS)} - ways
    assert missing <= NOT_WRITTEN
