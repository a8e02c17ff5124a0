"""A policy that samples in batches: the replies that episodes request at the same time are sampled together.

It knows nothing about environments and trainers. Prompts that begin alike share what was computed for them.
"""
# pyright: basic, reportMissingImports=false

import asyncio
import hashlib
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from envsdk import Action

WAIT_S = 0.05
"""A batch begins when no reply was requested for this long, in seconds."""


class Request(NamedTuple):
    """A reply that is requested."""

    prompt: np.ndarray
    rng: np.random.Generator
    stop: tuple[int, ...]
    room: int
    reply: asyncio.Future


class BatchedPolicy:
    """Sample from the model of a trainer at temperature 1. `refresh` it when the weights have changed."""

    def __init__(self, model: Any, tokenizer: Any, seed: int, max_tokens: int) -> None:
        self.model, self.tokenizer, self.seed, self.max_tokens = model, tokenizer, seed, max_tokens
        self._waiting: list[Request] = []
        self.refresh(0)

    def refresh(self, version: int) -> None:
        """Forget what was computed with earlier weights."""
        self._version = version
        self._known: list[tuple[np.ndarray, torch.Tensor]] = []  # tokens, and their keys and values

    async def __call__(
        self, prompt: np.ndarray, *, episode_id: str, stop_token_ids: tuple[int, ...], max_tokens: int | None, **_: Any
    ) -> Action:
        """Sample a reply; the same seed, episode, prompt and version draw the same random numbers."""
        name = repr((self.seed, self._version, episode_id, prompt.tolist())).encode()
        rng = np.random.default_rng(int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little"))
        room = min(self.max_tokens, max_tokens or self.max_tokens)
        request = Request(prompt, rng, stop_token_ids, room, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        count = 0
        while not request.reply.done() and count < len(self._waiting):  # the last one to come starts the batch
            count = len(self._waiting)
            await asyncio.sleep(WAIT_S)
        if not request.reply.done() and self._waiting and self._waiting[-1] is request:
            batch, self._waiting = self._waiting, []
            with torch.no_grad():
                self._sample(batch)
        return await request.reply

    def _sample(self, batch: list[Request]) -> None:
        """Sample the replies of a batch, token by token."""
        prompts = [request.prompt[:-1] for request in batch]
        if not self._known:
            self._compute(prompts[:1])
        self._compute(list({prompt.tobytes(): prompt for prompt in prompts}.values()))
        lengths = [len(request.prompt) for request in batch]
        cache, seen = self._joined(prompts)
        replies: list[tuple[list[int], list[float]]] = [([], []) for _ in batch]
        last, going = [int(request.prompt[-1]) for request in batch], list(range(len(batch)))
        while going:
            seen = torch.cat([seen, torch.ones(len(going), 1, dtype=torch.long)], 1)
            positions = torch.tensor([[lengths[i] - 1 + len(replies[i][0])] for i in going])
            inputs = {"input_ids": torch.tensor([[last[i]] for i in going]), "position_ids": positions}
            logits = self.model(**inputs, attention_mask=seen, past_key_values=cache, use_cache=True).logits[:, -1]
            logprobs = logits.float().log_softmax(-1).numpy()
            left: list[int] = []
            for row, i in enumerate(going):
                cumulative = np.cumsum(np.exp(logprobs[row], dtype=np.float64))
                token = int(np.searchsorted(cumulative, batch[i].rng.random() * cumulative[-1], side="right"))
                replies[i][0].append(token)
                replies[i][1].append(float(logprobs[row, token]))
                last[i] = token
                if token in batch[i].stop or len(replies[i][0]) == batch[i].room:
                    self._finish(batch[i], *replies[i], _row(cache, row, seen[row]))
                else:
                    left.append(row)
            if len(left) < len(going):
                kept = torch.tensor(left, dtype=torch.long)
                cache.batch_select_indices(kept)
                seen, going = seen[kept], [going[row] for row in left]

    def _finish(self, request: Request, tokens: list[int], logprobs: list[float], computed: torch.Tensor) -> None:
        """Keep what was computed for a reply, and return it."""
        self._known.append((np.concatenate([request.prompt, tokens[:-1]]), computed))
        reason = "stop" if tokens[-1] in request.stop else "length"
        action = Action(np.array(tokens, np.int32), np.array(logprobs, np.float32), reason, 1.0, self._version)
        request.reply.set_result(action)

    def _compute(self, prompts: list[np.ndarray]) -> None:
        """Compute the keys and values of prompts, apart from those that are known."""
        starts = [self._longest(prompt)[0] for prompt in prompts]
        found = [(prompt, start) for prompt, start in zip(prompts, starts, strict=True) if start < len(prompt)]
        if not found:
            return
        cache, seen = self._joined([prompt[:start] for prompt, start in found])
        width = max(len(prompt) - start for prompt, start in found)
        ids, positions, new = (torch.zeros(len(found), width, dtype=torch.long) for _ in range(3))
        for row, (prompt, start) in enumerate(found):
            ids[row, start - len(prompt) :] = torch.from_numpy(prompt[start:].astype(np.int64))
            positions[row, start - len(prompt) :] = torch.arange(start, len(prompt))
            new[row, start - len(prompt) :] = 1
        seen = torch.cat([seen, new], 1)
        inputs = {"input_ids": ids, "position_ids": positions, "attention_mask": seen}
        self.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
        for row, (prompt, _) in enumerate(found):
            self._known.append((prompt, _row(cache, row, seen[row])))

    def _joined(self, prompts: list[np.ndarray]) -> tuple[Any, torch.Tensor]:
        """Return the known keys and values of prompts as one cache, padded at the left, and its attention mask."""
        width, cache = max(map(len, prompts)), DynamicCache()
        if width:
            stored = [self._longest(prompt)[1][..., : len(prompt), :] for prompt in prompts]
            padded = [torch.nn.functional.pad(own, (0, 0, width - own.shape[-2], 0)) for own in stored]
            for layer, (keys, values) in enumerate(torch.stack(padded, 2)):
                cache.update(keys, values, layer)
        return cache, torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])

    def _longest(self, tokens: np.ndarray) -> tuple[int, Any]:
        """Return how many of the tokens are known, and the keys and values that begin with them."""
        best: tuple[int, Any] = (0, None)
        for known, stored in reversed(self._known):
            length = min(len(known), len(tokens))
            differ = np.flatnonzero(known[:length] != tokens[:length])
            shared = int(differ[0]) if len(differ) else length
            best = max(best, (shared, stored), key=lambda found: found[0])
        return best


def _row(cache: Any, row: int, seen: torch.Tensor) -> torch.Tensor:
    """Return the keys and values of one row without padding: shape (layers, 2, heads, length, size)."""
    own = seen.bool()
    return torch.stack([torch.stack([layer.keys[row][:, own], layer.values[row][:, own]]) for layer in cache.layers])
