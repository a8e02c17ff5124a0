"""The families that write images: the real classes of their processors, on vocabularies with their control tokens.

Processors of videos and sounds need torch or torchvision. Images and chat templates do not go through them, so these
are the same classes without them.
"""

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import real_models
from envsdk_renderers._families import ALIASES
from stand_in_tokenizers import raw_tokenizer_with, tokenizer_with
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.processing_utils import ProcessorMixin

from envsdk import Renderer, get_renderer, load_tokenizer
from envsdk.rendering.tokenizers import ChatTemplateSource, Tokenizer


@dataclass(frozen=True)
class VisionFamily:
    """A family, and what its chat template takes.

    Attributes:
        renderer: The name of its renderer.
        template: The name of its chat template.
        processor: The module and the class of its processor.
        images: The module and the class of its image processor.
        image_options: The options of the image processor.
        options: The options of the processor.
        call_options: Its `images_kwargs`, instead of the defaults of its class.
        vocabulary: The folder of its vocabulary in shared/; else a substitute with its control tokens.
        special_tokens: The tokenizer's named tokens.
        renderer_options: The options of the renderer.
        tools: What messages of tools have: `"text"`, `"images"`; empty if there are none.
        parts: Whether the template takes content only as a list of parts.
        system: The same of system messages.
    """

    renderer: str
    template: str
    processor: str
    images: str
    image_options: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    call_options: Mapping[str, Any] = field(default_factory=dict)
    vocabulary: str = ""
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    renderer_options: Mapping[str, Any] = field(default_factory=dict)
    tools: str = ""
    parts: bool = False
    system: str = "text"


