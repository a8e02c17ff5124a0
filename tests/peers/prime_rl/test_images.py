"""Samples with images pass through prime-rl's records, packing and processor, and give the model what we would."""

import importlib
from typing import Any

import pytest
import torch
from torch_vision_models import tiny_qwen_vl
from trainers.pictures import Gallery, says
from vision_models import qwen_processor, vision_renderer

from envsdk import Sample, rollout
from envsdk.trainers.plain import collate, model_inputs
from envsdk.trainers.prime_rl import to_training_samples

FAMILY = "qwen3_vl"
DROPPED = {"history": {"name": "budget", "max_tokens": 90, "order": ["images"], "keep_images": 1}}


@pytest.fixture
def batches() -> Any:
    return importlib.import_module("prime_rl.trainer.batch")


@pytest.fixture
def samples() -> list[Sample]:
    """One sample with three images, and two of a rollout that drops them."""
    samples: list[Sample] = []
    for options in ({}, DROPPED):
        env = Gallery(renderer=vision_renderer(FAMILY), **options)
        samples += rollout(env, says(env.renderer), seed=0).samples()
    for sample in samples:
        sample.advantage = 1.0
    return samples


def received(batches: Any, samples: list[Sample]) -> list[Any]:
    """The records as prime-rl's structs, encoded and decoded as msgpack."""
    msgspec, struct = importlib.import_module("msgspec"), batches.TrainingSample
    records = [struct(**record) for record in to_training_samples(samples)]
    return [msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=struct) for record in records]


def test_a_packed_batch_gives_the_model_what_we_would(batches: Any, samples: list[Sample]):
    multimodal = importlib.import_module("prime_rl.trainer.multimodal")
    adapter = importlib.import_module("prime_rl.multimodal").get_multimodal_adapter(FAMILY)
    model, vision = tiny_qwen_vl(FAMILY), vision_renderer(FAMILY).vision
    prepared = [batches.prepare_sample(record, 4096) for record in received(batches, samples)]
    for made, sample in zip(prepared, samples, strict=True):
        images = multimodal.materialize_mm_refs(made.mm_refs, qwen_processor(FAMILY), adapter).kwargs
        ours = model_inputs(collate([sample], arrays="torch"), [sample], model, vision=vision)
        assert (made.input_ids, made.loss_mask) == (sample.tokens.tolist(), sample.mask.tolist())
        assert torch.equal(images["pixel_values"], ours["pixel_values"])
        assert torch.equal(images["image_grid_thw"], ours["image_grid_thw"])
        types = torch.tensor([made.mm_token_type_ids])
        with torch.no_grad():
            theirs = model(input_ids=ours["input_ids"], mm_token_type_ids=types, **images, use_cache=False).logits
            torch.testing.assert_close(theirs, model(**ours).logits, atol=1e-5, rtol=1e-5)
    (packed,) = batches.packed_samples_into_micro_bs(prepared, 4096, 1, lambda lengths: sum(lengths))
    for image in packed.mm_refs.images:  # prime-rl packs the samples in an order of its own
        place = slice(image.offset, image.offset + image.length)
        assert set(packed.input_ids[place]) == {int(token) for token in vision.token_ids}
        assert packed.input_ids[image.offset - 1] != packed.input_ids[image.offset]
    assert sum(packed.mm_token_type_ids) == sum(image.length for image in packed.mm_refs.images)


def test_a_record_that_is_too_long_is_cut_before_an_image(batches: Any, samples: list[Sample]):
    last = samples[0].media[-1]
    made = batches.prepare_sample(received(batches, samples)[0], last.start + 3)
    assert len(made.input_ids) == last.start
    assert len(made.mm_refs.images) == len(samples[0].media) - 1
