"""What a proxy would log that knows only requests and replies: it renders each request anew, with the chat template."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import real_models
import transformers

from envsdk import Message, Renderer, get_renderer
from envsdk.gateway._requests import ModelRequest
from envsdk.trainers.foreign import LoggedStep, from_steps
from envsdk.trajectories._trajectory import Trajectory

from .cases import Run

Render = Callable[[ModelRequest], "np.ndarray[Any, Any]"]
"""Renders the messages of a request, as the program sent them, with its tools and a generation prompt."""


def by_template(request: ModelRequest) -> "np.ndarray[Any, Any]":
    """Render as an inference server does: with the model's own chat template, which drops earlier reasoning."""
    text = _tokenizer().apply_chat_template(
        [message.to_openai() for message in _messages(request)],
        tools=list(request.tools) or None,
        add_generation_prompt=True,
        tokenize=False,
    )
    return np.asarray(_tokenizer().encode(text, add_special_tokens=False), dtype=np.int32)


def keeping_reasoning(request: ModelRequest) -> "np.ndarray[Any, Any]":
    """Render with the same template, changed so that it keeps the reasoning that the program sent back."""
    return _renderer().render(_messages(request), tools=request.tools, generation_prompt=True, history="keep").tokens


def proxied(run: Run, render: Render) -> Trajectory:
    """Return what a merge of token prefixes makes of a run.

    Each request that was answered is a step of the log, in order: its prompt is the rendered request, its action is
    what the model sampled in our run.
    """
    return from_steps(
        LoggedStep(render(asked.request), reply.tokens, np.zeros(len(reply.tokens)))
        for asked in run.asked
        for reply in asked.replies
    )


def _messages(request: ModelRequest) -> list[Message]:
    system = [] if request.system is None else [Message(role="system", content=request.system)]
    return [*system, *(received.message for received in request.messages)]


@cache
def _tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(real_models.qwen3_folder())


@cache
def _renderer() -> Renderer:
    return get_renderer("qwen3", real_models.qwen3_folder())
