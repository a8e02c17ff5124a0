"""`envsdk onpolicy`: a sampler against the forward pass of the same weights, on a small random model."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from model_servers import ModelServer
from torch_models import tiny_qwen3
from typer.testing import CliRunner

pytest.importorskip("torch.nn")

import numpy as np
import torch

import envsdk
from envsdk import errors
from envsdk.cli import app
from envsdk.diagnostics import forward_logprobs
from envsdk.diagnostics._stack import check_stack
from envsdk.policies import TransformersPolicy, policy_of

pytestmark = pytest.mark.filterwarnings("default")

FAMILY = ("--renderer", "qwen3", "--tokenizer", "embedded", "--policy-option", "max_tokens=12")
LIMITS = 'limits={"end_on_cut": false}'  # a random model does not end its replies


def save(folder: Path, model: Any) -> Path:
    model.save_pretrained(folder)
    envsdk.load_tokenizer("embedded").save(folder)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("model"), tiny_qwen3(layers=2))


@pytest.fixture(scope="module")
def other_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny_qwen3(layers=2)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight *= 3
    return save(tmp_path_factory.mktemp("other"), model)


def run(*arguments: object, family: tuple[str, ...] = FAMILY) -> tuple[int, str]:
    options = [str(argument) for argument in (*arguments, *family)]
    result = CliRunner().invoke(app, ["onpolicy", "--seeds", "3", *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize(("history", "reasons"), [("keep", set()), ("budget:max_tokens=130,target=0.6", {"budget"})])
def test_the_same_weights_are_healthy(folder: Path, history: str, reasons: set[str]) -> None:
    env = "envsdk/MathChat-v0"
    played = (env, "--history", history, "--option", LIMITS, "--json")
    code, printed = run("--policy", f"transformers:{folder}", "--model", folder, *played)
    assert code == 0, printed
    report = json.loads(printed)
    assert (report["verdict"], report["environment"], report["history"]) == ("healthy", env, history)
    assert report["tokens"]["share"] == 1.0
    assert report["sampled"] == report["kl"]["all"]["tokens"] > 100
    assert max(abs(report["kl"]["all"]["k1"]), report["kl"]["all"]["k2"], report["kl"]["all"]["k3"]) < 1e-6
    assert set(report["breaks"]) == reasons


def test_the_report_says_where_the_outliers_are(folder: Path) -> None:
    code, printed = run("--policy", f"transformers:{folder}", "--model", folder)
    assert code == 0
    for part in ("tokens: 100.0%", "k1", "k2", "k3", "worst step", "worst token of reply", "verdict: healthy"):
        assert part in printed


def test_other_weights_are_critical(folder: Path, other_weights: Path) -> None:
    code, printed = run("--policy", f"transformers:{folder}", "--model", other_weights)
    assert code == 1
    assert "tokens: 100.0%" in printed  # only the probabilities differ
    assert printed.strip().endswith("verdict: critical")


def test_another_type_of_the_weights_is_measured(folder: Path) -> None:
    estimates = {}
    for dtype in ("float32", "bfloat16"):
        _, printed = run("--policy", f"transformers:{folder}", "--model", folder, "--dtype", dtype, "--json")
        estimates[dtype] = json.loads(printed)["kl"]["all"]["k2"]
    assert estimates["float32"] < 1e-9 < estimates["bfloat16"] < 0.01


def test_a_sampler_that_returns_other_tokens_than_it_sampled_is_critical(folder: Path) -> None:
    policy: Any = policy_of(f"transformers:{folder}", max_tokens=6)

    class Cutting:
        """Loses the last token of each prompt on its way to the model."""

        tokenizer = policy.tokenizer

        async def __call__(self, prompt: Any, **request: Any) -> envsdk.Action:
            return await policy(prompt[:-1], **request)

    options = {"renderer": "qwen3", "tokenizer": "embedded"}
    report = check_stack("envsdk/GuessNumber-v1", Cutting(), policy.model, seeds=range(2), env_options=options)
    assert report.tokens.share == 1.0
    assert report.verdict == "critical"


def test_the_forward_pass_is_what_the_sampler_computed_at_each_temperature(folder: Path) -> None:
    policy: Any = policy_of(f"transformers:{folder}", max_tokens=9, temperature=0.6)
    env = envsdk.make("envsdk/MathChat-v0", renderer="qwen3", tokenizer="embedded", history="strip")
    samples = envsdk.rollout(env, policy, seed=0).samples()
    for sample, values in zip(samples, forward_logprobs(policy.model, samples), strict=True):
        assert values.shape == sample.tokens.shape
        assert not values[~sample.mask].any()
        assert np.allclose(values, sample.logprobs, atol=1e-4)


def test_a_model_in_training_mode_is_refused(folder: Path) -> None:
    policy: Any = policy_of(f"transformers:{folder}", max_tokens=4)
    with pytest.raises(errors.ConfigError, match="training mode"):
        check_stack("envsdk/GuessNumber-v1", policy, tiny_qwen3(layers=1).train())


def test_a_model_of_another_family_is_refused(folder: Path) -> None:
    policy: Any = policy_of(f"transformers:{folder}", max_tokens=4)
    options = {"renderer": "qwen3", "tokenizer": "embedded"}
    small = tiny_qwen3(64, layers=1).eval()
    with pytest.raises(errors.ConfigError, match=r"the model has the ids 0 to 63"):
        check_stack("envsdk/GuessNumber-v1", policy, small, seeds=[0], env_options=options)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("reference", "'reference' has no model to compare a trainer with; expected .* transformers:FOLDER"),
        ("transformers:nowhere", "'nowhere' has no config.json; expected the folder of a model"),
    ],
)
def test_a_sampler_that_cannot_be_compared_is_refused(folder: Path, policy: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        run("--policy", policy, "--model", folder, family=())


def test_a_sampler_that_exchanges_text_is_refused(folder: Path) -> None:
    class Chat:
        trainable = False

    with pytest.raises(errors.ConfigError, match=r"Chat exchanges text, so the tokens .* are not known"):
        check_stack("envsdk/GuessNumber-v1", Chat(), None)


def test_a_folder_that_is_not_a_model_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(errors.ConfigError, match=r"has no config\.json"):
        run("--policy", f"transformers:{folder}", "--model", tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(errors.ConfigError, match="transformers cannot load a causal language model from"):
        run("--policy", f"transformers:{folder}", "--model", tmp_path)
    with pytest.raises(errors.ConfigError, match="dtype is 'int3'; expected 'float32'"):
        run("--policy", f"transformers:{folder}", "--model", folder, "--dtype", "int3")


def test_episodes_that_all_fail_are_reported_with_their_cause(folder: Path) -> None:
    policy = TransformersPolicy(tiny_qwen3(layers=1).eval(), "embedded")  # without a limit of tokens
    model = policy.model
    model.config.max_position_embeddings = 8
    options = {"renderer": "qwen3", "tokenizer": "embedded"}
    with pytest.raises(errors.RunFailed, match=r"none of the 2 episodes gave a sample.*the model has 8 positions"):
        check_stack("envsdk/GuessNumber-v1", policy, model, seeds=range(2), env_options=options)


def test_without_torch_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(errors.MissingPackage, match=r"pip install 'envsdk\[torch\]'"):
        run("--policy", "vllm:http://localhost:1", "--model", folder, family=())


def test_a_server_is_compared_and_one_with_raw_log_probabilities_is_named(folder: Path) -> None:
    with ModelServer() as server:  # whose model is another one
        code, printed = run("--policy", f"vllm:{server.url}", "--model", folder)
    assert code == 1
    assert "tokens: 100.0%" in printed
    assert printed.strip().endswith("verdict: critical")
    with (
        ModelServer(processed=False) as server,
        pytest.raises(errors.ServerMismatch, match="--logprobs-mode processed_logprobs"),
    ):
        run("--policy", f"vllm:{server.url}", "--model", folder, "--policy-option", "temperature=0.5")
