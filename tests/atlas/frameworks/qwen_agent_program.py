"""`qwen-agent`: an assistant with its own prompt for calls of tools."""

import json

from qwen_agent.agents import Assistant
from qwen_agent.tools.base import BaseTool, register_tool
from shell import API_KEY, BASE_URL, IS_RESUMED, MODEL, SESSION, SYSTEM, TASK
from shell import shell as run


@register_tool("shell")
class Shell(BaseTool):
    """A tool of the framework."""

    description = "Run a command of the shell."
    parameters = {  # noqa: RUF012
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The command."}},
        "required": ["command"],
    }

    def call(self, params: str, **_: object) -> str:
        return run(json.loads(params)["command"])


llm = {"model": MODEL, "model_server": BASE_URL, "api_key": API_KEY, "model_type": "oai"}
agent = Assistant(llm=llm, function_list=["shell"], system_message=SYSTEM)
messages = [*(json.loads(SESSION.read_text()) if IS_RESUMED else []), {"role": "user", "content": TASK}]
replies = list(agent.run(messages))[-1]
print(replies[-1]["content"])
SESSION.write_text(json.dumps([*messages, *replies]))
