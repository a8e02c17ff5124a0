"""Prints what `fixed_base` can be relied on for, for each chat template in given folders: turns, reasoning, reading.

    python tests/reading_table.py FOLDER...

Without a folder, it measures the templates that the tests find. A template's control tokens are those whose names look
like tags, and the token that ends a turn is the first usual one that the template contains.
"""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import tokenizers
from envsdk_renderers.fixed_base import FixedBase
from envsdk_renderers.grammars.probes import TOOLS
from template_conversations import ENDS, NAMES, SHAPE, random_reply, templates

from envsdk import Message, load_tokenizer
from envsdk.errors import EnvsdkError
from envsdk.rendering.tokenizers import DATA

MORE_ENDS = (
    *("<seed:eos>", "[e~[", "<SPECIAL_12>", "<end_of_sentence>", "<sep>", "</assistant>", "<|role_end|>"),
    *("<|message_sep|>", "<｜hy_eos:opensource｜>", "<|user|>"),
)
MORE_SHAPES = re.compile(
    r"""</?[a-z_]{2,12}:[a-z_]{3,12}>|<[｜|][^<>\n'{}]{1,30}[｜|]>|\[[A-Z]+(?:_[A-Z]+)+\]|\[/?THINK\]|\[ARGS\]|\]~b\]"""
    r"""|\[e~\[|\]<\]minimax\[>\[|</?assistant>|</?user>|<SPECIAL_1[0-2]>|<sep>|<(?:end|beginning)_of_sentence>|<\|"\|>"""
)


class Row(NamedTuple):
    """What was measured for one template."""

    user: str
    tool: str
    reasoning: str
    reading: str
    detail: str
    ms: float


def options_of(text: str) -> dict[str, Any]:
    """Return the options of a template's renderer: a vocabulary that has its control tokens, and the end of a turn."""
    end = next((end for end in (*ENDS, *MORE_ENDS) if end in text.replace("hy_eos{}", "hy_eos:opensource")), "<eos>")
    names = {*SHAPE.findall(text), *MORE_SHAPES.findall(text), *NAMES, "<eos>", "<|endoftext|>", end}
    specification = json.loads(Path(DATA / "embedded.json").read_bytes())
    known = {token["content"] for token in specification["added_tokens"]}
    first = max(token["id"] for token in specification["added_tokens"]) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    specification["added_tokens"] += [
        {"id": token, "content": content, **flags, "special": True}
        for token, content in enumerate(sorted(names - known), first)
    ]
    tokenizer = load_tokenizer(tokenizers.Tokenizer.from_str(json.dumps(specification)))
    special_tokens = {"bos_token": "<bos>", "eos_token": end}
    return {"tokenizer": tokenizer, "template": text, "stop": end, "special_tokens": special_tokens}


def row_of(text: str, rng: Random) -> Row:
    """Measure a template."""
    options = options_of(text)
    begun = time.process_time()
    try:
        renderer = FixedBase(**options)
    except EnvsdkError as error:
        return Row("refused", "refused", "", "refused", str(error)[:120], 0)
    verdict, ms = renderer.reading, (time.process_time() - begun) * 1000
    status = {(v.previous, v.following): v.status for v in renderer.verdicts(TOOLS)}
    plain = {(v.previous, v.following): v.status for v in renderer.verdicts()}
    reading = verdict.status
    if reading != "no calls":
        reading = reading if not (wrong := wrong_reply(renderer, rng)) else "WRONG"
        verdict = verdict if reading != "WRONG" else type(verdict)("refused", wrong)
    elif "tool_calls" in text:
        reading = "no calls, though the template has tool_calls"
    thinks = any(edge.target == "reasoning" for edge in renderer._measured.grammar.edges)
    tags = "measured" if thinks else "none"
    return Row(plain["text", "user"], status["call", "tool"], tags, reading, verdict.detail, ms)


def wrong_reply(renderer: FixedBase, rng: Random) -> str:
    """Return a reply that reads back as another message without an error; empty if none of many does."""
    prompt = renderer.render([Message(role="user", content="u")], generation_prompt=True)
    tail = prompt.tokens[prompt.starts[-1] :]
    for _ in range(25):
        message = random_reply(rng, fewest_calls=1)
        try:
            tokens = renderer.reply(message)
        except EnvsdkError:
            continue
        read = renderer.parse(tokens, prompt_tail=tail, tools=TOOLS)
        if not read.errors and [(c.name, c.arguments) for c in read.tool_calls] != [
            (c.name, c.arguments) for c in message.tool_calls
        ]:
            return f"{renderer.tokenizer.decode(tokens)!r} reads back as {read.to_openai()}"
        cut = tokens[: rng.randint(0, len(tokens))]
        good = [c for c in renderer.parse(cut, prompt_tail=tail, tools=TOOLS).tool_calls if not c.error]
        if [c.arguments for c in good] != [c.arguments for c in message.tool_calls][: len(good)]:
            return f"cut, {renderer.tokenizer.decode(cut)!r} has other calls"
    return ""


def main(folders: list[str]) -> None:
    """Print the table, each text once, and the counts."""
    files = [path for folder in folders for path in sorted(Path(folder).rglob("*.jinja"))]
    texts = {path.stem: path.read_bytes().decode() for path in files if ".cu" not in path.name} or dict(templates())
    seen: set[str] = set()
    counts: Counter[str] = Counter()
    print("| template | user turns | tool turns | reasoning | reading | ms |\n|---|---|---|---|---|---|")
    for name, text in texts.items():
        if text in seen or "messages" not in text:
            continue
        seen.add(text)
        row = row_of(text, Random(name))
        counts.update([row.reading, f"user: {row.user}", f"tool: {row.tool}"])
        reading = row.reading + (f": {row.detail[:160]}" if row.detail and "without" not in row.reading else "")
        print(f"| {name} | {row.user} | {row.tool} | {row.reasoning} | {reading} | {row.ms:.0f} |", flush=True)
    print("\n".join(f"{count:4} {what}" for what, count in sorted(counts.items())))


if __name__ == "__main__":
    main(sys.argv[1:])
