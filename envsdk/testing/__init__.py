"""Conformance checks for your own environments and renderers."""

from .environments import EnvCheck, EnvReport, check_env
from .renderers import RendererReport, check_renderer
from .reports import Check

__all__ = ["Check", "EnvCheck", "EnvReport", "RendererReport", "check_env", "check_renderer"]
