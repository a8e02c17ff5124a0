"""A tokenizer is the same by every route to its model's files, and follows each change of each of them."""

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import transformers

from envsdk.errors import TokenizerError
from envsdk.rendering.tokenizers import Tokenizer, load_tokenizer
from envsdk.rendering.tokenizers._files import DATA, snapshot

REPO_ID, COMMIT = "some-org/some-model", "0123456789" * 4


def small_vocabulary() -> dict:
    """Bytes and the embedded vocabulary's control tokens. It loads fast: there is nothing to compare with tiktoken."""
    specification = json.loads((DATA / "embedded.json").read_bytes())
    pieces = [piece for piece in specification["model"]["vocab"] if len(piece) == 1]
    specification["normalizer"] = {"type": "Lowercase"}
    specification["model"] |= {"vocab": {piece: token for token, piece in enumerate(pieces)}, "merges": []}
    for token, added in enumerate(specification["added_tokens"], start=len(pieces)):
        added["id"] = token
    return specification


VOCABULARY = small_vocabulary()
IDS = {token["content"]: token["id"] for token in VOCABULARY["added_tokens"]}
IM_END, END_OF_TEXT = IDS["<|im_end|>"], IDS["<|endoftext|>"]
DEFAULT_TEMPLATE = "additional_chat_templates/default.jinja"
FILES = {
    "tokenizer.json": json.dumps(VOCABULARY),
    "chat_template.jinja": "{{ messages }}",
    "tokenizer_config.json": json.dumps({"chat_template": "{{ 'old' }}", "eos_token": "<|im_end|>"}),
    "special_tokens_map.json": json.dumps({"bos_token": {"content": "<|im_start|>"}}),
    "config.json": json.dumps({"vocab_size": 4608, "model_type": "qwen3"}),
    "generation_config.json": json.dumps({"eos_token_id": [IM_END, END_OF_TEXT]}),
}


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def link(cache: Path, files: dict[str, str]) -> Path:
    """Lay files out as the hub's cache does: a snapshot's files are links into a folder of blobs."""
    repo = cache / f"models--{REPO_ID.replace('/', '--')}"
    for number, (name, text) in enumerate(files.items()):
        blob, file = repo / "blobs" / f"{number:040x}", repo / "snapshots" / COMMIT / name
        for path in (blob, file):
            path.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(text)
        file.symlink_to(os.path.relpath(blob, file.parent))
    write(repo / "refs", {"main": COMMIT})
    return repo / "snapshots" / COMMIT


def facts(tokenizer: Tokenizer) -> tuple[object, ...]:
    """What may not depend on the route."""
    template = tokenizer.chat_template
    assert template is not None
    return tokenizer.fingerprint, tokenizer.vocab_size, template.text, template.end_tokens


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The hub's cache in a folder of this test's, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    snapshot.cache_clear()
    yield tmp_path / "hub"
    snapshot.cache_clear()


# Routes.


def test_a_folder_of_links_has_all_that_a_folder_of_files_has(tmp_path: Path) -> None:
    folder = link(tmp_path / "hub", FILES)
    expected = facts(load_tokenizer(write(tmp_path / "plain", FILES)))
    assert facts(load_tokenizer(folder)) == expected
    assert facts(load_tokenizer(folder / "tokenizer.json")) == expected
    assert expected[1:] == (4608, "{{ messages }}", ("<|im_end|>", "<|endoftext|>"))


def test_a_model_is_the_same_by_its_folder_its_id_and_its_object(hub: Path) -> None:
    folder = link(hub, FILES)
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    by_id = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    by_id.name_or_path = REPO_ID
    expected = facts(load_tokenizer(folder))
    assert facts(load_tokenizer(REPO_ID)) == expected
    assert facts(load_tokenizer(loaded)) == expected
    assert facts(load_tokenizer(by_id)) == expected


def test_an_object_of_no_folder_has_what_the_object_itself_knows() -> None:
    file = str(DATA / "embedded.json")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=file, eos_token="<|im_end|>", chat_template="{{ 1 }}"
    )
    fingerprint, size, text, ends = facts(load_tokenizer(tokenizer))
    assert (fingerprint, size) == (load_tokenizer("embedded").fingerprint, 4096)
    assert (text, ends) == ("{{ 1 }}", ("<|im_end|>",))


def test_tokens_that_were_added_to_an_object_outgrow_the_size_of_its_folder(tmp_path: Path) -> None:
    named = max(IDS.values()) + 1
    folder = write(tmp_path, {**FILES, "config.json": json.dumps({"vocab_size": named})})
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    assert load_tokenizer(tokenizer).vocab_size == named
    tokenizer.add_tokens(["<|one more|>"])
    assert load_tokenizer(tokenizer).token_id("<|one more|>") == named
    assert load_tokenizer(tokenizer).vocab_size > named


def test_what_an_object_was_changed_to_wins_over_its_folder(tmp_path: Path) -> None:
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(write(tmp_path, FILES))
    tokenizer.chat_template = "{{ 'mine' }}"
    assert facts(load_tokenizer(tokenizer))[2] == "{{ 'mine' }}"


def test_the_size_of_a_multimodal_models_vocabulary_is_that_of_its_text(tmp_path: Path) -> None:
    folder = write(tmp_path, {**FILES, "config.json": json.dumps({"text_config": {"vocab_size": 4352}})})
    assert load_tokenizer(folder).vocab_size == 4352


