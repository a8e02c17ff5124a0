"""Drawings of real episodes: each step is a row, and each token has its place in the prompt."""

from typing import Any

import envsdk
from envsdk import Limits, Trajectory

from .svg import DROPPED, INK, KEPT, OBSERVED, SAMPLED, SOFT, Drawing

LEFT, ROW, BAR, WIDTH = 150, 34, 18, 820
POLICIES = {
    "keep": "keep",
    "strip": "strip",
    "compact": "compact:every=3",
    "budget": "budget:max_tokens=240",
    "summarize": "summarize:threshold=240",
    "planned": "planned:cached=0.5",
}
"""The history policies that are drawn, by the names of their drawings."""
COLORS = {"kept": KEPT, "observed": OBSERVED, "sampled": SAMPLED, "trained": SAMPLED, "dropped": DROPPED}


def episode(name: str, history: Any = "keep", seed: int = 0, **options: Any) -> Trajectory:
    """Return an episode of the reference policy, with Qwen3's format and the embedded tokenizer."""
    env = envsdk.make(name, history=history, renderer="qwen3", tokenizer="embedded", **options)
    return envsdk.rollout(env, policy="reference", seed=seed)


def deltas() -> str:
    """Draw the tokens that each observation of an episode keeps and appends."""
    trajectory = episode("envsdk/MathChat-v0")
    prompts = list(trajectory.prompts())
    drawing = Drawing(WIDTH, 130 + ROW * len(prompts), "What each step of an episode keeps, observes and samples")
    drawing.text(20, 30, "An episode of MathChat: each step appends to its context", size=16)
    _legend(drawing, "kept observed sampled trained")
    _rows(drawing, trajectory, top=80)
    appended = trajectory.observed_tokens + trajectory.sampled_tokens
    whole = sum(len(prompt.prompt) + len(prompt.action) for prompt in prompts)
    y = 80 + ROW * len(prompts) + 26
    drawing.text(20, y, f"Deltas: {appended:,} tokens. Whole prompts and replies: {whole:,} tokens.", color=SOFT)
    return drawing.svg()


def breaks() -> str:
    """Draw an episode whose history policy rewrites the past every second step."""
    trajectory = episode("envsdk/MathChat-v0", "compact:every=2")
    count = len(trajectory.steps)
    drawing = Drawing(WIDTH, 130 + ROW * count, "An episode with declared breaks, and the tokens that each one drops")
    drawing.text(20, 30, 'The same episode under history="compact:every=2"', size=16)
    _legend(drawing, "kept observed sampled trained dropped")
    _rows(drawing, trajectory, top=80)
    found = [break_ for break_ in trajectory.breaks if break_.kind == "rewrite"]
    dropped = sum(break_.dropped for break_ in found)
    text = f"{len(found)} breaks drop {dropped:,} tokens: {len(trajectory.samples())} samples instead of one."
    drawing.text(20, 80 + ROW * count + 26, text, color=SOFT)
    return drawing.svg()


def history(name: str) -> str:
    """Draw an episode of seven questions under a history policy of `POLICIES`."""
    trajectory = episode("envsdk/MathChat-v0", POLICIES[name], questions=7)
    count = len(trajectory.steps)
    drawing = Drawing(WIDTH, 130 + ROW * count, f"What the model sees at each step under the history policy {name}")
    drawing.text(20, 30, f'An episode of MathChat under history="{POLICIES[name]}"', size=16)
    _legend(drawing, "kept observed sampled trained dropped")
    _rows(drawing, trajectory, top=80)
    samples = trajectory.samples()
    trained, separate = sum(int(sample.mask.sum()) for sample in samples), sum(map(len, samples))
    text = f"samples: {len(samples)}, with {separate:,} tokens, of which {trained:,} are trained"
    drawing.text(20, 80 + ROW * count + 26, text, color=SOFT)
    return drawing.svg()


