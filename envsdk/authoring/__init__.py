"""The classes that authors of environments derive from, with their tools, tasks and spaces."""

from .._arguments import explain_arguments
from ._embedded_vision import EMBEDDED_VISION
from ._making import find_class
from ._trust import NeedsTrust

__all__ = ["EMBEDDED_VISION", "NeedsTrust", "find_class"]

explain_arguments(globals())
