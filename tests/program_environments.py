"""Agent programs that the tests of trainers run: `Continuing` keeps to one conversation, `Trimming` does not."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import openai

from envsdk.gateway import Endpoint, ProgramEnv

RULES, TASK = "You count apples.", "There are {} apples in the first basket, and two more in each of the others."
QUESTIONS = ("How many are in the second basket? Show how you found it.", "And how many are there in the third one?")


class Chat:
    """A conversation that a program has with the model: it sends all messages each time, as clients do."""

    def __init__(self, client: openai.AsyncOpenAI, system: str) -> None:
        self.messages: list[dict[str, str]] = [{"role": "system", "content": system}]
        self._client = client

    async def ask(self, question: str) -> str:
        self.messages.append({"role": "user", "content": question})
        completion = await self._client.chat.completions.create(model="any", messages=self.messages)  # type: ignore[arg-type]
        reply = completion.choices[0].message.content or ""
        self.messages.append({"role": "assistant", "content": reply})
        return reply


@asynccontextmanager
async def client_of(model: Endpoint) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=model.base_url, api_key=model.api_key, max_retries=0) as client:
        yield client


def brevity(chat: Chat) -> float:
    """Return a reward that differs between episodes."""
    replies = [message["content"] for message in chat.messages if message["role"] == "assistant"]
    return 1 / (1 + sum(map(len, replies)))


class Continuing(ProgramEnv):
    """Asks three questions in one conversation: an episode is one sample."""

    reward_range = (0.0, 1.0)

    async def run(self, model: Endpoint) -> float:
        async with client_of(model) as client:
            chat = Chat(client, RULES)
            await chat.ask(TASK.format(self.np_random.integers(100)))
            await chat.ask(QUESTIONS[0])
            await chat.ask(QUESTIONS[1])
            return brevity(chat)


class Trimming(ProgramEnv):
    """Asks a sub-agent in between, and then goes on without its first exchange: an episode is three samples."""

    reward_range = (0.0, 1.0)

    async def run(self, model: Endpoint) -> float:
        async with client_of(model) as client:
            chat = Chat(client, RULES)
            await chat.ask(TASK.format(self.np_random.integers(100)))
            await chat.ask(QUESTIONS[0])
            await Chat(client, "You check what others have counted.").ask("Is the second basket counted correctly?")
            del chat.messages[1:3]
            await chat.ask(QUESTIONS[1])
            return brevity(chat)
