"""Conformance checks for your own environments, renderers and history policies."""

from .environments import EnvCheck, EnvReport, check_env
from .histories import HistoryReport, check_history
from .renderers import RendererReport, check_renderer
from .reports import Check

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
