"""Real processors of vision models with real chat templates, on Qwen3's vocabulary. None needs torch.

The processors of Qwen's vision models also hold a processor of videos, which needs torchvision. Images and chat
templates do not go through it, so these are the same classes without it.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import real_models
from envsdk_renderers._fixed_base import FixedBase
from transformers import AutoTokenizer
from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.processing_utils import ProcessorMixin

from envsdk.messages import ImagePart, Message, TextPart
from envsdk.rendering.tokenizers import load_tokenizer

PATCH_SIZES = {"qwen2_5_vl": 14, "qwen3_vl": 16}


class QwenImageProcessor(Qwen2_5_VLProcessor):
    """The processor of Qwen's vision models without videos."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None) -> None:
        for kind in ("image", "video"):
            setattr(self, f"{kind}_token", f"<|{kind}_pad|>")
            setattr(self, f"{kind}_token_id", tokenizer.convert_tokens_to_ids(f"<|{kind}_pad|>"))
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


@cache
def qwen_processor(template: str = "qwen2_5_vl") -> Any:
    """Return the processor of a family of Qwen's vision models, which is named as its template is."""
    tokenizer = AutoTokenizer.from_pretrained(real_models.qwen3_folder())
    images = Qwen2VLImageProcessorPil(patch_size=PATCH_SIZES[template])
    return QwenImageProcessor(images, tokenizer, real_models.template(template))


def vision_renderer(template: str = "qwen2_5_vl", **options: Any) -> FixedBase:
    """Return a renderer of a family of Qwen's vision models."""
    processor = qwen_processor(template)
    tokenizer = load_tokenizer(real_models.qwen3_folder())
    return FixedBase(tokenizer, **{"template": processor.chat_template, "processor": processor, **options})


def picture(seed: int, width: int = 64, height: int = 48) -> ImagePart:
    """Return a picture of noise."""
    return ImagePart(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def processed_ids(processor: Any, messages: Sequence[Message], *, parts: bool = True, **options: Any) -> "list[int]":
    """Return the ids that a processor renders a conversation to, with its own template and its own images.

    With `parts=False`, the content of a message without images is a text.
    """
    given = [
        {**message.to_openai(), "content": [_for_processor(part) for part in _parts(message)]}
        if parts or message.images
        else {**message.to_openai(), "content": message.content}
        for message in messages
    ]
    made = processor.apply_chat_template(given, tokenize=True, return_dict=True, return_tensors="np", **options)
    return made["input_ids"][0].tolist()


def _parts(message: Message) -> Sequence[Any]:
    return message.parts or [TextPart(text=message.content)]


def _for_processor(part: Any) -> dict[str, Any]:
    return part.model_dump() if isinstance(part, TextPart) else {"type": "image", "image": part.data.pixels}
