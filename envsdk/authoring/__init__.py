"""The classes that authors of environments derive from, with their tools, tasks and spaces."""

from .env import Env
from .summarizer import Summarizer

__all__ = ["Env", "Summarizer"]
