"""Reading images: the right pixels, or a typed error."""

import io
import os
import subprocess
import sys
from pathlib import Path

import image_attacks
import numpy as np
import pytest
from image_attacks import ATTACKS
from PIL import Image as Pillow
from pydantic import ValidationError

from envsdk.errors import ImageError
from envsdk.images import MAX_BYTES, Image, RecentValues, rgb_image
from envsdk.messages import ImagePart, Message

NOISE = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)


def file_of(image: Pillow.Image, file_format: str, **options) -> bytes:
    file = io.BytesIO()
    image.save(file, file_format, **options)
    return file.getvalue()


def test_the_same_pixels_come_from_an_array_an_image_a_path_and_bytes(tmp_path):
    data = file_of(Pillow.fromarray(NOISE), "PNG")
    (tmp_path / "image.png").write_bytes(data)
    sources = (
        NOISE,
        Pillow.fromarray(NOISE),
        str(tmp_path / "image.png"),
        tmp_path / "image.png",
        data,
        bytearray(data),
    )
    images = [Image.read(source) for source in sources]
    for image in images:
        assert np.array_equal(np.asarray(image.pixels), NOISE)
        assert (image.width, image.height, image.media_type) == (20, 12, "image/png")
    assert len({image.sha256 for image in images[2:]}) == 1  # their bytes are kept
    assert images[2].data == data


def test_png_and_jpeg_keep_their_bytes_and_other_formats_become_png():
    kept_formats = ("PNG", "JPEG")
    for file_format in (*kept_formats, "WEBP", "BMP", "GIF", "TIFF"):
        data = file_of(Pillow.fromarray(NOISE), file_format)
        image = Image.read(data)
        assert (image.data == data) is (file_format in kept_formats)
        assert np.array_equal(np.asarray(image.pixels), np.asarray(Pillow.open(io.BytesIO(data)).convert("RGB")))


def test_a_rotation_that_the_file_describes_is_done():
    exif = Pillow.Exif()
    exif[0x0112] = 6
    image = Image.read(file_of(Pillow.fromarray(NOISE), "PNG", exif=exif))
    assert np.array_equal(np.asarray(image.pixels), np.rot90(NOISE, -1))
    assert (image.width, image.height) == (12, 20)


def test_sixteen_bits_are_scaled_and_not_clipped():
    deep = np.array([[0, 257, 65535, 32768]], dtype=np.uint16)
    for file_format in ("PNG", "TIFF"):
        image = Image.read(file_of(Pillow.fromarray(deep), file_format))
        assert np.asarray(image.pixels)[0, :, 0].tolist() == [0, 1, 255, 128]


def test_cmyk_and_transparent_images_become_rgb():
    cmyk = Pillow.fromarray(NOISE).convert("CMYK")
    assert np.array_equal(np.asarray(Image.read(file_of(cmyk, "TIFF")).pixels), np.asarray(cmyk.convert("RGB")))
    image = Image.read(file_of(cmyk, "JPEG"))
    assert image.media_type == "image/png"
    rgba = np.dstack([NOISE, np.full(NOISE.shape[:2], 128, np.uint8)])
    assert np.array_equal(np.asarray(Image.read(file_of(Pillow.fromarray(rgba), "PNG")).pixels), NOISE)


def test_the_smallest_and_the_narrowest_image_are_read():
    for shape in ((1, 1, 3), (20000, 1, 3), (1, 20000, 3)):
        assert np.asarray(Image.read(np.zeros(shape, np.uint8)).pixels).shape == shape


