"""Renderers of model families, and of any chat template; `envsdk.get_renderer` finds them by name.

A family of your own may subclass one of these classes.
"""

from envsdk._arguments import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
