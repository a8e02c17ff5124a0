"""The classes that authors of environments derive from, with their tools, tasks and spaces."""

from .embedded_vision import EMBEDDED_VISION
from .env import Env
from .summarizer import Summarizer
from .trust import NeedsTrust

__all__ = ["EMBEDDED_VISION", "Env", "NeedsTrust", "Summarizer"]
