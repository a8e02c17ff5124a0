"""Images in contexts, records and samples."""

import json
import shutil

import huggingface_hub
import numpy as np
import pytest
import real_models
from envsdk_renderers._fixed_base import FixedBase
from transformers import PreTrainedTokenizerFast
from vision_models import QwenImageProcessor, picture, processed_ids, qwen_processor, vision_renderer

import envsdk
from envsdk import Action, Env, Message, Sample, Trajectory, Turn
from envsdk.diagnostics._costs import cost
from envsdk.errors import ConfigError, RenderError, TurnError
from envsdk.messages import ImagePart, TextPart
from envsdk.rendering.tokenizers import load_tokenizer
from envsdk.rendering.tokenizers._files import DATA
from envsdk.rollouts import Rollouts, StoredRun
from envsdk.trajectories._media import write_images

PLACEHOLDER = "<|image_pad|>"


class Gallery(Env):
    """Shows two pictures, then one that was shown before, then ends."""

    def start(self) -> Turn:
        self.shown = 0
        return Turn(
            [
                Message(
                    role="user",
                    content=[
                        TextPart(text="Compare "),
                        picture(1, 200, 160),
                        TextPart(text="with"),
                        picture(2, 320, 200),
                    ],
                )
            ]
        )

    def respond(self, reply: Message) -> Turn:
        self.shown += 1
        if self.shown == 3:
            return Turn("Done.", reward=1.0, terminated=True)
        return Turn([Message(role="user", content=[picture(2, 320, 200) if self.shown == 1 else picture(5, 200, 90)])])


def play(env: Env, seen: list | None = None) -> Trajectory:
    stop = env.renderer.stop_token_ids[0]
    reply = env.renderer.tokenizer.encode("A plot.").tolist()

    def policy(prompt, *, media=(), **request):
        if seen is not None:
            seen.append((prompt, media))
        return Action([*reply, stop], logprobs=[-0.5] * (len(reply) + 1))

    return envsdk.rollout(env, policy, seed=0)


def images_at(tokens, media, renderer) -> None:
    """Check that exactly the placeholders are in the ranges, and that each image has its own number."""
    pad = renderer.tokenizer.token_id(PLACEHOLDER)
    inside = np.zeros(len(tokens), bool)
    for placed in media:
        inside[placed.start : placed.stop] = True
        assert placed.stop - placed.start == renderer.vision.count(placed.image)
    assert np.array_equal(inside, np.asarray(tokens) == pad)


@pytest.mark.parametrize("template", ["qwen2_5_vl", "qwen3_vl"])
def test_observations_hold_the_images_that_are_new_in_them(template):
    env = Gallery(renderer=vision_renderer(template))
    observation, info = env.reset(seed=0)
    images_at(observation.tokens, observation.media, env.renderer)
    assert [placed.image for placed in observation.media] == [picture(1, 200, 160).data, picture(2, 320, 200).data]
    assert info["media"] == observation.media
    stop = env.renderer.stop_token_ids[0]
    following, *_, info = env.step(Action([stop]))
    images_at(following.tokens, following.media, env.renderer)
    assert [placed.image for placed in following.media] == [picture(2, 320, 200).data]
    images_at(env.prompt(), info["media"], env.renderer)
    assert len(info["media"]) == 3


def test_the_policy_gets_the_images_of_the_whole_prompt_which_is_the_processors_own():
    env, seen = Gallery(renderer=vision_renderer()), []
    trajectory = play(env, seen)
    for prompt, media in seen:
        images_at(prompt, media, env.renderer)
    assert [len(media) for _, media in seen] == [2, 3, 4]
    messages = trajectory.contexts["main"].messages
    assert seen[-1][0].tolist() == processed_ids(qwen_processor(), messages[:5], add_generation_prompt=True)
    assert list(trajectory.prompt_images()) == [media for _, media in seen]


def test_samples_hold_all_images_in_their_tokens_and_read_back_with_their_bytes():
    env = Gallery(renderer=vision_renderer())
    (sample,) = play(env).samples()
    images_at(sample.tokens, sample.media, env.renderer)
    assert len(sample.media) == 4
    again = Sample.from_json(sample.to_json())
    assert again.to_json() == sample.to_json()
    assert [placed.image.data for placed in again.media] == [placed.image.data for placed in sample.media]
    assert len(json.loads(sample.to_json())["images"]) == 3  # each once


def test_a_record_reads_back_with_its_images_embedded_or_in_a_folder(tmp_path):
    trajectory = play(Gallery(renderer=vision_renderer()))
    again = Trajectory.from_json(trajectory.to_json())
    assert again.to_json() == trajectory.to_json()
    assert [image.data for image in again.images] == [image.data for image in trajectory.images]
    bare = Trajectory.from_json(trajectory.to_json(embed_images=False))
    with pytest.raises(ValueError, match="without its image files"):
        _ = bare.images[0].data


