"""Conformance checks for your own environments, renderers and history policies."""

from .._arguments import explain_arguments
from ._environments import EnvCheck, EnvReport, check_env
from ._histories import HistoryReport, check_history
from ._renderers import RendererReport, check_renderer
from ._reports import Check

__all__ = [
    "Check",
    "EnvCheck",
    "EnvReport",
    "HistoryReport",
    "RendererReport",
    "check_env",
    "check_history",
    "check_renderer",
]

explain_arguments(globals())
