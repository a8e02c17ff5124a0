"""`llama-index`: a function agent whose memory is stored, and a sub-agent as a tool."""

import asyncio
import pickle

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.memory import ChatMemoryBuffer
from llama_index.llms.openai_like import OpenAILike
from shell import API_KEY, BASE_URL, IS_RESUMED, MODEL, RESEARCHER, SESSION, SYSTEM, TASK, shell

llm = OpenAILike(
    model=MODEL,
    api_base=BASE_URL,
    api_key=API_KEY,
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=200_000,
)


async def researcher(task: str) -> str:
    """Let a sub-agent work on a task."""
    return str(await FunctionAgent(tools=[shell], llm=llm, system_prompt=RESEARCHER).run(task))


async def main() -> None:
    agent = FunctionAgent(tools=[shell, researcher], llm=llm, system_prompt=SYSTEM)
    past = pickle.loads(SESSION.read_bytes()) if IS_RESUMED else []
    memory = ChatMemoryBuffer.from_defaults(chat_history=past, llm=llm)
    print(await agent.run(TASK, memory=memory))
    SESSION.write_bytes(pickle.dumps(memory.get_all()))


asyncio.run(main())
