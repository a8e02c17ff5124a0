"""No adapter drops an image: it passes it on, or refuses the sample."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trainers.episodes import copy_of, kept
from trainers.pictures import FIRST, images_of, shown, shown_sample
from trainers.test_prime_rl import credited
from vision_models import picture, qwen_processor, vision_renderer

from envsdk import Sample, Trajectory
from envsdk.errors import InvalidRecord, InvalidSample
from envsdk.images import Image
from envsdk.trainers import check_samples, tables
from envsdk.trainers._image_inputs import image_arrays
from envsdk.trainers.atif import from_atif, to_atif
from envsdk.trainers.foreign import LoggedStep, from_steps
from envsdk.trainers.plain import collate
from envsdk.trainers.prime_rl import to_training_samples
from envsdk.trainers.tables import read_parquet, write_parquet
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
    record: Any = to_training_samples([sample])[0]
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


def test_a_batch_has_the_images_of_each_sample_and_refuses_to_cut_one():
    sample, text = shown_sample(), copy_of(kept().samples()[0])
    text.advantage = 1.0
    assert collate([sample, text])["media"] == [sample.media, []]
    assert "media" not in collate([text])
    end = sample.media[-1].start
    assert collate([sample], max_length=end, truncate=True)["media"] == [sample.media[:2]]
    with pytest.raises(InvalidSample, match="within the tokens"):
        collate([sample], max_length=end + 1, truncate=True)


def test_a_table_has_each_image_once_and_reads_back(tmp_path: Path):
    pytest.importorskip("pyarrow")
    samples = [shown_sample(), kept().samples()[0]]
    write_parquet(tmp_path / "samples.parquet", samples)
    first, second = read_parquet(tmp_path / "samples.parquet")
    assert second.media == []
    assert first.media == samples[0].media
    assert [image.data for image in images_of(first)] == [image.data for image in images_of(samples[0])]
    (row,) = table_rows([samples[0]])
    assert len(row["images"]) == 2
    assert [file["path"] for file in row["images"]] == [image.file_name for image in dict.fromkeys(images_of(first))]


def table_rows(samples: list[Sample]) -> list[Any]:
    return tables._table(samples, 0, None).to_pylist()


def test_an_atif_document_has_the_images_of_messages():
    (document,) = to_atif(shown())
    parts = document["steps"][0]["message"]
    assert [part["type"] for part in parts] == ["text", "image", "text", "image"]
    assert Image.from_url(parts[1]["source"]["path"]) == FIRST.data


def test_an_atif_document_with_ids_and_images_is_refused_as_the_places_are_unknown():
    with pytest.raises(InvalidRecord, match="import the steps with from_steps"):
        from_atif(to_atif(shown()))


def test_an_atif_document_without_ids_gives_supervised_samples_with_its_images():
    (document,) = to_atif(shown())
    for step in document["steps"]:
        step.pop("metrics", None)
    imported = from_atif(document, renderer=vision_renderer(), reward=None)
    (log,) = imported.trajectory.contexts.values()
    (own,) = shown().contexts.values()
    assert [message.images for message in log.messages] == [message.images for message in own.messages]
    assert [len(sample.media) for sample in imported.sft] == [3]


def logged(trajectory: Trajectory) -> list[LoggedStep]:
    pairs = zip(trajectory.prompts(), trajectory.prompt_images(), strict=True)
    return [LoggedStep(p.prompt, p.action, [-0.5] * len(p.action), images=media) for p, media in pairs]


def test_logged_steps_carry_their_images_into_samples():
    trajectory = from_steps(logged(shown()))
    (sample,), (own,) = trajectory.samples(), shown().samples()
    assert sample.tokens.tolist() == own.tokens.tolist()
    assert sample.media == own.media
    assert list(trajectory.prompt_images()) == list(shown().prompt_images())


def test_a_log_in_which_an_image_of_the_same_size_was_replaced_has_a_break():
    first, second = logged(shown())
    other = picture(9, 200, 160).data
    replaced = second._replace(images=[(other, *second.images[0][1:]), *second.images[1:]])
    trajectory = from_steps([first, replaced])
    (break_,) = trajectory.breaks
    assert (break_.reason, break_.kept) == ("undeclared", first.images[0].start)
    assert [sample.media[0].image for sample in trajectory.samples()] == [FIRST.data, other]
    assert len(from_steps([first, second]).samples()) == 1


@pytest.mark.parametrize(
    ("place", "match"), [((0, 10**6), "an image has the tokens"), ((5, 5), "an image has the tokens 5 to 5")]
)
def test_an_image_outside_of_what_was_observed_is_refused(place: tuple[int, int], match: str):
    step = logged(shown())[0]._replace(images=[(FIRST.data, *place)])
    with pytest.raises(InvalidRecord, match=f"step 1: {match}"):
        from_steps([step])
