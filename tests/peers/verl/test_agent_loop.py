"""Our agent loop in verl's own workers, with a server that answers from a list."""

import asyncio
import dataclasses
import functools
import itertools
import json
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import real_models
import torch
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from program_environments import Continuing, Trimming
from tensordict import TensorDict
from trainers.episodes import delegated, kept, programmed, stripped

from envsdk import Env, Message, Turn, register_env
from envsdk.errors import ConfigError, DeadlineExceeded, SingleSampleOnly
from envsdk.policies import Aligned

with warnings.catch_warnings():  # of ray, and of engines that are not installed
    warnings.simplefilter("ignore")
    import ray
    import verl
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput, AgentLoopWorker
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1 import agent_loop_tq
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
    from verl.utils import tensordict_utils
    from verl.workers.config import model as model_config
    from verl.workers.rollout.replica import TokenOutput

    from envsdk.trainers.verl import EnvAgentLoop, to_outputs

PROMPT_LENGTH, RESPONSE_LENGTH = 64, 256
LENGTHS = {"prompt_length": PROMPT_LENGTH, "response_length": RESPONSE_LENGTH}
THINKS = "<think>\nhm\n</think>\n\n"
MODEL = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 151936, "eos_token_id": 151645}
KEYS = {"turn_scores", "tool_rewards", "min_global_steps", "max_global_steps", "reward_extra_info"}


class Talk(Env):
    """Three questions. It may ask for its own temperature, be scored by somebody else, or reward contexts."""

    asks: dict[str, Any] = {}  # noqa: RUF012

    def start(self) -> Turn:
        self.said = 0
        return Turn(f"Number {self.np_random.integers(100)}?", system="Talk.", **self.asks)

    def respond(self, reply: Message) -> Turn:
        self.said += 1
        reward = None if self.asks.get("info") else 0.5
        return Turn("And now?", reward=reward, terminated=self.said == 3)


class Hot(Talk):
    asks = {"sampling": {"temperature": 0.3}}  # noqa: RUF012


class Unscored(Talk):
    asks = {"info": {"scored": False}}  # noqa: RUF012


class Wordy(Talk):
    def respond(self, reply: Message) -> Turn:
        return Turn("and " * RESPONSE_LENGTH)


class LongStart(Talk):
    def start(self) -> Turn:
        self.said = 0
        return Turn("word " * (PROMPT_LENGTH + 20))


class Hangs(Talk):
    async def respond(self, reply: Message) -> Turn:
        await asyncio.sleep(1000)
        raise AssertionError


for kind in (Talk, Hot, Unscored, Wordy, LongStart, Hangs, Continuing, Trimming):
    register_env(f"verl_tests/{kind.__name__}-v0", kind)


class Server:
    """Stands where verl's client of its servers does. Says the texts one after the other, for each request."""

    def __init__(self, tokenizer: Any, texts: Sequence[str], *, parts: int = 1) -> None:
        self.replies = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        self.parts = parts
        self.asked: dict[str, list[tuple[list[int], dict[str, Any], list[int]]]] = defaultdict(list)

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        assert isinstance(prompt_ids, list)
        assert all(type(token) is int for token in prompt_ids)
        turn, part = divmod(len(self.asked[request_id]), self.parts)
        reply = self.replies[turn % len(self.replies)]
        cut = len(reply) // 2 if self.parts == 2 else 0
        tokens = (reply[cut:] if part == self.parts - 1 else reply[:cut])[: sampling_params["max_tokens"]]
        self.asked[request_id].append((prompt_ids, sampling_params, tokens))
        await asyncio.sleep(0)
        return TokenOutput(
            token_ids=tokens,
            log_probs=[-0.25] * len(tokens) if sampling_params["logprobs"] else None,
            stop_reason="completed" if part == self.parts - 1 else "aborted",
            num_preempted=0,
            extra_fields={"global_steps": turn, "min_global_steps": turn, "max_global_steps": turn + part},
        )


