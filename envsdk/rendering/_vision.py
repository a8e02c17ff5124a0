"""Images in prompts: the placeholder tokens that the model's own processor writes for an image.

A chat template writes one token for an image. The processor of transformers replaces it with as many placeholders as
the image has features, surrounded by the family's markup. That text is taken from the processor itself.
"""

import importlib
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._packages import load
from .._visible import brief
from ..errors import ConfigError, RenderError
from ..images import Image, PlacedImage, RecentValues
from .tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NO_ADVICE = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
_GRID_TOKEN = "<|image_pad|>"
"""The token that the templates of Qwen's vision models write for an image. Their processors have a `merge_size`."""
_MAX_ARRAY_BYTES = 2**28  # of the images whose arrays are kept
_CONFIGS = ("processor_config.json", "preprocessor_config.json")
_TEXT_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
"""The files that a processor needs from a repository on the hub."""
_NAME_ON_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_IS_PLACEHOLDER = ("mm_token_type_ids", "token_type_ids")
_OF_TEXT = frozenset(("input_ids", "attention_mask", *_IS_PLACEHOLDER))


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """The result of a processor for one image."""

    text: str
    """The text that replaces the template's token, with control tokens by their names."""
    count: int
    """The number of placeholder tokens in it."""
    token_ids: "NDArray[np.int32]"
    """The distinct ids of these placeholders: int32, shape (k,); usually one."""
    arrays: "Mapping[str, NDArray[Any]]"
    """The model's inputs besides the tokens, by the processor's names: `pixel_values`, `image_grid_thw`, ..."""


