"""ms-swift's own warnings, and those of what it imports, are not ours to mend.

Its templates of Qwen's vision models import torchvision. Its trainers import a TRL of their own, which after_install.py
put into a folder.
"""

import json
import os
import shutil
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Any

import pytest
import real_models
import torchvision_operators  # noqa: F401

from envsdk import Renderer, get_renderer, load_tokenizer
from envsdk.authoring._driver import Driver

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # else the import of what is experimental warns

with warnings.catch_warnings(action="ignore"):
    sys.path.insert(0, folder := str(Path(sysconfig.get_path("purelib")) / "trl_of_ms_swift"))
    import swift.rlhf_trainers.grpo_trainer

    sys.path.remove(folder)
    import swift.model
    import swift.rlhf_trainers.utils
    import swift.rollout.multi_turn
    import swift.template  # noqa: F401


@pytest.fixture(scope="session")
def vision_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Qwen2.5-VL with Qwen3's vocabulary, its image processor and its chat template."""
    from torch_vision_models import tiny_qwen_vl

    folder = tmp_path_factory.mktemp("qwen2_5_vl")
    for file in real_models.qwen3_folder().iterdir():
        shutil.copy(file, folder)
    tiny_qwen_vl("qwen2_5_vl").save_pretrained(folder)
    images = {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"}
    (folder / "preprocessor_config.json").write_text(json.dumps(images))
    (folder / "chat_template.jinja").write_text(real_models.template("qwen2_5_vl"))
    return folder


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """With the image processor alone: ms-swift changes the class of the whole one, so that subclasses do not work."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    tokenizer, chat_template = load_tokenizer(real_models.qwen3_folder()), real_models.template("qwen2_5_vl")
    processor: Any = Qwen2VLImageProcessorPil(patch_size=14)
    return get_renderer("fixed_base", tokenizer, template=chat_template, processor=processor)


@pytest.fixture(autouse=True)
def _environments_keep_their_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run, the tests read the trajectory from the environment, which would have released it."""
    monkeypatch.setattr(Driver, "forget", lambda driver: None)
