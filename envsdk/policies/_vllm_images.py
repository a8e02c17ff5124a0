"""Images in requests to vLLM's `/inference/v1/generate`, and the check of the prompt that the server makes of them.

Source: `content_parts` and `return_token_ids` of `GenerateRequest` in vLLM 0.32. A part is not one of Chat Completions:
its URL is a field of its own.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ServerReplyError
from ..images import rgb_image
from ._server_replies import ServerRequest


def image_fields(request: ServerRequest) -> dict[str, Any]:
    """Return the fields of a request with images.

    vLLM's processor writes the placeholders of each image in place of one, so the others are left out. It would show a
    background through transparent parts, and other processors do not.
    """
    is_sent = np.ones(len(request.prompt), dtype=np.bool_)
    for placed in request.media:
        is_sent[placed.start + 1 : placed.stop] = False
    parts = [{"type": "image_url", "url": rgb_image(placed.image).url} for placed in request.media]
    return {"token_ids": request.prompt[is_sent], "content_parts": parts, "return_token_ids": True}


def check_prompt(tokens: Sequence[int] | None, request: ServerRequest) -> None:
    """Check that the prompt that a server sampled from is the requested one.

    Raises:
        ServerReplyError: If it is another one, or the server did not return it.
    """
    if tokens is None:
        raise ServerReplyError(
            "the server did not return prompt_token_ids, so the tokens of the images cannot be checked: use a version "
            "of vLLM whose /inference/v1/generate has content_parts and return_token_ids, such as 0.32"
        )
    expected: list[int] = request.prompt.tolist()
    if list(tokens) == expected:
        return
    pairs = enumerate(zip(tokens, expected, strict=False))
    first = next((index for index, (found, own) in pairs if found != own), min(len(tokens), len(expected)))
    raise ServerReplyError(
        f"the server sampled from another prompt: it has {len(tokens)} tokens, and the first that differs is at "
        f"position {first}; expected {len(expected)} tokens. Start vLLM with the image processor of the environment's "
        "renderer (--mm-processor-kwargs), such as the same numbers of pixels"
    )
