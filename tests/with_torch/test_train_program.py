"""The page that trains an agent program of one's own: its files are an environment, and its command trains a model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import CHECKOUT, blocks_of
from example_programs import EXAMPLES, example

pytest.importorskip("torch.nn")

pytestmark = pytest.mark.filterwarnings("default")
PAGE = CHECKOUT / "docs/how-to/train-agent.md"


def test_the_command_of_the_page_trains_the_agent_of_the_page(tmp_path: Path):
    for block in blocks_of(PAGE):
        if file := re.match(r"# (\w+\.py)\n", block.code):
            (tmp_path / file[1]).write_text(block.code, encoding="utf-8")
    played = example("train_reinforce")
    tokenizer = played.make_env().renderer.tokenizer
    played.make_model(tokenizer.vocab_size).save_pretrained(tmp_path / "model")
    tokenizer.save(tmp_path / "model")
    options = ["--template", EXAMPLES / "tools.jinja", "--warm-up-steps", "20", "--warm-up-rate", "5e-3"]
    small = ["--updates", "2", "--tasks", "2", "--group-size", "4", "--max-tokens", "16", "--out", tmp_path / "out"]
    command = [sys.executable, EXAMPLES / "train_program.py", "orders:Orders", "--model", tmp_path / "model"]
    run = subprocess.run([*command, *options, *small], capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.findall(r"(?m)^update \d: mean reward (\S+), scored 8 of 8, k1 (\S+) nats per token", run.stdout)
    assert len(found) == 2, run.stdout
    assert all(abs(float(k1)) < 1e-5 for _, k1 in found)
    assert (tmp_path / "out" / "update-1" / "run.json").is_file()
    trained = tmp_path / "out" / "model"
    assert {file.name for file in (tmp_path / "model").iterdir()} <= {file.name for file in trained.iterdir()}
    assert (trained / "chat_template.jinja").read_text() == (EXAMPLES / "tools.jinja").read_text()
