"""A policy that does what the last message commands, in front of which faults of clients and of models are tested."""

import asyncio
import re
from typing import Any

import numpy as np

import envsdk
from envsdk import Action, Message

SECRET = "swordfish"
_SAID = re.compile(r"<\|im_start\|>user\n(?:<tool_response>\n)?(.*?)(?:\n</tool_response>)?<\|im_end\|>", re.DOTALL)


class Commanded:
    """Replies with what was said last.

    `fail` raises an error, `hang` never ends, `hang once` does not when it is said first, `sleep` takes half a second,
    `long` has a reply that no socket buffers as a whole, and `tasks` is answered with the number of tasks
    in the event loop.

    Args:
        renderer: The name of the renderer of the environment.

    Attributes:
        hanging: How many calls hang now.
        canceled: How many calls that hung were canceled.
        is_closed: Whether it was closed.
    """

    tokenizer = "any"

    def __init__(self, renderer: str = "qwen3") -> None:
        self._renderer = envsdk.get_renderer(renderer, "embedded")
        self.hanging = self.canceled = 0
        self.is_closed = False

    async def __call__(self, prompt: Any, **_: Any) -> Action:
        said = "".join(_SAID.findall(self._renderer.tokenizer.decode(prompt))[-1:])
        if said == "fail":
            raise RuntimeError(f"no GPU: {SECRET}")
        if said == "hang" or (said == "hang once" and not self.canceled):
            await self._hang()
        await asyncio.sleep(0.5 if said == "sleep" else 0)
        texts = {"tasks": f"{len(asyncio.all_tasks())} tasks", "long": ("=" * 63 + " ") * 50_000}
        message = Message(role="assistant", content=texts.get(said, f"answer to {said}"), reasoning="")
        tokens = self._renderer.reply(message)
        return Action(tokens, np.full(len(tokens), -0.5))

    async def _hang(self) -> None:
        self.hanging += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled += 1
            raise
        finally:
            self.hanging -= 1

    async def aclose(self) -> None:
        self.is_closed = True
