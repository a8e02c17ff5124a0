"""The drawing of the effect of decoding sampled tokens and encoding the text again."""

from functools import cache

import envsdk

from .svg import SAMPLED, SOFT, TROUBLE, Drawing

LENGTH = 8
EPISODES = 16


def retokenized() -> str:
    """Draw a piece of a sampled reply, and the tokens of its text."""
    found = pieces()
    tokenizer = envsdk.load_tokenizer("embedded")
    drawing = Drawing(820, 240, "Sampled tokens, and the tokens of the same text after decoding and encoding")
    drawing.text(20, 30, "A piece of a reply of the random policy: the text is the same, the tokens are not", size=16)
    sampled = next(piece for piece in found if again(piece) != piece)
    rows = (("sampled", sampled, SAMPLED), ("encoded again", again(sampled), TROUBLE))
    for row, (name, ids, color) in enumerate(rows):
        y = 60 + 62 * row
        drawing.text(20, y + 22, name, size=12)
        x = 130.0
        for token in ids:
            text = shown(tokenizer.decode([token]))
            width = max(34.0, 8.0 * len(text) + 12)
            drawing.box(x, y, width - 4, 34, color)
            drawing.text(x + (width - 4) / 2, y + 14, text, size=11, anchor="middle", code=True)
            drawing.text(x + (width - 4) / 2, y + 28, str(token), size=9, anchor="middle", code=True)
            x += width
    same = sum(again(piece) == piece for piece in found)
    text = (
        f"{EPISODES} episodes of GuessNumber with the random policy, cut into pieces of {LENGTH} tokens of valid text:"
    )
    drawing.text(20, 202, text, color=SOFT)
    text = f"{same:,} of {len(found):,} pieces have the same tokens after decoding and encoding."
    drawing.text(20, 222, text, color=SOFT)
    return drawing.svg()


@cache
def pieces() -> list[list[int]]:
    """Return pieces of sampled replies in which each token is valid text by itself."""
    env = envsdk.make("envsdk/GuessNumber-v1", renderer="qwen3", tokenizer="embedded")
    tokenizer = env.renderer.tokenizer
    control = set(tokenizer.control_tokens.values())
    found: list[list[int]] = []
    for seed in range(EPISODES):
        for prompt in envsdk.rollout(env, policy="random", seed=seed).prompts():
            piece: list[int] = []
            for token in prompt.action.tolist():
                is_text = token not in control and "\ufffd" not in tokenizer.decode([token])
                piece = [*piece, token] if is_text else []
                if len(piece) == LENGTH:
                    found.append(piece)
                    piece = []
    return found


def again(piece: list[int]) -> list[int]:
    """Return the tokens of a piece's text."""
    tokenizer = envsdk.load_tokenizer("embedded")
    return tokenizer.encode(tokenizer.decode(piece)).tolist()


def shown(text: str) -> str:
    """Return the text of a token with its white space visible."""
    visible = text.replace(" ", "\u00b7").replace("\n", "\u21b5").replace("\ufffd", "?")
    return visible if visible.isprintable() else "?"
