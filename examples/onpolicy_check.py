"""The on-policy check: are the trained tokens the sampled ones, with the same probabilities?

A small model is fitted to replies of reference policies, until it closes its thinking, ends its turns and calls tools.
It plays episodes whose history is rewritten and handed over in every declared way, sampling with a KV cache. Then the
same weights read the training samples, and the same samples as trees: each sampled token's log-probability has to
equal the sampler's. With `--retokenize`, the same episodes are processed as naive loops do.

Run it with `python examples/onpolicy_check.py`; `pip install 'envsdk[torch]'` has what it needs. gpt-oss needs its own
vocabulary: `--model gpt_oss --tokenizer FOLDER`, a folder with its tokenizer.json.

`--ladder` compares five ways from a conversation to the trainer, with the figures of a published report; see
`onpolicy_ladder.py`. `--tokenizer` may then be the file `o200k_base.tiktoken`, too; without it, tiktoken downloads it.
"""
# pyright: basic, reportMissingImports=false

import argparse
import importlib
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
import transformers

import envsdk
from envsdk import (
    Env,
    Handoff,
    Message,
    Renderer,
    Sample,
    ToolCall,
    ToolEnv,
    ToolEnvConfig,
    Trajectory,
    Turn,
    rollouts,
    sft_samples,
    tool,
    tree_batch,
)
from envsdk.diagnostics import KL, Cost, TokenMatch, cost, explain_break, forward_logprobs, kl, token_match
from envsdk.errors import RenderError
from envsdk.policies import TransformersPolicy
from envsdk.tree import TreeBatch

REASONS = ("thinking_stripped", "compaction", "budget", "summary", "edit", "template", "handoff", "return")
Log: TypeAlias = dict[tuple[str, str], list[np.ndarray]]
"""By episode and context: every prompt with the reply to it, in order."""
OF_TEMPLATES = {"thinking_stripped", "template", "handoff", "return"}
MIN_BREAKS, MIN_STEPS, TOLERANCE = 20, 3, 1e-4
LIMITS = {"max_steps": 48, "end_on_cut": False}
MAX_REPLY_TOKENS, TEMPERATURE = 160, 0.7
GPT_OSS_IDS = 201_088  # of the real model: files of its vocabulary pad differently, so the random weights would differ
LONG = "side by side"  # a kind with long episodes; the others have enough breaks


# Episodes of every kind.


class ShopConfig(ToolEnvConfig):
    """The options of the shop."""

    moves: bool = False
    """Whether the system message changes with each question."""
    thinks: bool = True


class Shop(ToolEnv):
    """Asks for prices, one after the other; a tool returns them."""

    Config: ClassVar[type[ToolEnvConfig]] = ShopConfig
    GOODS: ClassVar[tuple[str, ...]] = ("tea", "rice", "milk", "bread", "salt", "fish", "wine", "soap")

    def start(self) -> Turn:
        """Ask for the first price."""
        self.left = [self.task] if self.task else [self.GOODS[i] for i in self.np_random.permutation(8)[:5]]
        self.prices = {item: str(self.np_random.integers(2, 100)) for item in self.GOODS}
        return self.question(system="Look prices up." if self.config.thinks else "Look prices up without a thought.")

    def question(self, **others: Any) -> Turn:
        """Ask for the next price."""
        return Turn(f"What does {self.left[0]} cost?", **others)

    @tool
    def price(self, item: str) -> str:
        """Look up a price.

        Args:
            item: What to look up.
        """
        return self.prices.get(item, "It is not sold here.")

    def finish(self, reply: Message) -> Turn:
        """Go on to the next item."""
        is_right = self.prices[self.left.pop(0)] in reply.content.split()
        if not self.left:
            return Turn(reward=float(is_right), terminated=True)
        moves = {"system": f"You are in aisle {len(self.left)}. Look prices up."} if self.config.moves else {}
        return self.question(reward=float(is_right), **moves)

    def reference_reply(self) -> Message:
        """Look the price up, then state it."""
        item, last = self.left[0], self.messages()[-1]
        thought = f"I look for {item}." if self.config.thinks else ""
        if last.role != "tool":
            call = ToolCall(name="price", arguments={"item": item})
            return Message(role="assistant", reasoning=thought, tool_calls=(call,))
        return Message(role="assistant", reasoning=thought, content=f"It costs {last.content} .")