class RandomServer:
    """Thinks, then samples random ids, stops by chance, and is interrupted now and then."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.thinks = tokenizer.encode(THINKS, add_special_tokens=False)
        self.rng = np.random.default_rng(seed)
        self.asked: list[tuple[list[int], list[int]]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        tokens = [*self.thinks, *self.rng.integers(0, 151_000, size=self.rng.geometric(0.04)).tolist()]
        tokens = tokens[: sampling_params["max_tokens"]]
        length = len(tokens)
        is_aborted = bool(self.rng.random() < 0.2)
        if length < sampling_params["max_tokens"] and not is_aborted:
            tokens[-1] = 151645
        self.asked.append((prompt_ids, tokens))
        stop_reason = "aborted" if is_aborted else "completed"
        return TokenOutput(token_ids=tokens, log_probs=[-1.0] * length, stop_reason=stop_reason)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for file in Path(real_models.qwen3_folder()).iterdir():
        (folder / file.name).symlink_to(file.resolve())
    (folder / "config.json").write_text(json.dumps(MODEL))
    return folder


@pytest.fixture(scope="session", autouse=True)
def _one_tokenizer() -> Iterator[None]:
    """Each worker of a process reads it anew, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_config, "hf_tokenizer", functools.cache(model_config.hf_tokenizer))
        yield


class Workplace:
    """Makes verl's configuration and workers; loading the tokenizer is what takes long."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder

    def worker(self, kind: Any, env: str, texts: Sequence[str], *, v1: bool, parts: int = 1, **options: Any) -> Any:
        loop = {"_target_": "envsdk.trainers.verl.EnvAgentLoop", "name": "tried", "env": env}
        loop |= {"on_break": options.pop("on_break", "raise"), **options.pop("deadlines", {})}
        loops = self.folder / "loops.yaml"
        loops.write_text(yaml.safe_dump([{**loop, "env_options": {"renderer": "qwen3", **options}}]))
        rollout = {**LENGTHS, "name": "vllm", "calculate_log_probs": True, "temperature": 0.7}
        settings = {
            "actor_rollout_ref.model.path": self.model,
            "actor_rollout_ref.rollout.agent.agent_loop_config_path": loops,
            "trainer.use_v1": v1,
            **{f"actor_rollout_ref.rollout.{name}": value for name, value in rollout.items()},
        }
        with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
            config = compose("ppo_trainer", overrides=[f"{name}={value}" for name, value in settings.items()])
        worker = kind.__new__(kind)
        AgentLoopWorker.__init__(worker, config, None)  # V1's own also connects to its queue
        worker.llm_client = Server(worker.tokenizer, texts, parts=parts)
        return worker


@pytest.fixture
def workplace(model: Path, tmp_path: Path) -> Workplace:
    return Workplace(model, tmp_path)


def batch(seeds: Sequence[int]) -> DataProto:
    """What a data set of verl gives, for so many rows."""
    rows = {
        "raw_prompt": [[{"role": "user", "content": "see the environment"}]] * len(seeds),
        "extra_info": [{"seed": seed} for seed in seeds],
        "agent_name": ["tried"] * len(seeds),
    }
    arrays = {name: np.empty(len(seeds), dtype=object) for name in rows}
    for name, values in rows.items():
        for index, value in enumerate(values):
            arrays[name][index] = value
    return DataProto(batch=None, non_tensor_batch=arrays, meta_info={"validate": False})


def check_server(server: Server, *, breaks: bool = False) -> None:
    """Each prompt is the one before with its reply, and more, unless there are breaks."""
    for asked in server.asked.values():
        for (before, _, reply), (prompt, params, _) in itertools.pairwise(asked):
            if not breaks:
                assert prompt[: len(before) + len(reply)] == [*before, *reply]
            assert params["stop_token_ids"] == [151645, 151643]
            assert params["temperature"] == 0.7


@pytest.mark.parametrize("v1", [False, True])
def test_a_worker_pads_what_we_return_and_trains_what_the_server_said(workplace: Workplace, v1: bool) -> None:
    """Also one that is not V1's, though the setting is on."""
    worker = workplace.worker(AgentLoopWorker, "verl_tests/Talk-v0", [f"{THINKS}a<|im_end|>", "bc<|im_end|>"], v1=v1)
    assert issubclass(EnvAgentLoop, AgentLoopBase)
    found = asyncio.run(worker.generate_sequences(batch([1, 1, 2])))
    check_server(worker.llm_client)
    tensors = found.batch
    assert tensors["prompts"].shape == (3, PROMPT_LENGTH)
    assert tensors["responses"].shape == tensors["response_mask"].shape == (3, RESPONSE_LENGTH)
    assert tensors["rollout_log_probs"].shape == (3, RESPONSE_LENGTH)
    episodes = list(worker.llm_client.asked.values())
    assert len(episodes) == 3
    first_prompts = [prompts[-len(episodes[0][0][0]) :].tolist() for prompts in tensors["prompts"]]
    for row, first_prompt in enumerate(first_prompts):  # episodes ask in any order
        asked = next(each for each in episodes if each[0][0] == first_prompt)
        mask = tensors["response_mask"][row].bool()
        said = [token for _, _, tokens in asked for token in tokens]
        assert tensors["responses"][row][mask].tolist() == said
        assert tensors["rollout_log_probs"][row].tolist() == [-0.25 if trained else 0.0 for trained in mask.tolist()]
        ids = tensors["input_ids"][row][tensors["attention_mask"][row].bool()].tolist()
        last_prompt, _, last_reply = asked[-1]
        assert ids == [*last_prompt, *last_reply]
        length = len(ids) - len(asked[0][0])
        assert tensors["rm_scores"][row].nonzero().tolist() == [[length - 1]]
        assert tensors["rm_scores"][row].sum() == 1.5
    assert tensors["prompts"][0].tolist() == tensors["prompts"][1].tolist() != tensors["prompts"][2].tolist()
    assert found.non_tensor_batch.keys() >= KEYS - {"reward_extra_info"}
    assert found.non_tensor_batch["turn_scores"].tolist() == [[0.5, 0.5, 0.5]] * 3
    assert found.non_tensor_batch["max_global_steps"].tolist() == [2, 2, 2]
    assert found.non_tensor_batch["__num_turns__"].tolist() == [6, 6, 6]


