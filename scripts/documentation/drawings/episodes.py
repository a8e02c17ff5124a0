"""Drawings of real episodes: each step is a row, and each token has its place in the prompt."""

from typing import Any

import envsdk
from envsdk import Limits, Trajectory, _palette
from envsdk.viewer._episodes import episode as facts_of
from envsdk.viewer._json import BreakJSON, EpisodeJSON, MessageJSON, StepJSON

from .svg import DROPPED, INK, KEPT, OBSERVED, SAMPLED, SOFT, Drawing

LEFT, ROW, BAR, WIDTH = 150, 34, 18, 820
LANE = 84
"""Where a lane begins in the drawing of the viewer."""
POLICIES = {
    "keep": "keep",
    "strip": "strip",
    "compact": "compact:every=3",
    "budget": "budget:max_tokens=240",
    "summarize": "summarize:threshold=240",
    "planned": "planned:cached=0.5",
}
"""The history policies that are drawn, by the names of their drawings."""
GOOD, EARNED = _palette.GOOD.light, _palette.GOOD.light_text
ASKED, REPLIED = _palette.OBSERVED.light_text, _palette.SAMPLED.light_text
"""The viewer's colors of rewards, and of the roles user and assistant."""
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


def in_viewer(*, moves: bool) -> str:
    """Draw an episode as the viewer's page shows it on a narrow screen: its lane, and its conversation.

    If it moves, each step appears after the one before it, and the whole stays for some seconds.
    """
    facts = facts_of(episode("envsdk/MathChat-v0", "compact:every=2", questions=5))
    steps, messages, every_s = facts["steps"], facts["contexts"][0]["messages"], 1.6
    whole_s = every_s * len(steps) + 6
    drawing = Drawing(440, 472, "An episode in the viewer: its drawing, and its conversation")
    _frame_of_viewer(drawing, facts)
    scale, y = (drawing.width - LANE - 14) / steps[-1]["stop"], 204
    style = [f"g {{ animation: {whole_s:.1f}s infinite }}"]
    for step in steps:
        start = 100 * every_s * step["index"] / whole_s
        frames = f"0%, {start:.1f}% {{ opacity: 0 }} {start + 3:.1f}%, 97% {{ opacity: 1 }} 100% {{ opacity: 0 }}"
        style.append(f"@keyframes step{step['index']} {{ {frames} }}")
        drawing.parts.append(f'<g style="animation-name: step{step["index"]}">' if moves else "<g>")
        if step["break"] is not None:
            _break_in_viewer(drawing, step, step["break"], scale, y)
            y += 25
        _step_in_viewer(drawing, step, messages, scale, y)
        y += 46
        if step is steps[-1]:
            drawing.text(252, 62, "reward", size=12)
            drawing.text(298, 62, f"{facts['reward']:.3f}", size=12, color=EARNED, bold=True)
            drawing.text(346, 62, facts["status"], size=12, color=SOFT)
        drawing.parts.append("</g>")
    if moves:
        style.append("@media (prefers-reduced-motion: reduce) { g { animation: none !important } }")
        drawing.parts.insert(0, f"<style>{' '.join(style)}</style>")
    return drawing.svg()


def _frame_of_viewer(drawing: Drawing, facts: EpisodeJSON) -> None:
    """Draw what the viewer's page shows around the steps of an episode with one context."""
    for points in (((3, 2), (3, 14)), ((3, 6), (8, 6), (8, 12)), ((8, 9), (13, 9), (13, 14))):
        drawing.path([(x + 14, y + 12) for x, y in points], stroke=ASKED)
    drawing.box(40, 9, 50, 22, "#e4eefa")
    drawing.text(48, 24, "run 1", size=13, color=ASKED)
    drawing.text(426, 24, f"{facts['env']} · reference · {facts['history']['name']}", size=12, color=SOFT, anchor="end")
    drawing.text(14, 62, "Episode 1", size=14, bold=True)
    drawing.text(96, 62, facts["id"], size=13, color=SOFT)
    for x, width, view in ((14, 98, "Conversation"), (112, 66, "Tokens"), (178, 66, "Prompt"), (244, 60, "About")):
        is_shown = view == "Conversation"
        drawing.box(x, 74, width, 24, "#e4eefa" if is_shown else "#ffffff", ASKED if is_shown else "#cdcdc7")
        drawing.text(x + width / 2, 90, view, size=13, color=ASKED if is_shown else INK, anchor="middle")
    for y in (40, 106, 156, 180):
        drawing.line(0, y, drawing.width, y, "#e3e7ee")
    drawing.line(74, 106, 74, 156, "#e3e7ee")
    drawing.line(76, 134, 432, 134)
    drawing.box(0, 118, 3, 32, ASKED)
    drawing.text(14, 139, "main", size=13, color=ASKED, bold=True)
    _legend(drawing, "kept observed sampled trained dropped", 173)


def _step_in_viewer(drawing: Drawing, step: StepJSON, messages: list[MessageJSON], scale: float, y: float) -> None:
    """Draw a step's block in the lane, and its two messages."""
    x, reply_x, end = LANE + scale * step["start"], LANE + scale * step["action_start"], LANE + scale * step["stop"] - 2
    drawing.box(x, 126, reply_x - x, 16, OBSERVED)
    drawing.box(reply_x, 126, end - reply_x, 16, SAMPLED)
    drawing.box(reply_x, 142, end - reply_x, 2, INK)  # they are all trained
    drawing.box(x, 146, end - x, 3, GOOD)
    asked, replied = messages[(step["reply"] or 0) - 1], messages[step["reply"] or 0]
    for place, message, color in ((y, asked, ASKED), (y + 21, replied, REPLIED)):
        drawing.box(14, place - 13, 3, 18, color)
        drawing.text(24, place, message["role"], size=12, color=color, bold=True)
        drawing.text(96, place, message["content"], size=13)
    drawing.text(180, y + 21, f"step {step['index'] + 1} · {step['sampled']} tokens", size=12, color=SOFT)
    drawing.text(300, y + 21, f"correct +{step['reward']:.4f}", size=12, color=EARNED, bold=True)


def _break_in_viewer(drawing: Drawing, step: StepJSON, break_: BreakJSON, scale: float, y: float) -> None:
    """Draw a break before its step: hatched tokens and a zigzag in the lane, and a line in the conversation."""
    x = LANE + scale * step["start"]
    for _, first, last in step["dropped"]:
        drawing.box(LANE + scale * first, 126, scale * (last - first) - 2, 16, DROPPED, opacity=0.7)
    drawing.path([(x - 4 + 5 * (tooth % 2), 121 + 5 * tooth) for tooth in range(6)], stroke=SOFT)
    label = f"{break_['reason']} −{break_['dropped']}"
    fits = x + 4 + 7 * len(label) < drawing.width
    drawing.text(x + 4, 120, label if fits else break_["reason"], size=11, color=SOFT)
    text = f"{break_['reason']}: {break_['dropped']} tokens dropped, {break_['kept']} kept"
    drawing.text(drawing.width / 2, y, text, size=12, color=SOFT, anchor="middle", bold=True)


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


def _legend(drawing: Drawing, kinds: str, y: float = 54) -> None:
    """Write the meaning of the colors: the names are those of the viewer's legend."""
    x = 20.0
    for kind in kinds.split():
        drawing.legend(x, y, {kind: COLORS[kind]})
        if kind == "trained":
            drawing.box(x, y, 12, 2, INK)
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
