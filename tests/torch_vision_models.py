"""Small vision models of Qwen's families with random weights, on Qwen3's vocabulary. Needs torch."""

from typing import Any

import torch
import transformers
from vision_models import PATCH_SIZES

_TEXT: dict[str, Any] = {
    "vocab_size": 151936,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,  # as in torch_models: with 0.02 a random model hardly looks at what came before
}
_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "initializer_range": 0.2}


def tiny_qwen_vl(template: str, head_dim: int = 8, **options: Any) -> Any:
    """A Qwen2.5-VL or a Qwen3-VL of two layers, with two layers for images, in evaluation mode."""
    torch.manual_seed(0)
    kind = {"qwen2_5_vl": "Qwen2_5_VL", "qwen3_vl": "Qwen3VL"}[template]
    width = _TEXT["num_attention_heads"] * head_dim
    vision: dict[str, Any] = {**_VISION, "patch_size": PATCH_SIZES[template], "out_hidden_size": width}
    sections = [head_dim // 4, head_dim // 8, head_dim // 8]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections}
    text: dict[str, Any] = {**_TEXT, "hidden_size": width, "rope_parameters": rope}
    if template == "qwen3_vl":
        text["head_dim"] = head_dim
        rope["mrope_interleaved"] = True  # transformers does it anyway, and vLLM where it is in the configuration
        vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    else:
        vision |= {"fullatt_block_indexes": [1], "window_size": 56}
    config = getattr(transformers, f"{kind}Config")(
        text_config=text, vision_config=vision, pad_token_id=None, eos_token_id=None, **options
    )
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():  # else no reply would end by itself
        model.get_output_embeddings().weight[151645] *= 3
    return model