def test_a_rewritten_episode_is_refused_where_one_sample_is_taken(workplace: Workplace) -> None:
    worker = workplace.worker(
        AgentLoopWorker, "verl_tests/Talk-v0", [f"{THINKS}a<|im_end|>"], v1=False, history="strip"
    )
    with pytest.raises(SingleSampleOnly, match="2 x thinking_stripped in 'main'"):
        asyncio.run(worker.generate_sequences(batch([1])))


def test_the_last_segment_is_trained_where_that_was_chosen(workplace: Workplace) -> None:
    texts = [f"{THINKS}a<|im_end|>"]
    options = {"v1": False, "history": {"name": "strip"}, "on_break": "last_segment"}
    worker = workplace.worker(AgentLoopWorker, "verl_tests/Talk-v0", texts, **options)
    found = asyncio.run(worker.generate_sequences(batch([1])))
    check_server(worker.llm_client, breaks=True)
    [asked] = worker.llm_client.asked.values()
    mask = found.batch["response_mask"][0].bool()
    assert found.batch["responses"][0][mask].tolist() == asked[-1][2]
    assert found.non_tensor_batch["dropped_share"].tolist() == [pytest.approx(2 / 3)]


def test_a_dropped_episode_counts_with_its_reward_and_trains_nothing(workplace: Workplace) -> None:
    texts = [f"{THINKS}a<|im_end|>"]
    options = {"v1": False, "history": "strip", "on_break": "drop"}
    worker = workplace.worker(AgentLoopWorker, "verl_tests/Talk-v0", texts, **options)
    found = asyncio.run(worker.generate_sequences(batch([1, 2])))
    assert found.batch["response_mask"].sum() == 0
    assert found.batch["rm_scores"].sum(dim=1).tolist() == [1.5, 1.5]
    assert found.non_tensor_batch["dropped_share"].tolist() == [1.0, 1.0]


