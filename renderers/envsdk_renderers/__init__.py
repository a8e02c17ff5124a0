"""Renderers of model families, and of any chat template; `envsdk.get_renderer` finds them by name.

A family of your own may subclass one of these classes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # pyright: ignore[reportUnknownVariableType]