_QWEN_IMAGES = "qwen2_vl.image_processing_pil_qwen2_vl:Qwen2VLImageProcessorPil"
_QWEN3 = {"processor": "qwen3_vl.processing_qwen3_vl:Qwen3VLProcessor", "images": _QWEN_IMAGES, "vocabulary": "qwen3"}
_QWEN3 |= {"image_options": {"patch_size": 16}, "tools": "images"}
_GEMMA3_TOKENS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
_GEMMA4_TOKENS = {"boi_token": "<|image>", "eoi_token": "<image|>", "image_token": "<|image|>"}
FAMILIES = {
    "qwen2.5-vl": VisionFamily(
        "qwen2.5-vl",
        "qwen2_5_vl",
        "qwen2_5_vl.processing_qwen2_5_vl:Qwen2_5_VLProcessor",
        _QWEN_IMAGES,
        vocabulary="qwen2.5",
        system="images",
    ),
    "qwen3-vl": VisionFamily("qwen3-vl", "qwen3_vl", **_QWEN3),
    "qwen3.5": VisionFamily("qwen3.5", "qwen3_5_think", **_QWEN3),
    "qwen3.6": VisionFamily("qwen3.6", "qwen3_6", **_QWEN3),
    "qwen3.8": VisionFamily("qwen3.8", "qwen3_8", **_QWEN3),
    "gemma-3": VisionFamily(
        "gemma-3",
        "gemma3",
        "gemma3.processing_gemma3:Gemma3Processor",
        "gemma3.image_processing_pil_gemma3:Gemma3ImageProcessorPil",
        image_options={"size": {"height": 32, "width": 32}},
        special_tokens={"bos_token": "<bos>", "eos_token": "<eos>", **_GEMMA3_TOKENS},
    ),
    "gemma-4": VisionFamily(
        "gemma-4",
        "gemma4",
        "gemma4.processing_gemma4:Gemma4Processor",
        "gemma4.image_processing_pil_gemma4:Gemma4ImageProcessorPil",
        image_options={"max_soft_tokens": 70},
        special_tokens={"bos_token": "<bos>", "eos_token": "<turn|>", "audio_token": "<|audio|>", **_GEMMA4_TOKENS}
        | {"boa_token": "<|audio>", "eoa_token": "<audio|>"},
        tools="text",
    ),
    "idefics3": VisionFamily(
        "fixed_base",
        "idefics3",
        "idefics3.processing_idefics3:Idefics3Processor",
        "idefics3.image_processing_pil_idefics3:Idefics3ImageProcessorPil",
        image_options={"size": {"longest_edge": 64}, "max_image_size": {"longest_edge": 32}},
        options={"image_seq_len": 4},
        special_tokens={"bos_token": "<|begin_of_text|>", "eos_token": "<end_of_utterance>"},
        parts=True,
    ),
    "llava-next": VisionFamily(
        "fixed_base",
        "llava_next",
        "llava_next.processing_llava_next:LlavaNextProcessor",
        "llava_next.image_processing_pil_llava_next:LlavaNextImageProcessorPil",
        image_options={"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
        | {"image_grid_pinpoints": [[28, 56], [56, 28], [56, 56]]},
        options={"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        special_tokens={"bos_token": "<s>", "eos_token": "</s>"},
        parts=True,
    ),
}
"""The families by their names here."""
FAMILIES["gemma-3 with crops"] = replace(
    FAMILIES["gemma-3"],
    image_options={**FAMILIES["gemma-3"].image_options, "do_pan_and_scan": True},
    call_options={"do_pan_and_scan": True, "pan_and_scan_min_crop_size": 16},
)
FAMILIES["smolvlm"] = replace(
    FAMILIES["idefics3"],
    processor="smolvlm.processing_smolvlm:SmolVLMProcessor",
    images="smolvlm.image_processing_pil_smolvlm:SmolVLMImageProcessorPil",
)
_MORE_TOKENS = {
    "gemma-3": (*_GEMMA3_TOKENS.values(), "<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"),
    "gemma-4": (
        *("<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|tool>", "<tool|>", "<|tool_call>"),
        *("<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|video|>", "<|audio|>"),
        *("<|audio>", "<audio|>", *_GEMMA4_TOKENS.values()),
    ),
    "idefics3": (
        *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", "<|begin_of_text|>"),
        *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    ),
    "llava-next": ("<image>", "<s>", "</s>"),
}
_MORE_TOKENS |= {"gemma-3 with crops": _MORE_TOKENS["gemma-3"], "smolvlm": _MORE_TOKENS["idefics3"]}


class _OfImages:
    """Accepts that a part of a processor is missing."""

    def check_argument_for_proper_class(self, argument_name: str, argument: Any) -> Any:
        """Check a part of a processor that is there."""
        return argument and super().check_argument_for_proper_class(argument_name, argument)  # pyright: ignore


def load_class(source: str) -> Any:
    """Return a class of transformers: its module among the models, and its name."""
    module, name = source.split(":")
    return getattr(importlib.import_module(f"transformers.models.{module}"), name)


@cache
def _folder(name: str) -> Path | None:
    """Return the folder of a family's own vocabulary."""
    vocabulary = FAMILIES[name].vocabulary
    folder = real_models.SHARED / "tokenizers" / vocabulary
    own = folder if vocabulary and folder.is_dir() else real_models.qwen3_folder()
    return own if vocabulary else None


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """Return a family's tokenizer, with its chat template."""
    family, folder = FAMILIES[name], _folder(name)
    tokenizer = copy.copy(tokenizer_with(_MORE_TOKENS[name]) if folder is None else load_tokenizer(folder))
    own = {key: value for key, value in family.special_tokens.items() if key in ("bos_token", "eos_token")}
    tokenizer.chat_template = ChatTemplateSource(
        real_models.template(family.template), own or {"eos_token": "<|im_end|>"}
    )
    return tokenizer


@cache
def _pretrained(folder: Path) -> Any:
    return AutoTokenizer.from_pretrained(folder)


@cache
def processor_of(name: str) -> Any:
    """Return a family's processor: the real class with the real image processor, without videos and sounds."""
    if name == "smolvlm":
        pytest.importorskip("num2words", reason="SmolVLM's processor needs num2words")
    family, folder, kind = FAMILIES[name], _folder(name), load_class(FAMILIES[name].processor)
    if folder is None:
        raw = raw_tokenizer_with(_MORE_TOKENS[name])
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<eos>", **family.special_tokens)
    else:
        tokenizer = _pretrained(folder)
    missing = {"gemma-4": ("feature_extractor", "video_processor"), "smolvlm": ("video_processor",)}
    parts = dict.fromkeys(missing.get(name, ()))
    # SmolVLM's own reads defaults of its processor of videos.
    own = {"apply_chat_template": ProcessorMixin.apply_chat_template} if name == "smolvlm" else {}
    processor = type(kind.__name__, (_OfImages, kind), own)(
        image_processor=load_class(family.images)(**family.image_options),
        tokenizer=tokenizer,
        chat_template=real_models.template(family.template),
        **parts,
        **family.options,
    )
    if family.call_options:
        processor.images_kwargs = {**processor.images_kwargs, **family.call_options}
    return processor


@cache
def renderer_of(name: str) -> Renderer:
    """Return a family's renderer with its processor."""
    family = FAMILIES[name]
    options = {"processor": processor_of(name), **family.renderer_options}
    alias = ALIASES.get(family.renderer)
    return (
        alias(tokenizer_of(name), **options) if alias else get_renderer(family.renderer, tokenizer_of(name), **options)
    )
