"""Folders of small vision models with random weights, as `save_pretrained` writes them: with the whole processor.

Needs torch and torchvision, for the processor of videos.
"""

from pathlib import Path
from typing import Any

import real_models
from torch_vision_models import tiny_qwen_vl
from transformers import AutoTokenizer
from vision_families import load_class
from vision_models import PATCH_SIZES

_IMAGES = "qwen2_vl.image_processing_qwen2_vl:Qwen2VLImageProcessor"
_PROCESSORS = {
    "qwen2_5_vl": (
        "qwen2_5_vl.processing_qwen2_5_vl:Qwen2_5_VLProcessor",
        "qwen2_vl.video_processing_qwen2_vl:Qwen2VLVideoProcessor",
    ),
    "qwen3_vl": (
        "qwen3_vl.processing_qwen3_vl:Qwen3VLProcessor",
        "qwen3_vl.video_processing_qwen3_vl:Qwen3VLVideoProcessor",
    ),
}
_TOKENS = {"image_token_id": "image_pad", "video_token_id": "video_pad"}
_TOKENS |= {f"vision_{edge}_token_id": f"vision_{edge}" for edge in ("start", "end")}


def save_qwen_vl(template: str, folder: Path) -> None:
    """Save a Qwen2.5-VL or a Qwen3-VL. Its attention heads have the smallest size that vLLM computes on a CPU."""
    tokenizer: Any = AutoTokenizer.from_pretrained(real_models.qwen3_folder())
    ids = {field: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for field, name in _TOKENS.items()}
    tiny_qwen_vl(template, head_dim=32, **ids).save_pretrained(folder)
    processor, videos = map(load_class, _PROCESSORS[template])
    options = {"patch_size": PATCH_SIZES[template]}
    images = load_class(_IMAGES)(**options)
    processor(images, tokenizer, videos(**options), chat_template=real_models.template(template)).save_pretrained(
        folder
    )
