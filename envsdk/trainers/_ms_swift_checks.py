"""Checks of an episode under ms-swift: its version, its prompts, and what its template renders for training."""

import importlib.metadata
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, PolicyError, around_difference
from ..messages import ToolSchema
from ._packages import load

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def check_takes_several() -> None:
    """Check that ms-swift's trainer takes several records of a request: it then counts them once in their group.

    Raises:
        ConfigError: If it does not; the message has the version.
    """
    if not hasattr(load("swift.rl_core.advantage", "ms_swift"), "compute_advantages_dynamic"):
        version = importlib.metadata.version("ms-swift")
        raise ConfigError(
            f"on_break is 'split', but ms-swift {version} takes one record for each request: install ms-swift==4.6.0, "
            "or choose 'last_segment' or 'drop'"
        )


def check_prompt(prompt: "NDArray[np.int32]", rendered: list[int] | None) -> None:
    """Check that ms-swift rendered the prompt of the environment.

    Raises:
        PolicyError: If not; the message has the first difference.
    """
    if rendered is None:
        raise PolicyError(
            "the engine returned no prompt_token_ids, so the prompt cannot be checked: use an engine that returns them "
            "with return_details=True"
        )
    if prompt.tolist() == list(rendered):
        return
    pairs = zip(prompt.tolist(), rendered, strict=False)
    at = next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(prompt), len(rendered)))
    raise PolicyError(
        f"ms-swift rendered another prompt: {len(rendered)} tokens instead of {len(prompt)}, the first difference at "
        f"position {at}: {rendered[at : at + 8]} instead of {prompt[at : at + 8].tolist()}. Its template and the "
        "environment's renderer must be of the same model, with the same options, and a first reply cannot have a "
        "prefill"
    )


def check_tools(own: Sequence[ToolSchema] | None, given: Any) -> None:
    """Check that the row has the tools of the environment: ms-swift renders those of the row for training.

    Raises:
        ConfigError: If it has others.
    """
    given = json.loads(given) if isinstance(given, str) else given
    one, two = (json.dumps(list(tools or ()), default=dict) for tools in (own, given))
    if one != two:
        shown, other = around_difference(one, two, 200)
        raise ConfigError(
            f"the context has the tools {shown}, but the row of the dataset has {other}, which "
            "ms-swift renders for training: add a column `tools` with the tools of the environment, "
            "trajectory.contexts['main'].tools; a sub-agent whose tools differ from its parent's cannot be trained"
        )


def suffix_of(scheduler: Any) -> list[int]:
    """Return the token ids of the suffix that ends a reply in ms-swift's template."""
    template = scheduler.infer_engine.template
    ids: list[int] = []
    for part in template.template_meta.suffix:
        ids += template.tokenizer.encode(part, add_special_tokens=False) if isinstance(part, str) else part
    return ids
