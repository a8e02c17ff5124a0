"""Names of model families that `fixed_base` renders as well as a separate class would.

An alias is data: the control tokens by which the family's tokenizer is recognized, the switches of its chat templates
under their own names, and the templates that it was checked on. Knows nothing about how a template is measured;
`_families.py` has the table.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envsdk._describing import likely
from envsdk.errors import ConfigError, TokenizerError
from envsdk.rendering.renderer import Renderer
from envsdk.rendering.tokenizers import Tokenizer, load_tokenizer

from ._fixed_base import FixedBase
from ._templates._chat_template import ChatTemplate, is_one_of

FLAG = (True, False)


@dataclass(frozen=True, eq=False)
class Alias:
    """A name for `fixed_base` with the options of one model family.

    Attributes:
        name: The renderer's name.
        models: The models that it is for.
        controls: Control tokens that the family's tokenizers have.
        templates: The first digits of the `template_hash` of each template that it was checked on, without the
            whitespace around it.
        switches: The template's own arguments that choose how the model thinks or what it is given, each with its
            accepted values, or with the type of its values.
        special_tokens: The template's `bos_token` and so on, where the tokenizer's files do not specify them.
        stop: The tokens that end a turn, where neither the files nor the template show them.
        without_tools: The class for a tokenizer whose template takes no tools, or that came without a template.
    """

    name: str
    models: str
    controls: tuple[str, ...]
    templates: tuple[str, ...]
    switches: Mapping[str, tuple[object, ...] | type] = field(default_factory=dict[str, tuple[object, ...] | type])
    special_tokens: Mapping[str, str] = field(default_factory=dict[str, str])
    stop: tuple[str, ...] = ()
    without_tools: type[Renderer] | None = None

    def __call__(self, tokenizer: Tokenizer, **options: Any) -> Renderer:
        """Return the family's renderer.

        Args:
            tokenizer: The family's tokenizer, with its chat template unless `template=` is given.
            **options: The alias's switches, and the options of `FixedBase`.

        Raises:
            TokenizerError: If the tokenizer lacks control tokens of the family, or has no chat template.
            ConfigError: If an option is unknown, the template does not use it, or its value is not accepted.
            TemplateUnsupported: If the template cannot be measured.
        """
        tokenizer = load_tokenizer(tokenizer)
        missing = [control for control in self.controls if control not in tokenizer.control_tokens]
        if missing:
            raise TokenizerError(
                f"the tokenizer {tokenizer.name!r} lacks {', '.join(map(repr, missing))}: it is not a tokenizer of "
                f"{self.models}, which {self.name!r} is for"
            )
        own = tokenizer.chat_template
        text = options.get("template") or (own.text if own is not None else "")
        if self.without_tools is not None and "tools" not in ChatTemplate(text).variables:
            try:
                inspect.signature(self.without_tools).bind(tokenizer, **options)
            except TypeError as error:
                raise ConfigError(
                    f"the renderer {self.name!r} does not accept {options}: {error}. The tokenizer has no chat "
                    f"template that takes tools, so its arguments are {inspect.signature(self.without_tools)}"
                ) from error
            return self.without_tools(tokenizer, **options)
        given = self._resolved(tokenizer, text, options)
        renderer = FixedBase(tokenizer, **given)
        shown = ", ".join(f"{name}={value!r}" for name, value in given.items() if name != "template")
        known = "one of the templates" if self.knows(text) else "not one of the templates"
        renderer.chosen_because = (
            f"{self.name!r} is 'fixed_base'{f' with {shown}' if shown else ''}; the chat template is {known} that "
            f"{self.name!r} was checked on"
        )
        return renderer

    def knows(self, template: str) -> bool:
        """Return whether the alias was checked on a template."""
        return is_one_of(template, self.templates)

    def _resolved(self, tokenizer: Tokenizer, text: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of `FixedBase`, with the switches as arguments of the template."""
        known = [*self.switches, *[*inspect.signature(FixedBase).parameters][1:]]
        for name in options:
            if name not in known:
                near = likely(name, known)
                advice = f"did you mean {near[0]!r}?" if near else f"its options are {', '.join(known)}"
                raise ConfigError(f"the renderer {self.name!r} has no option {name!r}; {advice}")
        switches = {name: value for name, value in options.items() if name in self.switches}
        for name, value in switches.items():
            accepted = self.switches[name]
            if isinstance(accepted, type):
                is_accepted, expected = type(value) is accepted, f"a value of type {accepted.__name__}"
            else:
                is_accepted = any(value == one and type(value) is type(one) for one in accepted)
                expected = " or ".join(map(repr, accepted))
            if not is_accepted:
                raise ConfigError(f"{name} is {value!r}; expected {expected}")
            if name not in ChatTemplate(text).variables:
                raise ConfigError(
                    f"{name} is {value!r}, but this chat template of the family {self.name!r} has no such argument: "
                    "leave it out, or give the template of a model that has it as template="
                )
        given = {name: value for name, value in options.items() if name not in switches}
        arguments: dict[str, Any] = {**(given.pop("template_arguments", None) or {})}
        if twice := sorted(arguments.keys() & switches.keys()):
            raise ConfigError(f"{twice[0]!r} is given as an option and in template_arguments; give it once")
        own = tokenizer.chat_template
        names = {
            name: token for name, token in self.special_tokens.items() if not (own and own.special_tokens.get(name))
        }
        names |= given.pop("special_tokens", None) or {}
        found = {"stop": self.stop, "template_arguments": arguments | switches, "special_tokens": names}
        return {**{name: value for name, value in found.items() if value}, **given}
