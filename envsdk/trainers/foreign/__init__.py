"""The conversion of another system's log to a `Trajectory`.

Three readers have one core, the writer of steps whose context and delta are known: `from_steps` finds the contexts of
full prompts by their tokens, `envsdk.gateway.from_requests` by what the requests mean, and `from_atif` reads documents.
"""

from ..._arguments import explain_arguments
from ._steps import LoggedStep, from_steps

__all__ = ["LoggedStep", "from_steps"]

explain_arguments(globals())