def moving() -> str:
    """Draw an episode as it grows: each step appears after the one before it, and the whole stays for some seconds.

    Readers who prefer reduced motion get the whole at once.
    """
    trajectory = episode("envsdk/MathChat-v0", POLICIES["compact"], questions=7)
    prompts, row, left, every_s, pause_s = list(trajectory.prompts()), 42, 178, 1.2, 5.0
    whole_s = every_s * len(prompts) + pause_s
    drawing = Drawing(600, 96 + row * len(prompts), "An episode of seven questions: what the model sees at each step")
    scale = (drawing.width - left - 20) / max(len(prompt.prompt) + len(prompt.action) for prompt in prompts)
    messages = [message for message in trajectory.contexts["main"].messages if message.role != "system"]
    drawing.text(20, 30, 'envsdk/MathChat-v0, history="compact:every=3"', size=16)
    _legend(drawing, "kept observed sampled trained dropped")
    style = ["g { animation: 0s infinite }"]
    for index, prompt in enumerate(prompts):
        step, y = prompt.step, 82 + row * index
        start = 100 * every_s * index / whole_s
        frames = f"0%, {start:.1f}% {{ opacity: 0 }} {start + 3:.1f}%, 97% {{ opacity: 1 }} 100% {{ opacity: 0 }}"
        style.append(f"@keyframes step{index} {{ {frames} }}")
        drawing.parts.append(f'<g style="animation-name: step{index}; animation-duration: {whole_s:.1f}s">')
        question, answer = (message.content for message in messages[2 * index : 2 * index + 2])
        drawing.text(20, y + 6, question.removeprefix("Right. "), size=14)
        drawing.text(20, y + 23, f"{answer} · reward {sum(step.rewards.values()):.2f}", size=13, color=SOFT)
        _bar(drawing, prompt, left, y, scale)
        if step.break_ is not None:
            dropped = step.break_.dropped * scale
            drawing.box(left + step.keep * scale, y - 10, dropped, 8, DROPPED)
            _label(drawing, left + step.keep * scale, dropped, y - 2, step.break_.reason)
        drawing.parts.append("</g>")
    style.append("@media (prefers-reduced-motion: reduce) { g { animation: none !important } }")
    drawing.parts.insert(0, f"<style>{' '.join(style)}</style>")
    return drawing.svg()


def folds(*, as_played: bool) -> str:
    """Draw an episode in which the model folds, or the same replies with everything that it folded."""
    trajectory = episode("envsdk/LongErrand-v0", size="tiny")
    title = "An errand in which the model folds, as it was played"
    if not as_played:
        trajectory = trajectory.under("keep", limits=Limits(), folds=False)
        title = 'The same replies under("keep", folds=False): what the model would have seen'
    drawing = Drawing(WIDTH, 110 + ROW * len(trajectory.steps), title)
    drawing.text(20, 30, title, size=16)
    _legend(drawing, "kept observed sampled trained dropped")
    _rows(drawing, trajectory, top=80)
    return drawing.svg()


def handoffs() -> str:
    """Draw the contexts of an episode with sub-agents as lanes."""
    trajectory = episode("envsdk/Delegate-v1")
    order = list(trajectory.contexts)
    scale = (WIDTH - LEFT - 30) / sum(_new_tokens(prompt) for prompt in trajectory.prompts())
    drawing = Drawing(WIDTH, 110 + 52 * len(order), "Contexts of an episode with sub-agents, with handoffs and returns")
    drawing.text(20, 30, "An episode of Delegate: each agent has a context, and a switch drops nothing", size=16)
    _legend(drawing, "observed sampled")
    x, last = float(LEFT), ""
    for prompt in trajectory.prompts():
        step = prompt.step
        y = 84 + 52 * order.index(step.context)
        if step.break_ is not None:
            parent = trajectory.contexts[step.context].parent
            source = parent if step.break_.reason == "handoff" and parent else last
            drawing.line(x, 84 + 52 * order.index(source) + BAR / 2, x, y + BAR / 2, SOFT, arrow=True)
        observed = (step.action_start - step.start) * scale
        drawing.box(x, y, max(observed, 0.5), BAR, OBSERVED)
        drawing.box(x + observed, y, len(prompt.action) * scale, BAR, SAMPLED)
        x, last = x + observed + len(prompt.action) * scale, step.context
    for index, name in enumerate(order):
        drawing.line(LEFT, 84 + 52 * index + BAR + 4, WIDTH - 30, 84 + 52 * index + BAR + 4)
        drawing.text(20, 84 + 52 * index + 13, name, size=11)
    switches = sum(break_.kind == "switch" for break_ in trajectory.breaks)
    y = 84 + 52 * len(order) + 6
    drawing.text(20, y, f"{switches} switches, {len(trajectory.samples())} samples: one for each context.", color=SOFT)
    return drawing.svg()


