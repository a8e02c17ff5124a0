"""The classes that authors of environments derive from, with their tools, tasks and spaces."""

from .env import Env
from .machinery import EnvConfig
from .summarizer import Summarizer
from .tool_env import ToolEnv, ToolEnvConfig
from .tools import Tool, tool

__all__ = ["Env", "EnvConfig", "Summarizer", "Tool", "ToolEnv", "ToolEnvConfig", "tool"]
