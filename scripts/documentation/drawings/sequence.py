"""The drawing of one step's path through the code."""

from .svg import INK, LINE, OBSERVED, SOFT, Drawing

ACTORS = ("policy", "Env, driver", "Episode, Agent", "Context, View", "Renderer", "author's code")
MESSAGES = (
    (0, 1, "step(action)"),
    (1, 2, "Episode.step"),
    (2, 2, "check the action"),
    (2, 3, "act: append the sampled tokens"),
    (3, 4, "parse the reply"),
    (4, 2, "Message, with its errors"),
    (2, 1, "Call(respond, reply)"),
    (1, 5, "respond(reply)"),
    (5, 1, "Turn or Handoff"),
    (1, 2, "Turn"),
    (2, 2, "reward, limits, end"),
    (2, 3, "observe(messages)"),
    (3, 4, "extension: close the reply, render"),
    (3, 3, "history policy: None or Rewrite"),
    (3, 2, "Delta (tokens, keep, break)"),
    (2, 0, "Observation, reward, terminated, truncated, info"),
)
"""The calls: the caller and the callee as indices of `ACTORS`, and the label."""


def step() -> str:
    """Draw the calls of `Env.step`."""
    top, row, column = 60, 34, 130
    drawing = Drawing(820, top + row * len(MESSAGES) + 40, "The calls of one step")
    places = [80 + column * index for index in range(len(ACTORS))]
    for x, actor in zip(places, ACTORS, strict=True):
        drawing.box(x - 58, 16, 116, 26, "#eef3fa", OBSERVED)
        drawing.text(x, 33, actor, size=11, anchor="middle")
        drawing.line(x, 42, x, top + row * len(MESSAGES) + 20, LINE)
    for index, (start, end, text) in enumerate(MESSAGES):
        y = top + row * index + 20
        if start == end:
            drawing.box(places[start] - 4, y - 10, 8, 14, OBSERVED)
            drawing.text(places[start] + 10, y + 2, text, size=10, color=INK)
            continue
        drawing.line(places[start], y, places[end], y, SOFT, arrow=True)
        drawing.text((places[start] + places[end]) / 2, y - 4, text, size=10, color=INK, anchor="middle")
    return drawing.svg()