def tree() -> str:
    """Draw the samples of an episode with their shared prefixes, once each and once in a tree."""
    trajectory = episode("envsdk/MathChat-v0", "strip")
    batch = envsdk.tree_batch(trajectory)
    count, half = len(trajectory.steps), (WIDTH - 80) / 2
    drawing = Drawing(WIDTH, 150 + ROW * count, "The samples of an episode, separate and as a tree")
    drawing.text(20, 30, 'The same episode under history="strip": every step is a sample', size=16)
    _legend(drawing, "kept observed sampled trained")
    longest = max(len(prompt.prompt) + len(prompt.action) for prompt in trajectory.prompts())
    scale = half / longest
    drawing.text(20, 86, f"separate: {batch.tokens_separate:,} tokens", color=SOFT)
    drawing.text(60 + half, 86, f"as a tree: {len(batch):,} tokens", color=SOFT)
    for index, prompt in enumerate(trajectory.prompts()):
        y = 100 + ROW * index
        _bar(drawing, prompt, 20, y, scale)
        start = 60 + half + prompt.step.keep * scale
        if index:
            drawing.line(start, y - ROW + BAR / 2, start, y + BAR / 2, SOFT)
        _bar(drawing, prompt, 60 + half, y, scale, with_kept=False)
    text = "A token of the tree sees the tokens before it in its own branch, and no others."
    drawing.text(20, 100 + ROW * count + 26, text, color=SOFT)
    return drawing.svg()


def _legend(drawing: Drawing, kinds: str) -> None:
    """Write the meaning of the colors: the names are those of the viewer's legend."""
    x = 20.0
    for kind in kinds.split():
        drawing.legend(x, 54, {kind: COLORS[kind]})
        if kind == "trained":
            drawing.box(x, 54, 12, 2, INK)
        x += 36 + 6.4 * len(kind)


def _rows(drawing: Drawing, trajectory: Trajectory, top: int) -> None:
    """Draw one row for each step, with the tokens that a break dropped after the place of the new tokens."""
    prompts = list(trajectory.prompts())
    ends = [len(prompt.prompt) + len(prompt.action) for prompt in prompts]
    scale = (WIDTH - LEFT - 30) / max(ends)
    for index, prompt in enumerate(prompts):
        step, y = prompt.step, top + ROW * index
        drawing.text(20, y + 14, f"step {index + 1}: keep {step.keep:,}", size=12)
        _bar(drawing, prompt, LEFT, y, scale)
        if step.break_ is not None and step.break_.kind == "rewrite":
            dropped = step.break_.dropped * scale
            drawing.box(LEFT + step.keep * scale, y - 9, dropped, 7, DROPPED)
            _label(drawing, LEFT + step.keep * scale, dropped, y - 2, step.break_.reason)


def _label(drawing: Drawing, x: float, width: float, y: float, text: str) -> None:
    """Write the label of a bar to its right, or to its left where it would be cut off."""
    fits = x + width + 6 + 6 * len(text) < drawing.width
    drawing.text(x + width + 6 if fits else x - 6, y, text, size=10, color=INK, anchor="start" if fits else "end")


def _bar(drawing: Drawing, prompt: Any, x: float, y: float, scale: float, *, with_kept: bool = True) -> None:
    """Draw the tokens of a step at their places in the prompt."""
    keep, length, sampled = prompt.step.keep, len(prompt.prompt), len(prompt.action)
    if with_kept:
        drawing.box(x, y, keep * scale, BAR, KEPT)
    drawing.box(x + keep * scale, y, (length - keep) * scale, BAR, OBSERVED)
    drawing.box(x + length * scale, y, sampled * scale, BAR, SAMPLED)
    drawing.box(x + length * scale, y + BAR, sampled * scale, 2, INK)  # they are all trained


def _new_tokens(prompt: Any) -> int:
    """Return how many tokens a step adds to the log."""
    return prompt.step.action_start - prompt.step.start + len(prompt.action)
