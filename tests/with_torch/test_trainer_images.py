"""Trainers that take the images of a sample as tensors."""

from functools import partial

import numpy as np
import pytest
from trainers.episodes import kept

pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl", reason="transformers 5.8 or newer")

from trainers.pictures import shown_sample
from vision_models import vision_renderer

from envsdk.errors import InvalidSample
from envsdk.trainers._image_inputs import image_arrays
from envsdk.trainers.skyrl import to_generator_output
from envsdk.trainers.slime import to_slime_samples


def test_skyrl_and_slime_get_tensors_of_a_processor_and_refuse_images_without_one():
    sample, vision = shown_sample(), vision_renderer().vision
    whole = image_arrays(sample, vision)
    for convert in (to_generator_output, partial(to_slime_samples, first_rollout_id=0, first_group_index=0)):
        with pytest.raises(InvalidSample, match=r"pass vision=renderer\.vision"):
            convert([sample])
    output = to_generator_output([sample], vision=vision)
    (record,) = to_slime_samples([sample], first_rollout_id=0, first_group_index=0, vision=vision)
    for name, array in whole.items():
        np.testing.assert_array_equal(output[name][0].numpy(), array)
        np.testing.assert_array_equal(record["multimodal_train_inputs"][name].numpy(), array)


def test_skyrl_takes_images_in_all_rows_or_in_none():
    with pytest.raises(InvalidSample, match="has no images, but others of the batch do"):
        to_generator_output([shown_sample(), *kept().samples()], vision=vision_renderer().vision)
    assert "pixel_values" not in to_generator_output(kept().samples(), vision=vision_renderer().vision)