def run_v1(worker: Any, monkeypatch: pytest.MonkeyPatch, **extra_info: Any) -> Any:
    """Run a row in V1's worker: what it puts into its queue."""
    put: list[dict[str, Any]] = []

    async def keep(**given: Any) -> None:
        put.append(given)

    monkeypatch.setattr(agent_loop_tq.tq, "async_kv_batch_put", keep)
    row = {"raw_prompt": [], "extra_info": extra_info, "uid": "u", "session_id": 0, "global_steps": 4}
    trajectory = {"step": 4, "sample_index": 0, "rollout_n": 0, "validate": False}
    params = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "logprobs": True}
    asyncio.run(worker._run_agent_loop(params, trajectory, agent_name="tried", trace=False, **row))
    return put[0] if put else None


WORKER_V1 = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class


def test_v1_takes_each_segment_of_a_rewritten_episode(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{THINKS}a<|im_end|>"]
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", texts, v1=True, history="strip")
    put = run_v1(worker, monkeypatch, index=5)
    check_server(worker.llm_client, breaks=True)
    [asked] = worker.llm_client.asked.values()
    assert put["keys"] == ["u_0_0", "u_0_1", "u_0_2"]
    fields: TensorDict = put["fields"]
    for row, (prompt, _, said) in zip(fields, asked, strict=True):
        assert row["input_ids"].tolist() == [*prompt, *said]
        assert row["input_ids"].tolist() == [*row["prompts"].tolist(), *row["responses"].tolist()]
        mask = row["response_mask"].bool()
        assert row["responses"][mask].tolist() == said
        assert row["rollout_log_probs"].shape == row["loss_mask"].shape == row["rm_scores"].shape == mask.shape
        assert row["rm_scores"].tolist() == [0.0] * (len(mask) - 1) + [1.5]
        assert row["extra_fields"].keys() >= KEYS
    assert len({frozenset(row["extra_fields"].keys()) for row in fields}) == 1
    assert [tag["min_global_steps"] for tag in put["tags"]] == [0, 1, 2]
    assert all(tag["seq_len"] <= PROMPT_LENGTH + RESPONSE_LENGTH for tag in put["tags"])


def test_an_interrupted_reply_goes_on_as_one(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", [f"{THINKS}a<|im_end|>"], v1=True, parts=2)
    put = run_v1(worker, monkeypatch, seed=1)
    check_server(worker.llm_client)
    [asked] = worker.llm_client.asked.values()
    assert len(asked) == 6  # three replies in two parts
    assert put["fields"][0]["loss_mask"].sum() == sum(len(tokens) for _, _, tokens in asked)
    assert put["tags"][0]["min_global_steps"] == 0
    assert put["tags"][0]["max_global_steps"] == 3


@pytest.mark.parametrize("history", ["keep", "strip"])
def test_a_reply_that_there_is_no_room_for_is_cut_so_that_the_response_fits(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, history: str
) -> None:
    texts = [f"{THINKS}a<|im_end|>", "a " * 6000]
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", texts, v1=True, history=history)
    put = run_v1(worker, monkeypatch, seed=1)
    [[_, (_, params, tokens)]] = worker.llm_client.asked.values()
    assert len(tokens) == params["max_tokens"]
    assert put["tags"][-1]["response_len"] == RESPONSE_LENGTH
    assert put["fields"][-1]["extra_fields"]["stop_reason"] == "cut"


def test_an_observation_that_leaves_no_room_ends_the_episode_before_it(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Wordy-v0", ["a<|im_end|>"], v1=True)
    put = run_v1(worker, monkeypatch, seed=1)
    [[(prompt, _, tokens)]] = worker.llm_client.asked.values()
    assert put["fields"][0]["input_ids"].tolist() == [*prompt, *tokens]
    assert put["fields"][0]["extra_fields"]["stop_reason"] == "cut"


def test_a_first_prompt_longer_than_verls_begins_the_response_untrained(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/LongStart-v0", ["a<|im_end|>"], v1=True)
    put = run_v1(worker, monkeypatch, seed=1)
    [[(prompt, _, tokens), *_]] = worker.llm_client.asked.values()
    row = put["fields"][0]
    assert len(row["prompts"]) == PROMPT_LENGTH < len(prompt)
    rest = len(prompt) - PROMPT_LENGTH
    assert row["response_mask"][: rest + len(tokens)].tolist() == [0] * rest + [1] * len(tokens)


@pytest.mark.parametrize("history", ["keep", "strip", {"name": "compact", "every": 2}], ids=str)
def test_whatever_is_sampled_fits_and_is_trained_once(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch, compared: Counter[str], history: Any
) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", ["a"], v1=True, history=history)
    for seed in range(25):
        worker.llm_client = server = RandomServer(worker.tokenizer, seed)
        put = run_v1(worker, monkeypatch, seed=seed)
        sampled = [token for _, tokens in server.asked for token in tokens]
        trained = [token for row in put["fields"] for token in row["responses"][row["response_mask"].bool()].tolist()]
        assert trained == sampled
        assert all(tag["prompt_len"] <= PROMPT_LENGTH for tag in put["tags"])
        assert all(tag["response_len"] <= RESPONSE_LENGTH for tag in put["tags"])
        prompts = {tuple(prompt) for prompt, _ in server.asked}
        for row in put["fields"]:  # what it is trained on is what it was asked
            first = int(row["response_mask"].argmax()) + len(row["prompts"])
            assert tuple(row["input_ids"][:first].tolist()) in prompts
        compared.update({"outputs": len(put["keys"]), "sampled tokens": len(sampled)})


COUNTS = [f"{THINKS}There are {number}.<|im_end|>" for number in range(4)]


def test_v1_takes_each_conversation_of_an_agent_program(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Trimming-v0", COUNTS, v1=True)
    put = run_v1(worker, monkeypatch, seed=1)
    check_server(worker.llm_client, breaks=True)
    [[first, second, agent, last]] = worker.llm_client.asked.values()
    rows = list(put["fields"])
    assert [row["extra_fields"]["context"] for row in rows] == ["main", "main/agent-1", "main"]
    assert [row["input_ids"].tolist() for row in rows] == [[*asked[0], *asked[2]] for asked in (second, agent, last)]
    trained = [row["responses"][row["response_mask"].bool()].tolist() for row in rows]
    assert trained == [[*first[2], *second[2]], agent[2], last[2]]


def test_an_environment_that_is_not_scored_leaves_it_to_verl(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Unscored-v0", ["a<|im_end|>"], v1=True)
    put = run_v1(worker, monkeypatch, seed=1)
    assert "rm_scores" not in put["fields"]


def test_a_temperature_of_its_own_is_refused(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Hot-v0", ["a<|im_end|>"], v1=True)
    with pytest.raises(ConfigError, match=r"0\.3.*0\.7"):
        run_v1(worker, monkeypatch, seed=1)


def test_a_row_that_does_not_say_its_task_is_refused(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", ["a<|im_end|>"], v1=True)
    with pytest.raises(ConfigError, match="'seed'"):
        run_v1(worker, monkeypatch)


def test_the_file_of_the_loop_sets_deadlines(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"v1": True, "deadlines": {"method_timeout_s": 0.3}}
    worker = workplace.worker(WORKER_V1, "verl_tests/Hangs-v0", ["a<|im_end|>"], **options)
    with pytest.raises(DeadlineExceeded, match=r"respond\(\) of verl_tests/Hangs-v0 took longer than 0.3 s"):
        run_v1(worker, monkeypatch, seed=1)


def test_an_episode_begins_again_if_its_server_ends(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ends(Server):
        has_ended = False

        async def generate(self, request_id: str, **request: Any) -> TokenOutput:
            if len(self.asked[request_id]) == 1 and not self.has_ended:
                self.has_ended = True
                raise ray.exceptions.ActorDiedError
            return await super().generate(request_id, **request)

    texts = [f"{THINKS}a<|im_end|>"]
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", texts, v1=True)
    worker.llm_client = Ends(worker.tokenizer, texts)
    put = run_v1(worker, monkeypatch, seed=1)
    first, second = worker.llm_client.asked.values()
    assert first[0] == second[0]
    assert len(second) == 3
    assert put["fields"][0]["loss_mask"].sum() == sum(len(tokens) for _, _, tokens in second)


@pytest.mark.parametrize("trajectory", [delegated(), stripped(), programmed()])
def test_outputs_of_sub_agents_and_segments_are_verls_own_type(trajectory: Any, compared: Counter[str]) -> None:
    lengths = {"prompt_length": 400, "response_length": 4000}
    for fields, sample in zip(to_outputs(trajectory.samples(), **lengths), trajectory.samples(), strict=True):
        output = AgentLoopOutput(**fields, metrics={}).as_dict()
        assert [*output["prompts"].tolist(), *output["responses"].tolist()] == sample.tokens.tolist()
        assert len(output["prompts"]) <= 400
        assert output["response_mask"].sum() == sample.mask.sum()
        assert output["rm_scores"][-1] == sample.reward
        compared.update({"outputs": 1, "trained tokens": int(sample.mask.sum())})


def scored_rows(algorithm: dict[str, Any]) -> tuple[list[str], Any]:
    """V1's rows of two rollouts of one prompt, of which only the first is rewarded: their keys and advantages."""
    rows = []
    for session, trajectory in enumerate([stripped(), kept()]):
        for index, fields in enumerate(to_outputs(trajectory.samples(), prompt_length=400, response_length=4000)):
            own = AgentLoopOutput(**{**fields, "reward_score": 1.0 - session}, metrics={}).as_dict()
            mask, scores = own["response_mask"], own["rm_scores"]
            row = {"response_mask": mask, "token_level_scores": scores, "token_level_rewards": scores}
            rows.append((f"u_{session}_{index}", {**row, "values": (session + 0.1 * index) * mask}))
    rows = rows[1::2] + rows[::2]  # verl balances its batches by length
    data = tensordict_utils.list_of_dict_to_tensordict([row for _, row in rows]).to_padded_tensor()
    batch = DataProto(batch=data, non_tensor_batch={"uid": np.array(["u"] * len(rows), dtype=object)})
    keys, config = [key for key, _ in rows], OmegaConf.create({"pf_ppo": {}, **algorithm})
    found = compute_advantage_for_multi_trajectories(batch, keys, algorithm["adv_estimator"], config=config)
    return keys, found.batch


def test_v1_gives_each_row_the_advantage_of_its_rollout() -> None:
    keys, found = scored_rows({"adv_estimator": "grpo"})
    assert len(keys) == 7
    for key, advantages, mask in zip(keys, found["advantages"], found["response_mask"], strict=True):
        assert set(advantages.sign().tolist()) <= {0.0, 1.0 if key.startswith("u_0") else -1.0}
        assert torch.equal(advantages != 0, mask.bool())


def test_reweighting_by_preference_is_refused_because_v1_gives_rows_the_advantages_of_others(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In verl 0.9.1, what is returned is not in the order of the keys that it is stored under (verl issue 7956)."""
    gae = {"adv_estimator": "gae", "pf_ppo": {"reweight_method": "pow", "weight_pow": 2.0}}
    _, right = scored_rows(gae)
    _, wrong = scored_rows({**gae, "use_pf_ppo": True})
    assert not torch.equal(right["values"], wrong["values"])
    worker = workplace.worker(WORKER_V1, "verl_tests/Talk-v0", ["a<|im_end|>"], v1=True)
    worker.config.algorithm.update({"use_pf_ppo": True, "adv_estimator": "gae"})
    with pytest.raises(ConfigError, match="7956"):
        run_v1(worker, monkeypatch, seed=1)


def test_verl_stores_the_experts_of_each_token() -> None:
    """As V1 does: 16 bits, and 0 for the last token, which no trained token follows."""
    [sample] = kept().samples()
    experts = np.arange(len(sample) * 6).reshape(-1, 3, 2) % 128
    sample = dataclasses.replace(sample, extra={"routed_experts": Aligned(experts.astype(np.int32), "all")})
    [fields] = to_outputs([sample], prompt_length=400, response_length=4000, routed_experts=True)
    assert fields["routed_experts"].dtype == np.int16
    stored = AgentLoopOutput(**fields, metrics={}).as_dict()["routed_experts"]
    assert stored.dtype == torch.int16
    assert stored[:-1].tolist() == experts[:-1].tolist()
    assert not stored[-1].any()
