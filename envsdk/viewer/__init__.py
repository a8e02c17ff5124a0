"""Pages that show runs, episodes and tokens, and the data that any front end needs for that.

A `Source` reads a run, also while it is written. A `Filter` selects rows of the list of episodes. `episode` and
`context_tokens` return everything about one episode as JSON, and `drawing` its contexts as lines of text.
"""

from .._arguments import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