def test_a_wrong_suffix_does_not_matter(tmp_path):
    (tmp_path / "image.png").write_bytes(file_of(Pillow.fromarray(NOISE), "JPEG"))
    assert Image.read(tmp_path / "image.png").media_type == "image/jpeg"


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"])
def test_a_truncated_file_is_an_error_wherever_it_is_cut(file_format):
    data = file_of(Pillow.fromarray(NOISE), file_format)
    for length in range(0, len(data) - len(data) // 4, max(1, len(data) // 40)):
        with pytest.raises(ImageError, match="cannot be read as an image"):
            Image.read(data[:length])


def test_a_format_that_is_a_program_is_refused():
    with pytest.raises(ImageError, match="EPS, which is a program"):
        Image.read(file_of(Pillow.fromarray(NOISE), "EPS"))


def test_drawing_on_the_pixels_does_not_change_the_image():
    image = Image.read(NOISE)
    image.pixels.putpixel((0, 0), (1, 2, 3))
    assert np.array_equal(np.asarray(image.pixels), NOISE)


def test_an_animation_is_refused():
    frames = [Pillow.fromarray(np.roll(NOISE, shift, 0)) for shift in range(3)]
    for file_format in ("GIF", "PNG", "WEBP", "TIFF"):
        with pytest.raises(ImageError, match="has 3 frames"):
            Image.read(file_of(frames[0], file_format, save_all=True, append_images=frames[1:]))


def test_a_file_that_is_too_large_is_refused(tmp_path):
    with pytest.raises(ImageError, match="at most 33,554,432 are read"):
        Image.read(b"\0" * (MAX_BYTES + 1))
    (tmp_path / "x.png").write_bytes(b"\0" * (MAX_BYTES + 5))
    with pytest.raises(ImageError, match="at most"):
        Image.read(tmp_path / "x.png")


@pytest.mark.parametrize(
    "source",
    [
        None,
        3,
        [[1]],
        {},
        {"url": "x.png"},
        "missing.png",
        "a\0b",
        Path("/"),
        b"",
        "http://example.com/x.png",
        "data:image/png;base64,AAAA",
        NOISE.astype(float),
        NOISE[:, :, 0],
        NOISE[:0],
        np.zeros((2, 2, 4), np.uint8),
    ],
    ids=repr,
)
def test_what_is_not_an_image_is_an_error(source):
    with pytest.raises(ImageError):
        ImagePart(data=source)


def test_a_data_url_is_read_and_a_remote_one_is_never_fetched():
    url = Image.read(NOISE).url
    part = {"type": "image_url", "image_url": {"url": url, "detail": "high"}}
    assert np.array_equal(np.asarray(Message(role="user", content=[part]).images[0].pixels), NOISE)
    for wrong in ("https://example.com/x.png", "data:image/png,x", "data:image/png;base64,%%", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="image"):
            Message(role="user", content=[{"type": "image_url", "image_url": {"url": wrong}}])


def test_a_message_with_images_reads_back_from_openais_form_and_from_a_record():
    message = Message(
        role="user", content=[{"type": "text", "text": "a"}, ImagePart(data=NOISE), {"type": "text", "text": "b"}]
    )
    assert Message.from_openai(message.to_openai()) == message
    assert Message.model_validate(message.model_dump(mode="json")) == message
    assert message.content == "ab"


def test_the_file_of_an_image_that_was_changed_or_is_missing_is_an_error(tmp_path):
    image = Image.read(NOISE)
    stored = Image.from_reference(image.reference())
    stored.find_in(tmp_path, {})
    with pytest.raises(ImageError, match="cannot be read"):
        _ = stored.data
    (tmp_path / image.file_name).write_bytes(b"other")
    with pytest.raises(ImageError, match="was changed"):
        _ = stored.data
    (tmp_path / image.file_name).write_bytes(image.data)
    assert stored.data == image.data
    assert stored == image


@pytest.mark.parametrize(
    "change", [{"sha256": "../../etc/passwd"}, {"media_type": "image/svg"}, {"width": 0}, {"width": "1"}, {"x": 1}]
)
def test_a_damaged_reference_is_an_error(change):
    with pytest.raises(ImageError, match="damaged"):
        Image.from_reference({**Image.read(NOISE).reference(), **change})


@pytest.mark.matrix
@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (37, 53), (200, 100)])
@pytest.mark.parametrize("kind", ["noise", "flat", "gradient"])
def test_pixels_are_stored_without_loss_however_well_they_compress(shape, kind):
    rng = np.random.default_rng(3)
    values = {
        "noise": rng.integers(0, 256, (*shape, 3)),
        "flat": np.full((*shape, 3), 200),
        "gradient": np.add.outer(np.arange(shape[0]) * 7, np.arange(shape[1]) * 5)[..., None] * [1, 2, 3] % 256,
    }[kind].astype(np.uint8)
    image = Image.read(values)
    with Pillow.open(io.BytesIO(image.data)) as read:
        assert (read.format, read.mode) == ("PNG", "RGB")
        assert np.array_equal(np.asarray(read), values)
    assert Image.read(image.data) == image
    assert kind != "flat" or len(image.data) < values.size // 4 + 200


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA"])
def test_an_image_that_is_not_in_rgb_is_sent_as_the_pixels_that_a_model_sees(mode: str):
    image = Image.read(file_of(Pillow.fromarray(NOISE).convert(mode), "PNG"))
    sent = rgb_image(image)
    assert Pillow.open(io.BytesIO(sent.data)).mode == "RGB"
    assert sent.pixels.tobytes() == image.pixels.tobytes()


def test_an_image_in_rgb_is_sent_as_it_is_unless_one_of_its_colors_is_transparent():
    plain = Image.read(NOISE)
    keyed = Image.read(file_of(Pillow.fromarray(NOISE), "PNG", transparency=tuple(NOISE[0, 0].tolist())))
    assert rgb_image(plain) is plain
    assert "transparency" in Pillow.open(io.BytesIO(keyed.data)).info
    assert "transparency" not in Pillow.open(io.BytesIO(rgb_image(keyed).data)).info
    assert rgb_image(keyed).pixels.tobytes() == keyed.pixels.tobytes()


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_image_that_costs_too_much_is_refused_with_its_limit(attack: str):
    make, why = ATTACKS[attack]
    with pytest.raises(ImageError, match=why):
        Image.read(make())


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_no_image_takes_more_than_500_mib(is_full: bool):
    largest = [*image_attacks.LARGEST] if is_full else ["PNG"]
    ran = subprocess.run(
        [sys.executable, image_attacks.__file__, *largest], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_a_cache_keeps_the_last_values_within_its_bytes():
    cache = RecentValues(10, len)
    for key, value in {"a": b"aaaa", "b": b"bbbb", "c": b"ccc"}.items():
        cache.put(key, value)
    assert cache.get("b", lambda: b"") == b"bbbb"
    cache.put("d", b"ddd")
    assert (cache.nbytes, cache.get("b", lambda: b""), cache.get("a", lambda: b"")) == (10, b"bbbb", b"")


def test_a_value_that_is_larger_than_a_cache_is_not_kept():
    cache = RecentValues(10, len)
    assert cache.get("a", lambda: bytes(11)) == bytes(11)
    assert cache.nbytes == 0


@pytest.mark.parametrize("form", ["content", "parts"])
def test_a_mapping_does_not_choose_which_file_is_opened(form: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would never end
    with pytest.raises(ValidationError, match="in a mapping"):
        Message.model_validate({"role": "user", form: [{"type": "image", "data": str(tmp_path / "pipe")}]})
