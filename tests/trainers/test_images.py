"""No adapter drops an image: it passes it on, or refuses the sample."""

import io

import numpy as np
import PIL.Image
import pytest
from trainers.episodes import kept
from trainers.pictures import images_of, shown, shown_sample
from trainers.test_prime_rl import credited
from vision_models import qwen_processor, vision_renderer

from envsdk import Image
from envsdk.errors import InvalidSample
from envsdk.trainers import check_samples
from envsdk.trainers.image_inputs import image_arrays, rgb_file
from envsdk.trainers.prime_rl import to_training_samples
from envsdk.trainers.verl import to_outputs, untrained_output


def test_an_adapter_refuses_images_unless_it_passes_them_on():
    sample = shown_sample()
    with pytest.raises(InvalidSample, match=r"sample 0, of trajectory 'pictures.*it has images \(3, .*tokens only"):
        check_samples([sample])
    with pytest.raises(InvalidSample, match="but its loss is blind"):
        check_samples([sample], no_images="its loss is blind")
    assert check_samples([sample], no_images=None) == [sample]
    assert len(set(images_of(sample))) == 2


def test_prime_rl_gets_each_image_as_a_url_with_its_tokens():
    sample = shown_sample()
    (record,) = to_training_samples([sample])
    refs = record["mm_refs"].images
    assert [Image.from_url(ref.url) for ref in refs] == images_of(sample)
    assert [(ref.offset, ref.offset + ref.length) for ref in refs] == [(p.start, p.stop) for p in sample.media]
    pad = vision_renderer().tokenizer.token_id("<|image_pad|>")
    assert record["mm_token_type_ids"] == (sample.tokens == pad).astype(int).tolist()
    assert "mm_refs" not in to_training_samples(credited(kept()))[0]


@pytest.mark.parametrize("spoil", ["another size", "another order"])
def test_a_processor_that_writes_other_tokens_is_refused(spoil: str):
    sample = shown_sample()
    if spoil == "another size":
        sample.media[0] = sample.media[0]._replace(image=sample.media[1].image)
    else:
        sample.media[0], sample.media[1] = (
            sample.media[0]._replace(image=sample.media[1].image),
            sample.media[1]._replace(image=sample.media[0].image),
        )
    with pytest.raises(InvalidSample, match=r"has \d+ placeholders .* but the processor writes \d+"):
        image_arrays(sample, vision_renderer().vision)


def test_arrays_are_those_of_the_processor_for_all_images_at_once():
    sample = shown_sample()
    given = image_arrays(sample, vision_renderer().vision)
    images = [image.pixels for image in images_of(sample)]
    whole = qwen_processor().image_processor(images=images, return_tensors="np")
    assert given.keys() == whole.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(array, whole[name])


def test_verl_gets_images_of_pillow_in_order():
    (output,) = to_outputs([shown_sample()], prompt_length=16, response_length=500)
    images = output["multi_modal_data"]["images"]
    assert [image.size for image in images] == [(200, 160), (64, 96), (200, 160)]
    assert {image.mode for image in images} == {"RGB"}
    (text,) = to_outputs([kept().samples()[0]], prompt_length=16, response_length=5000)
    assert "multi_modal_data" not in text


@pytest.mark.parametrize("prompt_length", [5, 20, 60, 80, 500])
def test_verl_s_untrained_output_has_no_part_of_an_image(prompt_length: int):
    output = untrained_output(shown(), prompt_length=prompt_length)
    tokens = np.array([*output["prompt_ids"], *output["response_ids"]])
    assert len(tokens) <= prompt_length + 1
    vision = vision_renderer().vision
    images = [Image.read(image) for image in output.get("multi_modal_data", {}).get("images", ())]
    assert np.isin(tokens, vision.token_ids).sum() == sum(vision.count(image) for image in images)


def test_an_image_that_is_not_in_rgb_is_given_as_the_pixels_that_the_model_sees():
    buffer = io.BytesIO()
    PIL.Image.new("L", (40, 30), 128).save(buffer, format="PNG")
    gray, color = Image.read(buffer.getvalue()), Image.read(PIL.Image.new("RGB", (40, 30)))
    assert rgb_file(color) == (color.data, "png")
    data, image_format = rgb_file(gray)
    assert (data != gray.data, image_format) == (True, "png")
    assert Image.read(data).pixels.tobytes() == gray.pixels.tobytes()
