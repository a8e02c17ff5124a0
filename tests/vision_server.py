"""A vision model on a vLLM server, and what its replies are compared with: the same model in transformers."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from policy_requests import request
from vision_folders import save_qwen_vl
from vllm_server import MODEL_NAME, VLLMServer

import envsdk
from envsdk import Action, Message, Renderer
from envsdk.messages import ImagePart, TextPart
from envsdk.policies import VLLM
from envsdk.rendering._model_images import ModelImages

FAMILIES = {"qwen2_5_vl": "qwen2.5-vl", "qwen3_vl": "qwen3-vl"}
_OPTIONS = ("--max-model-len", "2048", "--enable-prompt-tokens-details")


@dataclass(frozen=True)
class Served:
    """A vision model on a server, the same in transformers, and the renderer of its family."""

    url: str
    folder: Path
    model: Any
    renderer: Renderer

    def ask(self, *parts: TextPart | ImagePart, renderer: Renderer | None = None, **options: Any) -> "Asked":
        """Let the server answer a message, with its log-probabilities and those of transformers."""
        renderer = renderer or self.renderer
        images = [part.data for part in parts if isinstance(part, ImagePart)]
        message = Message(role="user", content=list(parts))
        prompt = renderer.render([message], generation_prompt=True).tokens
        media = tuple(renderer.vision.places(prompt, images))
        given = {"max_tokens": 8, **options}

        async def sample() -> Action:
            async with VLLM(self.url, MODEL_NAME, check=False, seed=1) as policy:
                return await policy(prompt, **request(media=media, **given))

        action = asyncio.run(sample())
        expected = self._logprobs(np.concatenate([prompt, action.tokens]), len(prompt), media)
        return Asked(action, expected, prompt)

    @torch.no_grad()
    def _logprobs(self, tokens: np.ndarray, start: int, media: Any) -> np.ndarray:
        inputs = ModelImages(self.model, self.renderer.vision).inputs(tokens, media)
        logits = self.model(input_ids=torch.as_tensor(tokens).long()[None], **inputs).logits[0, start - 1 : -1]
        return logits.log_softmax(-1).gather(1, torch.as_tensor(tokens[start:]).long()[:, None])[:, 0].numpy()


@dataclass(frozen=True)
class Asked:
    """A reply of the server; the log-probabilities of transformers: float32, shape (n,); the prompt."""

    action: Action
    expected: np.ndarray
    prompt: np.ndarray

    @property
    def difference(self) -> float:
        """The largest difference of a log-probability from that of transformers."""
        return float(np.abs(self.action.logprobs - self.expected).max())


@contextmanager
def serving(template: str, folder: Path) -> Iterator[Served]:
    """Save a small random model of a family to a folder, and serve it."""
    save_qwen_vl(template, folder / "model")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder / "model", dtype=torch.float32).eval()
    renderer = envsdk.get_renderer(FAMILIES[template], envsdk.load_tokenizer(folder / "model"))
    with VLLMServer(folder / "model", folder / "server.log", _OPTIONS) as server:
        yield Served(server.url, folder / "model", model, renderer)
