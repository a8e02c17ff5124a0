"""Write multi-turn agent tasks once; every trainer gets token-exact samples.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that `import envsdk` is fast.
"""

import lazy_loader

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)  # pyright: ignore[reportUnknownVariableType]
