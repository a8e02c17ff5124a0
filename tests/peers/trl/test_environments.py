"""Our environments in TRL's own loop (`environment_factory`)."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import transformers
import trl
from transformers.utils.chat_template_utils import get_json_schema
from trl import GRPOConfig, GRPOTrainer
from trl_environment_classes import CODES, Codes, PlaysHot, PlaysSlow

import envsdk
from envsdk import Message, ToolEnv, Turn, tool
from envsdk.errors import ConfigError
from envsdk.testing import check_env
from envsdk.trainers.trl import environment_factory

pytestmark = pytest.mark.filterwarnings("default")


def varied(*, completions: list[Any], **_: Any) -> list[float]:
    """A second reward, which no two rollouts of a group have in common."""
    return [0.01 * number for number in range(len(completions))]


class Watched(GRPOTrainer):
    """Keeps what its rewards are computed from."""

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        self.rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        self.completions = completions
        return self.rewards


@pytest.fixture
def chat_tokenizer(tokenizer: Any) -> Any:
    """The tokenizer with the chat template of Qwen3, which TRL has."""
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    copied = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **names)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    copied.chat_template = template.read_text(encoding="utf-8")
    return copied


def learn(trainer: Any, conversations: list[Any], steps: int = 150) -> None:
    """Fit the trainer's model to conversations, as TRL's own template writes them."""
    options = {"chat_template": trainer.chat_template, "tokenize": True, "return_dict": False}
    rows = [
        torch.tensor([trainer.processing_class.apply_chat_template(messages, tools=trainer.tools, **options)])
        for messages in conversations
    ]
    optimizer = torch.optim.Adam(trainer.model.parameters(), lr=3e-3)
    for step in range(steps):
        row = rows[step % len(rows)]
        trainer.model(input_ids=row, labels=row).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_trl_trains_a_step_on_our_environment_in_its_own_loop(chat_tokenizer: Any, tmp_path: Path):
    factory = environment_factory(Codes)
    seeds = [0, 1, 2, 3]
    args = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=1,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=120,
        temperature=1.0,
        learning_rate=1e-3,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.Qwen3Config(
        vocab_size=len(chat_tokenizer), num_hidden_layers=2, intermediate_size=128, **sizes
    )
    trainer = Watched(
        model=transformers.Qwen3ForCausalLM(config),
        processing_class=chat_tokenizer,
        args=args,
        train_dataset=factory.dataset(seeds),
        environment_factory=factory,
        reward_funcs=[factory.reward_func, varied],
    )
    right = [conversation(person, CODES[person]) for person in CODES]
    learn(trainer, [*right, conversation("ada", "three"), conversation("bob", "seven")])  # so replies differ
    before = trainer.model.lm_head.weight.detach().clone()
    trainer.train()
    said = [[message["role"] for message in completion] for completion in trainer.completions]
    assert ["assistant", "tool", "assistant"] in said
    assert trainer.rewards[:, 0].tolist().count(1.0) >= 1
    assert not torch.equal(before, trainer.model.lm_head.weight)
    assert trainer.state.log_history[-1]["tools/call_frequency"] > 0


def conversation(person: str, code: str) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "code_of", "arguments": {"person": person}}}
    return [
        {"role": "system", "content": "Look it up."},
        {"role": "user", "content": f"What is the code of {person}?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": "code_of", "content": CODES[person]},
        {"role": "assistant", "content": f"It is {code}."},
    ]


def test_transformers_reads_the_schema_of_each_tool_from_the_method():
    env = envsdk.make("envsdk/Calculator-v1")
    instance = environment_factory("envsdk/Calculator-v1")()
    for given in env.default_tools():
        made = get_json_schema(getattr(instance, given["function"]["name"]))["function"]
        made.pop("return")
        assert made == {**given["function"], "description": given["function"]["description"].strip()}


class Typed(ToolEnv):
    """A tool with arguments of many types."""

    def start(self) -> Turn:
        return Turn("Begin.")

    @tool
    def many(self, a: list[str], b: int | None = None, c: Literal["x", "y"] = "x") -> str:
        """Do it."""
        return f"{a} {b} {c}"

    def finish(self, reply: Message) -> Turn:
        return Turn(reward=1.0, terminated=True)


def test_arguments_keep_their_items_choices_and_none():
    instance = environment_factory(Typed)()
    properties = get_json_schema(instance.many)["function"]["parameters"]["properties"]
    assert properties == {
        "a": {"type": "array", "items": {"type": "string"}, "description": "a"},
        "b": {"type": "integer", "nullable": True, "description": "b"},
        "c": {"type": "string", "enum": ["x", "y"], "description": "c"},
    }
    instance.reset(seed=0)
    assert instance.many(a=["é"]) == "['é'] None x"


def test_the_loop_gives_the_reward_of_the_same_episode_of_ours():
    factory = environment_factory(Codes())
    row = factory.dataset([5])[0]
    instance = factory()
    assert instance.reset(**row) is None
    person = instance._env.person
    assert row["prompt"][-1] == {"role": "user", "content": f"What is the code of {person}?"}
    assert instance.code_of(person=person) == CODES[person]
    assert instance.code_of(person="nobody").startswith("Error: ")
    done = [{"role": "assistant", "content": CODES[person]}]
    assert factory.reward_func(environments=[instance], completions=[done]) == [1.0]
    with pytest.raises(ValueError, match="over"):
        instance.code_of(person=person)
    cut = [{"role": "assistant", "content": "", "tool_calls": [{}]}]
    instance.reset(**row)
    assert factory.reward_func(environments=[instance], completions=[cut]) == [0.0]


def test_what_trls_loop_cannot_play_is_refused():
    with pytest.raises(ConfigError, match="not a ToolEnv"):
        environment_factory("envsdk/GuessNumber-v1")
    with pytest.raises(ConfigError, match="shows all of the past"):
        environment_factory(envsdk.make("envsdk/Calculator-v1", context_tools=["fold"]))
    with pytest.raises(ConfigError, match="no seed"):
        environment_factory(Codes)().reset(prompt=[])


@pytest.mark.parametrize("env", [PlaysHot, PlaysSlow])
def test_an_environment_class_of_trl_passes_our_checks(env: Any):
    check_env(env, seeds=3).raise_if_failed()