def test_a_run_folder_stores_each_distinct_image_once(tmp_path):
    renderer = vision_renderer()
    stop = renderer.stop_token_ids[0]
    rollouts = Rollouts(
        Gallery,
        lambda prompt, **request: Action([stop]),
        env_options={"renderer": renderer},
        seeds=range(3),
        out=tmp_path / "run",
    )
    rollouts.run()
    assert len(list((tmp_path / "run" / "media").iterdir())) == 3
    for trajectory in StoredRun(tmp_path / "run").trajectories():
        assert trajectory.images[0].data == picture(1, 200, 160).data.data


def test_a_truncated_or_changed_file_is_written_again(tmp_path):
    image = picture(1, 200, 160).data
    file = tmp_path / image.file_name
    for wrong in (b"", image.data[:100], image.data[:-1] + b"x", picture(2).data.data):
        file.write_bytes(wrong)
        write_images([image], tmp_path)
        assert file.read_bytes() == image.data
    assert [*tmp_path.iterdir()] == [file]


def test_an_image_that_was_dropped_twice_is_named_once():
    class Same(Gallery):
        def respond(self, reply: Message) -> Turn:
            return Turn([Message(role="user", content=[picture(1, 200, 160)])])

        start = lambda self: self.respond(Message(role="assistant"))  # noqa: E731

    def dropped(history: dict) -> list[str]:
        env = Same(renderer=vision_renderer(), history=history, limits={"max_steps": 6})
        return [break_.detail.partition("; ")[2] for break_ in play(env).breaks]

    (first, *_), (other, *_) = (
        dropped({"name": "compact", "every": 3, "keep_images": 1}),
        dropped({"name": "budget", "max_tokens": 200, "target": 0.5, "order": ["images"]}),
    )
    assert first == other == f"dropped image {picture(1, 200, 160).data.sha256[:12]}"


@pytest.mark.parametrize("given", [picture(1), [picture(1)], [TextPart(text="a"), picture(1)], ["a", picture(1)]])
def test_parts_without_a_message_are_refused_and_the_error_names_the_message(given):
    with pytest.raises(TurnError, match=r"Message\(role='user', content=\[\.\.\.\]\)"):
        Turn(given)


@pytest.mark.parametrize("name", ["nope", "models/nope/deep", "/nowhere", "a b/c", "http://example.com/x"])
def test_a_processor_that_is_neither_a_folder_nor_a_name_on_the_hub_is_refused_at_once(name):
    with pytest.raises(ConfigError, match="neither a folder nor a name on the hub, OWNER/NAME"):
        vision_renderer(processor=name)


def test_the_hub_is_not_queried_offline(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"(?s)'no/one' is not a folder, and cannot be loaded.*HF_HUB_OFFLINE"):
        vision_renderer(processor="no/one")


def test_a_budget_drops_the_oldest_images_first_and_names_them():
    history = {"name": "budget", "max_tokens": 200, "order": ["images"], "keep_images": 2}
    env, seen = Gallery(renderer=vision_renderer("qwen3_vl"), history=history), []
    (break_,) = play(env, seen).breaks
    assert break_.reason == "budget"
    assert break_.detail.endswith(
        f"dropped images {picture(1, 200, 160).data.sha256[:12]}, {picture(2, 320, 200).data.sha256[:12]}"
    )
    for prompt, media in seen:
        images_at(prompt, media, env.renderer)
    assert [len(media) for _, media in seen] == [2, 3, 2]


def test_an_edit_that_replaces_an_image_by_one_of_the_same_size_drops_it():
    class Swap(Env):
        def start(self):
            return Turn([Message(role="user", content=[picture(1)])])

        def respond(self, reply):
            return Turn([Message(role="user", content=[picture(2)])], edit=envsdk.episodes._turn.Edit(0))

    env = Swap(renderer=vision_renderer(), limits={"max_steps": 2})
    env.reset(seed=0)
    observation, *_, info = env.step(Action([env.renderer.stop_token_ids[0]]))
    assert [placed.image for placed in observation.media] == [picture(2).data]
    assert [placed.image for placed in info["media"]] == [picture(2).data]
    images_at(env.prompt(), info["media"], env.renderer)


def test_the_cost_counts_the_tokens_of_images_as_often_as_they_are_observed():
    env = Gallery(renderer=vision_renderer(), history={"name": "compact", "every": 2, "keep_images": 1})
    trajectory = play(env)
    observed = [step.stop - step.start for step in trajectory.steps]
    counts = [env.renderer.vision.count(picture(*which).data) for which in ((1, 200, 160), (2, 320, 200), (5, 200, 90))]
    found = cost(trajectory)
    assert found.image_tokens == counts[0] + 2 * counts[1] + counts[2] < sum(observed)
    assert found.images == 4
    assert f"{found.image_tokens:,} of them of 4 images" in str(found)
    assert (found + found).image_tokens == 2 * found.image_tokens
    assert found.to_dict()["image_tokens"] == found.image_tokens


