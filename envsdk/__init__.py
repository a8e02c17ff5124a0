"""Write multi-turn agent tasks once; every trainer gets token-exact samples.

`__init__.pyi` lists the public names. Each is imported when it is first used, so that `import envsdk` is fast.
"""

from ._arguments import attach

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