class Vision:
    """The processor of a vision model, applied to one image at a time.

    Args:
        processor: A processor of transformers; a folder or a name on the hub, which `AutoProcessor` loads; or a mapping
            with the options of an image processor, as in `preprocessor_config.json`:
            `{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}`. For families whose placeholders form
            a grid (Qwen's vision models), the image processor alone is enough. It does not need torch, and is used if
            the whole processor cannot be loaded.
        tokenizer: The renderer's tokenizer. The processor's tokenizer must have the same vocabulary.

    Raises:
        ConfigError: If the processor cannot be loaded, does not accept images, writes an image as something that is
            not a control token of the tokenizer, or would silently ignore the image processor's option for crops.
        MissingPackage: If Pillow is not installed.
    """

    def __init__(self, processor: Any, tokenizer: Tokenizer) -> None:
        self.given = processor
        self._tokenizer = tokenizer
        self.processor: Any = _loaded(processor)
        is_alone = hasattr(self.processor, "merge_size")  # an image processor
        name: Any = _GRID_TOKEN if is_alone else getattr(self.processor, "image_token", None)
        own = self.processor if is_alone else getattr(self.processor, "image_processor", None)
        self._grid: Any = own if name == _GRID_TOKEN and hasattr(own, "merge_size") else None
        """The image processor, if the size of its grid gives the number of placeholders; None for other families."""
        if not isinstance(name, str):
            raise ConfigError(
                f"the processor {type(self.processor).__name__} does not accept images: it has no image_token. Give "
                "the processor of a vision model, as AutoProcessor loads it"
            )
        self.placeholder: str = name
        """The token that a chat template writes for an image."""
        if name not in tokenizer.control_tokens:
            raise ConfigError(
                f"the processor writes {name!r} for an image, which is not a control token of the tokenizer "
                f"{tokenizer.name!r}: use the tokenizer of the same model"
            )
        crops = "do_pan_and_scan"
        options: Any = getattr(self.processor, "images_kwargs", None)
        # Gemma3Processor passes options to its image processor that take precedence over the image processor's own.
        if isinstance(options, Mapping) and getattr(own, crops, False) and options.get(crops) is False:  # pyright: ignore
            raise ConfigError(
                f"the image processor has {crops}=True, but {type(self.processor).__name__} calls it with "
                f"{crops}=False, so images would have no crops. Remove the option; or, for crops, give the processor "
                f'as an object with processor.images_kwargs = {{**processor.images_kwargs, "{crops}": True}}'
            )
        self._arrays: RecentValues[ProcessedImage] = RecentValues(
            _MAX_ARRAY_BYTES, lambda processed: sum(array.nbytes for array in processed.arrays.values())
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments without the cached arrays of images."""
        return type(self), (self.given, self._tokenizer)

    @cached_property
    def token_ids(self) -> "NDArray[np.int32]":
        """The ids of placeholder tokens, which image features replace: int32, shape (k,); usually one."""
        if self._grid is not None:
            return np.array([self._tokenizer.token_id(self.placeholder)], dtype=np.int32)
        return self.process(Image.read(np.zeros((64, 64, 3), np.uint8))).token_ids

    def process(self, image: Image) -> ProcessedImage:
        """Apply the processor to an image; the last few results are cached.

        Raises:
            RenderError: If the processor refuses the image, such as one that is too narrow.
            ImageError: If the bytes of the image are missing.
        """
        return self._arrays.get(image.sha256, lambda: self._process(image))

    def count(self, image: Image) -> int:
        """Return the number of placeholder tokens of an image."""
        return self.process(image).count

    def places(self, tokens: "NDArray[np.int32]", images: Sequence[Image]) -> list[PlacedImage]:
        """Return the positions of images in the tokens of a message that has exactly these images.

        Raises:
            RenderError: If the number of placeholders in the tokens differs.
        """
        positions = np.flatnonzero(np.isin(tokens, self.token_ids))
        counts = [self.count(image) for image in images]
        if len(positions) != sum(counts):
            raise RenderError(
                f"the tokens have {len(positions)} placeholders of images; expected {counts} for {images}"
            )
        ends = np.cumsum(counts).tolist()
        return [
            PlacedImage(image, int(positions[end - count]), int(positions[end - 1]) + 1)
            for image, count, end in zip(images, counts, ends, strict=True)
        ]

    def _process(self, image: Image) -> ProcessedImage:
        """Apply the processor to one image and its token, or the image processor alone if its grid is enough."""
        pixels = image.pixels
        if self._grid is not None:
            arrays = self._called(self._grid, image, images=[pixels])
            count = int(np.prod(arrays["image_grid_thw"])) // int(self._grid.merge_size) ** 2
            return ProcessedImage(self.placeholder * count, count, self.token_ids, arrays)
        given: dict[str, Any] = {"text": [self.placeholder], "images": [[pixels]], "return_mm_token_type_ids": True}
        made = self._called(self.processor, image, **given, add_special_tokens=False)
        ids = made["input_ids"][0].astype(np.int32)
        kinds = next((made[name][0] for name in _IS_PLACEHOLDER if name in made), None)
        if kinds is None or not (kinds == 1).any():
            raise RenderError(
                f"the processor {type(self.processor).__name__} does not mark the placeholders of images: install "
                "transformers 5.20 or newer, whose processors return mm_token_type_ids"
            )
        own = [token for token in getattr(self.processor, "image_token_ids", ()) if token is not None]
        # Idefics 3 marks all that it writes for an image, line breaks included.
        placeholders = ids[(kinds == 1) & np.isin(ids, own)] if own else ids[kinds == 1]
        arrays = {name: value for name, value in made.items() if name not in _OF_TEXT}
        return ProcessedImage(self._tokenizer.decode(ids), len(placeholders), np.unique(placeholders), arrays)

    def _called(self, processor: Any, image: Image, **arguments: Any) -> "dict[str, NDArray[Any]]":
        try:
            made: Any = processor(**arguments, return_tensors="np")
        except Exception as error:  # of any type: processors raise what they like
            raise RenderError(f"the processor refuses {image!r}: {type(error).__name__}: {error}") from error
        return {name: np.asarray(value) for name, value in made.items()}


def joined_arrays(processed: Sequence[ProcessedImage]) -> "dict[str, NDArray[Any]]":
    """Return the concatenated arrays of images by their names; an empty dict without images.

    Raises:
        ValueError: If arrays of two images differ in more than their length.
    """
    names = processed[0].arrays if processed else ()
    return {name: np.concatenate([own.arrays[name] for own in processed]) for name in names}


def token_types(media: Sequence[PlacedImage], length: int) -> "NDArray[np.int64]":
    """Return `mm_token_type_ids` of a sequence: 1 on the tokens of images, 0 elsewhere. int64, shape (length,)."""
    types = np.zeros(length, dtype=np.int64)
    for placed in media:
        types[placed.start : placed.stop] = 1
    return types


def find_processor(tokenizer: Tokenizer) -> str | None:
    """Return the folder that a tokenizer was loaded from if it contains an image processor's files, else None."""
    folder = Path(tokenizer.name)
    return tokenizer.name if any((folder / name).is_file() for name in _CONFIGS) else None


@cache
def _transformers(auto: str) -> Any:
    """Import one of transformers' modules for automatic classes, without its warnings that torch is missing.

    Before 5.18, the classes in `transformers` itself refuse to work without torchvision, those in the modules do not.

    Raises:
        MissingPackage: If Pillow is not installed.
    """
    load("PIL.Image", "a renderer of images needs", "pip install 'envsdk[vision]'")
    before = os.environ.get(_NO_ADVICE)
    os.environ[_NO_ADVICE] = "1"
    try:
        importlib.import_module("transformers.processing_utils")
        module = importlib.import_module(f"transformers.models.auto.{auto}")
    finally:
        if before is None:
            del os.environ[_NO_ADVICE]
        else:
            os.environ[_NO_ADVICE] = before
    return module


def _loaded(processor: Any) -> Any:
    if isinstance(processor, Mapping):
        return _of_options(cast("Mapping[str, Any]", processor))
    if not isinstance(processor, (str, Path)):
        return processor
    folder = _folder_of(str(processor))
    failed: Exception | None = None
    try:
        loaded: Any = _transformers("processing_auto").AutoProcessor.from_pretrained(folder)
        if hasattr(loaded, "image_token"):
            return loaded
    except Exception as error:  # of any type: a missing file, a network error, a class that needs torchvision
        failed = error
    try:  # the image processor alone, if the placeholders of its family are a grid
        images: Any = _transformers("image_processing_auto").AutoImageProcessor.from_pretrained(folder)
    except Exception:  # the error of the whole processor is reported
        images = None
    if not hasattr(images, "merge_size"):
        why = "it does not accept images" if failed is None else f"{type(failed).__name__}: {failed}"
        raise ConfigError(f"the processor {str(processor)!r} cannot be loaded: {why}") from failed
    return images


def _folder_of(source: str) -> str:
    """Return the folder of a processor: the given folder, or the cached or downloaded files of a name on the hub.

    The hub is queried only once. Each class of transformers would query it again, which takes minutes offline.

    Raises:
        ConfigError: If it is neither a folder nor a name on the hub, or the hub cannot be reached.
    """
    if Path(source).is_dir():
        return source
    if not _NAME_ON_HUB.fullmatch(source):
        raise ConfigError(f"the processor {brief(source, 200)} is neither a folder nor a name on the hub, OWNER/NAME")
    hub: Any = importlib.import_module("huggingface_hub")
    try:
        return str(hub.snapshot_download(source, allow_patterns=list(_TEXT_FILES)))
    except Exception as error:  # the hub's, the network's, the operating system's
        raise ConfigError(
            f"the processor {source!r} is not a folder, and cannot be loaded from the hub: {type(error).__name__}: "
            f"{error}"
        ) from error


def _of_options(options: Mapping[str, Any]) -> Any:
    """Make an image processor from its options; transformers chooses the class that works on this machine."""
    image_processors = _transformers("image_processing_auto").AutoImageProcessor
    if not isinstance(options.get("image_processor_type"), str):
        raise ConfigError(
            "the options of an image processor lack its image_processor_type; expected a mapping such as "
            '{"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}'
        )
    with tempfile.TemporaryDirectory() as folder:
        try:
            (Path(folder) / _CONFIGS[1]).write_text(json.dumps(dict(options)))
            made: Any = image_processors.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # of any type: an unknown class, a wrong option, a value that is not JSON
            raise ConfigError(
                f"the image processor {brief(dict(options), 300)} cannot be made: {type(error).__name__}: {error}"
            ) from error
    if not hasattr(made, "merge_size"):
        raise ConfigError(
            f"the image processor {type(made).__name__} alone does not specify how many tokens an image has: give the "
            "folder or the name of the model's whole processor"
        )
    return made