class Errands(Shop):
    """A shop in which each price is looked up by a sub-agent."""

    @tool
    def price(self, item: str) -> Handoff:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Send somebody to look up a price.

        Args:
            item: What to look up.
        """
        return Handoff(Shop(history=self.history), item, role="clerk")


def scenes(renderer: Renderer) -> dict[str, Callable[[], Env]]:
    """Return environments with all kinds of breaks."""

    def scene(make: Callable[..., Env], history: Any, **options: Any) -> Callable[[], Env]:
        return lambda: make(renderer=renderer, history=history, limits=LIMITS, **options)

    chat, delegate = (partial(envsdk.make, f"envsdk/{name}") for name in ("MathChat-v0", "Delegate-v1"))
    return {
        "keep": scene(Shop, "keep"),
        "edit": scene(Shop, "keep", moves=True),
        "template": scene(Shop, "strip", thinks=False),
        "strip": scene(chat, "strip", questions=7),
        "compact": scene(chat, {"name": "compact", "every": 2}, questions=7),
        "budget": scene(chat, {"name": "budget", "max_tokens": 180, "target": 0.6}, questions=9),
        "summarize": scene(chat, {"name": "summarize", "threshold": 190}, questions=8),
        "handoff": scene(Errands, "strip"),
        LONG: scene(delegate, "keep", candidates=2),
    }


def play(make: Callable[[], Env], policy: Any, seeds: Sequence[int]) -> list[Trajectory]:
    """Play an episode for each seed, four at a time."""
    trajectories = rollouts.rollout_many(make, policy, seeds=seeds, max_concurrency=4)
    for trajectory in trajectories:
        if trajectory.error is not None:
            raise RuntimeError(f"{trajectory.id}: {trajectory.error}")
    return trajectories


# A small model.


def make_model(kind: str, vocab_size: int, seed: int) -> Any:
    """Return a Qwen3 or gpt-oss of a few layers with random weights, initially with equally likely tokens."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 192,
    }
    shape |= {"vocab_size": vocab_size, "initializer_range": 0.1}
    if kind == "qwen3":
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(num_hidden_layers=3, hidden_size=96, **shape))
    else:  # one layer sees 64 tokens back, one all; the vocabulary is large, so they are narrow
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64}
        model = transformers.GptOssForCausalLM(
            transformers.GptOssConfig(num_hidden_layers=2, hidden_size=64, **experts, **shape)
        )
    torch.nn.init.normal_(model.model.embed_tokens.weight, std=0.5)
    torch.nn.init.zeros_(model.lm_head.weight)
    return model.eval()


def transcripts(makes: Iterable[Callable[[], Env]], episodes: int) -> list[TreeBatch]:
    """Return conversations of reference policies: for each one, all its supervised samples as one tree.

    The prompts are those of the history policy; a summary is not written again here, so its conversation stays whole.
    """
    trees: list[TreeBatch] = []
    for make in makes:
        renderer = make().renderer
        for trajectory in play(make, "reference", range(10**6, 10**6 + episodes)):
            shown = trajectory.history if trajectory.history["name"] in ("strip", "compact") else "keep"
            logs = trajectory.contexts.values()
            trees += [tree_batch(sft_samples(renderer, log.messages, tools=log.tools, history=shown)) for log in logs]
    return trees


