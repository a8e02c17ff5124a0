"""The ladder of the on-policy check, on a small gpt-oss with the vocabulary of the real one."""

import base64
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import real_models
from example_programs import EXAMPLES, example

pytest.importorskip("torch.nn")

import envsdk
from envsdk.rendering.tokenizers import Tokenizer

pytestmark = pytest.mark.filterwarnings("default")

FIT_STEPS, EPISODES = 300, 3


@cache
def ladder() -> Any:
    example("onpolicy_check")  # which the module imports by this name
    return example("onpolicy_ladder")


@cache
def cases() -> list[Any]:
    renderer = envsdk.get_renderer("harmony", real_models.gpt_oss_tokenizer())
    model, _ = ladder().fitted_model(renderer, steps=FIT_STEPS)
    return ladder().ladder(model, renderer, seeds=EPISODES)


def ranks_file(folder: Path, tokenizer: Tokenizer) -> Path:
    """Write the file that tiktoken publishes: its checksum is tiktoken's to check."""
    ranks: dict[bytes, int] = getattr(tokenizer, "ranks")  # noqa: B009 - of tiktoken's tokenizers only
    lines = [
        base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=lambda pair: pair[1])
    ]
    file = folder / "o200k_base.tiktoken"
    file.write_bytes(b"".join(lines))
    return file


def test_the_naive_path_is_far_off_and_its_repair_is_exact():
    found = {case.name: case for case in cases()}
    print(ladder().table(cases()))
    plain, one, several, naive, ours = (found[name] for name in ladder().PUBLISHED)
    for exact in (plain, one, ours):
        assert exact.tokens.share == 1.0
        assert max(abs(exact.kl.all.k1), exact.kl.all.k2, exact.kl.all.k3) < 1e-5
    assert 0.01 < several.kl.all.k1 < naive.kl.all.k1 / 3
    assert naive.kl.all.k1 > 1
    assert naive.tokens.share < 0.2
    assert naive.tokens.sampled == ours.kl.all.tokens == several.kl.all.tokens
    assert ladder().problems(cases()) == []


def test_the_table_has_the_figures_of_the_report_next_to_ours():
    lines = ladder().table(cases()).splitlines()
    assert [line[:31].strip() for line in lines[1:]] == list(ladder().PUBLISHED)
    assert re.fullmatch(r"the naive path +\S+ +\S+ to \S+ +\S+ +\S+ +\S+% +4\.0 to 7\.0 +6\.7%", lines[4])


def test_each_k1_has_an_interval_that_holds_it():
    for case in cases():
        low, high = case.interval
        assert low < case.kl.all.k1 < high


def test_a_case_that_does_not_hold_is_named():
    naive, ours = ladder().NAIVE, ladder().OURS
    swapped = {naive: ours, ours: naive}
    wrong = [case._replace(name=swapped.get(case.name, case.name)) for case in cases()]
    assert [problem.partition(":")[0] for problem in ladder().problems(wrong)] == [ours, ours, naive]


def test_the_vocabulary_loads_from_the_file_of_tiktoken(tmp_path: Path):
    expected = real_models.gpt_oss_tokenizer()
    tokenizer = ladder().gpt_oss_tokenizer(str(ranks_file(tmp_path, expected)))
    for name in ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"):
        assert tokenizer.token_id(name) == expected.token_id(name)
    text = "The price of tea: 12.50 €"
    assert tokenizer.encode(text).tolist() == expected.encode(text).tolist()


def test_the_weights_do_not_depend_on_the_file_that_the_vocabulary_is_read_from(tmp_path: Path):
    expected = real_models.gpt_oss_tokenizer()
    expected.save(tmp_path / "folder")
    sources = [str(tmp_path / "folder"), str(ranks_file(tmp_path, expected))]
    assert {ladder().gpt_oss_tokenizer(source).vocab_size for source in sources} == {201_088}


def test_the_option_is_described():
    run = subprocess.run([sys.executable, EXAMPLES / "onpolicy_check.py", "--help"], capture_output=True, text=True)
    assert run.returncode == 0
    assert "--ladder" in run.stdout
    assert "o200k_base.tiktoken" in run.stdout