def test_a_renderer_of_texts_refuses_an_image_and_names_the_message():
    with pytest.raises(RenderError, match=r"message 1 \(user\) has an image, which 'qwen3' cannot write"):
        envsdk.get_renderer("qwen3", "embedded").render(
            [Message(role="system", content="x"), Message(role="user", content=[picture(1)])]
        )


def test_a_folder_with_the_files_of_a_processor_is_found_without_an_option(tmp_path):
    template = real_models.template("qwen2_5_vl")
    shutil.copy(DATA / "embedded.json", tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (tmp_path / "chat_template.jinja").write_text(template)
    images = qwen_processor().image_processor
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({**images.to_dict(), "image_processor_type": "Qwen2VLImageProcessor"})
    )
    renderer = envsdk.get_renderer("fixed_base", str(tmp_path))
    message = Message(role="user", content=[TextPart(text="What?"), picture(1, 200, 160)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    official = QwenImageProcessor(images, tokenizer, template)
    assert renderer.render([message]).tokens.tolist() == processed_ids(official, [message])


def test_the_options_of_an_image_processor_are_json_in_the_specification():
    options = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 16}
    renderer = FixedBase(
        load_tokenizer(real_models.qwen3_folder()), template=real_models.template("qwen3_vl"), processor=options
    )
    message = Message(role="user", content=[TextPart(text="What?"), picture(1, 200, 160)])
    assert renderer.render([message]).tokens.tolist() == processed_ids(qwen_processor("qwen3_vl"), [message])
    assert json.loads(json.dumps(renderer.specification()))["processor"] == options


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"patch_size": 16}, "lack its image_processor_type"),
        ({"image_processor_type": "NoSuchImageProcessor"}, "cannot be made"),
        ({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": object()}, "cannot be made"),
        ({"image_processor_type": "Gemma3ImageProcessor"}, "how many tokens an image has"),
    ],
)
def test_options_that_make_no_image_processor_are_refused(options, error):
    with pytest.raises(ConfigError, match=error):
        vision_renderer(processor=options)


def test_content_that_spells_a_placeholder_is_text():
    renderer = vision_renderer()
    message = Message(
        role="user",
        content=[TextPart(text=f"<|vision_start|>{PLACEHOLDER}"), picture(1, 200, 160), TextPart(text=PLACEHOLDER)],
    )
    rendered = renderer.render([message], generation_prompt=True)
    pad = renderer.tokenizer.token_id(PLACEHOLDER)
    assert np.count_nonzero(rendered.tokens == pad) == renderer.vision.count(picture(1, 200, 160).data)
    assert (
        renderer.tokenizer.decode(rendered.tokens).count(PLACEHOLDER)
        == renderer.vision.count(picture(1, 200, 160).data) + 2
    )


def test_an_assistants_message_has_no_image():
    with pytest.raises(ValueError, match="an assistant message has an image"):
        Message(role="assistant", content=[ImagePart(np.zeros((4, 4, 3), np.uint8))])


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ("a text", "str"),
        (np.zeros((4, 4, 3), np.uint8), "ndarray"),
        (picture(1).data, "Image"),
        ({"type": "image", "image": "plot.png"}, "dict"),
        ({"type": "image_url", "image_url": {"url": None}}, "dict"),
        ({"type": "input_audio", "input_audio": {}}, "dict"),
    ],
    ids=["str", "array", "image", "huggingface", "no url", "audio"],
)
def test_a_part_of_another_kind_is_an_error_that_names_the_kinds_of_parts(part, kind):
    with pytest.raises(
        ValueError, match=rf"(?s)the content contains an? {kind}, .*expected TextPart\(text=...\), ImagePart"
    ):
        Message(role="user", content=[part])


@pytest.mark.parametrize("kind", ["input_audio", "video_url", "video", "file"])
def test_audio_video_and_files_are_refused_with_what_is_supported(kind):
    with pytest.raises(TurnError, match="a message holds texts and images, and no audio, video or files"):
        Turn([{"role": "user", "content": [{"type": kind, kind: {}}]}])


def test_a_budget_that_keeps_images_without_dropping_any_is_refused():
    with pytest.raises(envsdk.errors.ConfigError, match="add 'images' to order"):
        Gallery(renderer=vision_renderer(), history={"name": "budget", "max_tokens": 200, "keep_images": 1})


@pytest.mark.parametrize(("every", "keep_images", "shown"), [(2, 1, [2, 3, 1]), (1, 0, [2, 1, 1])])
def test_compact_keeps_the_last_images_and_those_that_the_model_has_not_seen(every, keep_images, shown):
    history = {"name": "compact", "every": every, "keep_images": keep_images}
    env, seen = Gallery(renderer=vision_renderer(), history=history), []
    assert "dropped images" in play(env, seen).breaks[0].detail
    assert [len(media) for _, media in seen] == shown