# Ids of the hub that do not load.


def test_an_id_that_is_neither_cached_nor_reachable_is_refused(hub: Path) -> None:
    with pytest.raises(TokenizerError, match="the hub cannot be reached, and its cache on this machine lacks"):
        load_tokenizer(REPO_ID)


def test_the_hub_is_asked_once_if_it_does_not_answer(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Unavailable(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(503)

        def log_message(self, format: str, *_: object) -> None:
            pass

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Unavailable) as server:
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(TokenizerError, match=REPO_ID):
            load_tokenizer(REPO_ID)
        server.shutdown()
    assert len(asked) == 1


@pytest.mark.full
def test_the_variables_of_the_hub_hold_in_a_program(tmp_path: Path) -> None:
    link(tmp_path / "elsewhere", FILES)
    code = f"import envsdk; print(envsdk.load_tokenizer({REPO_ID!r}).vocab_size)"
    variables = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "elsewhere")}
    run = subprocess.run([sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True)
    assert run.stdout == "4608\n", run.stderr


def test_a_model_without_a_tokenizer_json_is_refused_with_the_way_to_load_it(hub: Path) -> None:
    link(hub, {name: text for name, text in FILES.items() if name != "tokenizer.json"})
    with pytest.raises(TokenizerError, match=r"AutoTokenizer\.from_pretrained\('some-org/some-model'\)"):
        load_tokenizer(REPO_ID)


@pytest.mark.parametrize("name", ["./no/such/folder", "/no/such/folder", "no such id", "a/b/c", "", ".."])
def test_a_path_that_does_not_exist_is_refused_without_asking_a_hub(name: str) -> None:
    with pytest.raises(TokenizerError):
        load_tokenizer(name)


# Changes.


def without(*names: str) -> dict[str, str]:
    return {name: text for name, text in FILES.items() if name not in names}


CHANGES = {
    "tokenizer.json": (FILES, FILES["tokenizer.json"].replace("<|box_start|>", "<|box_begin|>")),
    "chat_template.jinja": (FILES, "{{ messagez }}"),
    DEFAULT_TEMPLATE: ({**FILES, DEFAULT_TEMPLATE: "{{ 'first' }}"}, "{{ 'other' }}"),
    "tokenizer_config.json": (
        without("chat_template.jinja"),
        json.dumps({"chat_template": "{{ 'new' }}", "eos_token": "<|im_end|>"}),
    ),
    "special_tokens_map.json": (FILES, json.dumps({"bos_token": {"content": "<|im_END|>"}})),
    "config.json": (FILES, json.dumps({"vocab_size": 4864, "model_type": "qwen3"})),
    "generation_config.json": (FILES, json.dumps({"eos_token_id": IM_END})),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_file_is_noticed_though_its_time_stays(name: str, tmp_path: Path) -> None:
    files, text = CHANGES[name]
    folder = write(tmp_path, files)
    before = load_tokenizer(folder)
    assert load_tokenizer(folder) is before
    status = (folder / name).stat()
    (folder / name).write_text(text)
    os.utime(folder / name, ns=(status.st_atime_ns, status.st_mtime_ns))
    after = load_tokenizer(folder)
    seen = [(*facts(tokenizer), tokenizer.chat_template, tokenizer.control_tokens) for tokenizer in (before, after)]
    assert seen[0] != seen[1]


def test_a_template_that_is_added_or_removed_is_noticed(tmp_path: Path) -> None:
    folder = write(tmp_path, without("chat_template.jinja"))
    assert facts(load_tokenizer(folder))[2] == "{{ 'old' }}"
    (folder / "chat_template.jinja").write_text("{{ 'added' }}")
    assert facts(load_tokenizer(folder))[2] == "{{ 'added' }}"
    (folder / "chat_template.jinja").unlink()
    assert facts(load_tokenizer(folder))[2] == "{{ 'old' }}"


# Damage.


@pytest.mark.matrix
@pytest.mark.parametrize("content", ["", "[]", "1", "{", '{"a": 1} x'])
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".json")])
def test_a_file_that_is_no_json_object_is_refused_by_its_name(name: str, content: str, tmp_path: Path) -> None:
    folder = write(tmp_path, {**FILES, name: content})
    with pytest.raises(TokenizerError, match=name):
        load_tokenizer(folder)


def test_a_template_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, FILES)
    (folder / "chat_template.jinja").write_bytes(b"\xff{{ messages }}")
    with pytest.raises(TokenizerError, match=r"chat_template\.jinja"):
        load_tokenizer(folder)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", {"vocab_size": True}),
        ("config.json", {"vocab_size": "4608", "text_config": [1]}),
        ("generation_config.json", {"eos_token_id": ["<|im_end|>", None, 10**9]}),
        ("generation_config.json", {"eos_token_id": None}),
        ("tokenizer_config.json", {"eos_token": {"text": "<|im_end|>"}, "chat_template": ["x", {"name": 1}]}),
        ("tokenizer_config.json", {"eos_token": 7, "chat_template": {"tools": "x"}}),
        ("special_tokens_map.json", {"bos_token": ["<s>"], "additional_special_tokens": ["<a>"]}),
    ],
)
def test_options_of_another_type_count_as_missing(name: str, content: dict, tmp_path: Path) -> None:
    assert load_tokenizer(write(tmp_path, {**FILES, name: json.dumps(content)})).token_id("<|im_end|>") == IM_END
