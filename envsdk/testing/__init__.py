"""Checks that a renderer of one's own, or an environment of one's own, does what every one must."""

from .environments import EnvCheck, EnvReport, check_env
from .renderers import RendererReport, check_renderer
from .reports import Check

__all__ = ["Check", "EnvCheck", "EnvReport", "RendererReport", "check_env", "check_renderer"]