def fit(model: Any, trees: Sequence[TreeBatch], steps: int, seed: int) -> float:
    """Fit the model to one conversation at a time; return the mean loss of the last tenth, in nats per token.

    A vocabulary has many more ids than occur in this text. Only rows of ids that occur are trained; all others stay 0
    in the output, so that the softmax over the whole vocabulary is known without them.
    """
    ids, joined = np.unique(np.concatenate([tree.tokens for tree in trees]), return_inverse=True)
    tokens = np.split(joined, np.cumsum([len(tree) for tree in trees])[:-1])
    rows = torch.as_tensor(ids).long()
    embedding, head = (torch.nn.Parameter(m.weight[rows].detach()) for m in (model.model.embed_tokens, model.lm_head))
    others = torch.tensor(float(model.lm_head.weight.shape[0] - len(ids))).log()
    parameters = [*model.model.layers.parameters(), *model.model.norm.parameters(), embedding, head]
    optimizer = torch.optim.Adam(parameters)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=steps)
    rng, losses = np.random.default_rng(seed), []
    for _ in range(steps):
        index = int(rng.integers(len(trees)))
        tree, local = trees[index], torch.as_tensor(tokens[index])
        inputs = tree.model_inputs(model)
        inputs["inputs_embeds"] = embedding[local[None]]
        del inputs["input_ids"]
        hidden = model.model(**inputs).last_hidden_state[0][tree.predecessors]
        logits = hidden @ head.T
        total = torch.logaddexp(logits.logsumexp(-1), others)
        loss = (total - logits.gather(1, local[tree.trained, None])[:, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    with torch.no_grad():
        model.model.embed_tokens.weight[rows] = embedding
        model.lm_head.weight[rows] = head
    return float(np.mean(losses[-max(1, steps // 10) :]))


# The sampled tokens.


class Recorder:
    """A policy that records, for each context, every prompt with its reply, as they were really sampled."""

    def __init__(self, policy: TransformersPolicy) -> None:
        self.policy = policy
        self.tokenizer = policy.tokenizer  # rollouts compare it with the environment's
        self.log: Log = defaultdict(list)

    async def __call__(self, prompt: np.ndarray, **request: Any) -> envsdk.Action:
        """Call the policy, and record the prompt and the reply."""
        action = await self.policy(prompt, **request)
        self.log[request["episode_id"], request["context"]].append(np.concatenate([prompt, action.tokens]))
        return action


def is_sound(trajectory: Trajectory) -> list[bool]:
    """Return, for each step, whether the reply closed its thinking, ended its turn and called tools correctly."""
    logs = trajectory.contexts
    return [not logs[step.context].messages[step.reply].errors for step in trajectory.steps if step.reply is not None]


# The trainer's side.


def tree_logprobs(model: Any, trajectory: Trajectory) -> list[np.ndarray]:
    """Compute `forward_logprobs` of all samples of an episode, with one forward pass over their tree."""
    tree = tree_batch(trajectory)
    index, tokens = tree.trained, torch.as_tensor(tree.tokens).long()
    with torch.no_grad():
        before = torch.as_tensor(tree.predecessors).long()
        logits = model(**tree.model_inputs(model), logits_to_keep=before).logits[0]
    logits /= torch.as_tensor(tree.temperature[index])[:, None]
    found = logits.log_softmax(-1).gather(1, tokens[index, None])[:, 0].numpy()
    values = [np.zeros(sample.length, dtype=np.float64) for sample in tree.samples]
    for sample, position, value in zip(tree.sample_ids[index], tree.position_ids[index], found, strict=True):
        values[sample][position] = value
    return values


def trained_log(samples: Sequence[Sample]) -> Log:
    """Return, for each context, every prompt with its reply from the samples, in the order of the steps."""
    log: Log = defaultdict(list)
    for sample in samples:
        for step in range(len(sample.step_rewards)):
            stop = int(np.flatnonzero(sample.step_ids == step)[-1]) + 1
            log[sample.trajectory_id, sample.context].append(sample.tokens[:stop])
    return log


# Naive loops.


def retokenized(trajectory: Trajectory, samples: Sequence[Sample], renderer: Renderer) -> list[Sample]:
    """Make samples from messages: decode, render with the template again, and guess where log-probabilities belong."""
    made = []
    for name, log in trajectory.contexts.items():
        ours = [sample for sample in samples if (sample.trajectory_id, sample.context) == (trajectory.id, name)]
        if not ours:  # a summary that was rejected
            continue
        sampled = np.concatenate([sample.logprobs[sample.mask] for sample in ours if sample.logprobs is not None])
        try:
            rendered = renderer.render(log.messages, tools=log.tools)
        except RenderError:
            continue
        positions = [i for span in rendered.spans if span.is_sampled for i in range(span.start, span.stop)]
        positions = positions[: len(sampled)]  # the guess: one after the other, up to the last one
        mask, logprobs = np.zeros((2, len(rendered.tokens)))
        mask[positions], logprobs[positions] = 1, sampled[: len(positions)]
        ids = np.where(mask > 0, 0, -1).astype(np.int32)
        changes = {"tokens": rendered.tokens, "mask": mask > 0, "logprobs": logprobs.astype(np.float32)}
        made.append(replace(ours[0], **changes, step_ids=ids, part_ids=ids, metadata={}))
    return made


def causes_in_prompts(trajectory: Trajectory, log: Log, renderer: Renderer) -> Counter[str]:
    """Count the reasons why a naive loop's prompts do not begin with the previous prompt and reply."""
    found: Counter[str] = Counter()
    for name, context in trajectory.contexts.items():
        replies = [step.reply for step in trajectory.steps if step.context == name]
        for before, reply in zip(log[trajectory.id, name], replies[1:], strict=False):
            shown = partial(renderer.render, context.messages[:reply], tools=context.tools, generation_prompt=True)
            found[cause(before, lambda shown=shown: shown().tokens, renderer)] += 1
    return found


def causes_in_replies(trajectory: Trajectory, renderer: Renderer) -> Counter[str]:
    """Count the reasons why a reply, parsed as a message and rendered again, differs from the sampled one."""
    found: Counter[str] = Counter()
    for step in trajectory.steps:
        context = trajectory.contexts[step.context]
        if step.reply is not None:
            again = partial(renderer.reply, context.messages[step.reply])
            found[cause(context.tokens[step.action_start : step.stop], again, renderer)] += 1
    return found


def cause(first: np.ndarray, write: Callable[[], np.ndarray], renderer: Renderer) -> str:
    """Return why the rendered tokens do not begin with the earlier ones."""
    try:
        return explain_break(first, write(), renderer.tokenizer).cause
    except RenderError:  # such as two calls in a reply of a family with at most one
        return "cannot be written"


# The check.


@dataclass
class Report:
    """The results for one model."""

    loss: float
    """The loss of the fit, in nats per token."""
    sound: float
    """The share of replies that closed their thinking, ended their turn and called tools correctly."""
    steps: list[int]
    """The number of steps of each episode."""
    left_out: int
    """Episodes that the model ended too early."""
    breaks: Counter[str]
    cost: Cost
    tokens: TokenMatch
    samples: KL
    trees: KL
    naive_tokens: TokenMatch | None = None
    naive: KL | None = None
    naive_prompts: Counter[str] = field(default_factory=Counter)
    naive_replies: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Return the violated expectations."""
        found = [f"{n} breaks of {reason}" for reason in REASONS if (n := self.breaks[reason]) < MIN_BREAKS]
        if self.tokens.share < 1:
            found.append(f"token match: {self.tokens}")
        for name, part in (("samples", self.samples.all), ("trees", self.trees.all)):
            if not max(abs(part.k1), part.k2, part.k3) < TOLERANCE:
                found.append(f"{name}: {part}")
        return found

    def __str__(self) -> str:
        lines = [
            f"fitted to {self.loss:.3f} nats per token; {self.sound:.1%} of the replies are well formed",
            f"{len(self.steps)} episodes of {min(self.steps)} to {max(self.steps)} steps ({self.left_out} left out)",
            str(self.cost),
            f"tokens:  {self.tokens}",
            f"samples: {self.samples.all}; {self.samples.forced_token_ratio:.0%} of the tokens were forced",
            f"trees:   {self.trees.all}",
        ]
        if self.naive is not None:
            lines += [
                f"naive tokens: {self.naive_tokens}",
                f"naive:   {self.naive.all}",
                f"naive prompts against what was sampled: {dict(self.naive_prompts.most_common())}",
                f"naive replies against what was sampled: {dict(self.naive_replies.most_common())}",
            ]
        return "\n".join([*lines, ", ".join(f"{name} {value:.0f} s" for name, value in self.seconds.items())])


class Clock:
    """Measures the time of each part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def time(self, name: str) -> Iterator[None]:
        """Measure the time of the block."""
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start


def fitted_model(kind: str, renderer: Renderer, *, seed: int = 0, steps: int = 1500) -> tuple[Any, float]:
    """Return a model that is fitted to the scenes, and its loss."""
    model = make_model(kind, renderer.tokenizer.vocab_size, seed)
    return model, fit(model, transcripts(scenes(renderer).values(), episodes=12), steps, seed)


def check(
    model: Any, renderer: Renderer, *, loss: float = 0.0, seeds: int = 8, seed: int = 0, retokenize: bool = False
) -> Report:
    """Play episodes, and compare the sampled tokens with the trained ones."""
    clock = Clock()
    policy = TransformersPolicy(
        model, renderer.tokenizer, seed=seed, temperature=TEMPERATURE, max_tokens=MAX_REPLY_TOKENS
    )
    recorder = Recorder(policy)
    with clock.time("playing"):
        played: list[Trajectory] = []
        for number, (name, make) in enumerate(scenes(renderer).items()):
            start = 1000 * (10 * seed + number)  # different seeds for each kind, so that ids differ
            played += play(make, recorder, range(start, start + (seeds if name != LONG else -(-seeds // 4))))
    trajectories = [trajectory for trajectory in played if len(trajectory.steps) >= MIN_STEPS]
    samples = [sample for trajectory in trajectories for sample in trajectory.samples()]
    sampled, trained = recorder.log, trained_log(samples)
    with clock.time("samples"):
        of_samples = kl(samples, forward_logprobs(model, samples))
    with clock.time("trees"):
        of_trees = kl(samples, [values for t in trajectories for values in tree_logprobs(model, t)])
    sound = [flag for trajectory in trajectories for flag in is_sound(trajectory)]
    report = Report(
        loss=loss,
        sound=sum(sound) / len(sound),
        steps=[len(trajectory.steps) for trajectory in trajectories],
        left_out=len(played) - len(trajectories),
        breaks=Counter(b.reason for trajectory in trajectories for b in trajectory.breaks),
        cost=cost(trajectories),
        tokens=token_match(
            [tokens for key in trained for tokens in sampled[key]],
            [tokens for key in trained for tokens in trained[key]],
        ),
        samples=of_samples,
        trees=of_trees,
        seconds=clock.seconds,
    )
    if retokenize:
        with clock.time("naive"):  # only episodes whose history the template can render
            plain = [t for t in trajectories if not {b.reason for b in t.breaks} - OF_TEMPLATES]
            made = [sample for t in plain for sample in retokenized(t, samples, renderer)]
            by_context = {(sample.trajectory_id, sample.context): sample for sample in made}
            ours = [sample for sample in samples if (sample.trajectory_id, sample.context) in by_context]
            in_place = [by_context[sample.trajectory_id, sample.context] for sample in ours]
            report.naive_tokens = token_match(ours, in_place)
            report.naive = kl(made, forward_logprobs(model, made))
            report.naive_prompts = sum((causes_in_prompts(t, sampled, renderer) for t in plain), Counter())
            report.naive_replies = sum((causes_in_replies(t, renderer) for t in plain), Counter())
    return report


def main() -> int:
    """Run the check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["qwen3", "gpt_oss", "both"], default="qwen3")
    parser.add_argument("--ladder", action="store_true", help="from plain text to what naive loops do, and back")
    parser.add_argument("--tokenizer", help="a folder with gpt-oss's tokenizer.json")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=8, help="of each kind")
    parser.add_argument("--retokenize", action="store_true", help="also do what naive loops do")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the computations are too small for several threads
    if options.ladder:
        ladder = importlib.import_module("onpolicy_ladder")  # it imports this module
        return ladder.run(options.tokenizer, seeds=options.seeds, seed=options.seed)
    kinds = ["qwen3", "gpt_oss"] if options.model == "both" else [options.model]
    if "gpt_oss" in kinds and options.tokenizer is None:
        parser.error("gpt-oss needs its own vocabulary: --tokenizer FOLDER, a folder with its tokenizer.json")
    problems: list[str] = []
    for kind in kinds:
        renderer = renderer_of(kind, options.tokenizer)
        model, loss = fitted_model(kind, renderer, seed=options.seed)
        report = check(
            model, renderer, loss=loss, seeds=options.seeds, seed=options.seed, retokenize=options.retokenize
        )
        print(f"{kind}\n{report}\n", flush=True)
        problems += [f"{kind}: {problem}" for problem in report.problems()]
    print("\n".join(f"FAILED: {problem}" for problem in problems) or "All holds.")
    return 1 if problems else 0


def renderer_of(kind: str, tokenizer: Any = None) -> Renderer:
    """Return the renderer of a model family; gpt-oss's renders the past as the official template does."""
    if kind == "qwen3":
        return envsdk.get_renderer("qwen3", envsdk.load_tokenizer("embedded"))
    loaded = envsdk.load_tokenizer(tokenizer, vocab_size=GPT_OSS_IDS)
    return envsdk.get_renderer("harmony", loaded, official_history=True)


if __name__ == "__main__":
    sys.exit(main())
