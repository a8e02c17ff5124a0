"""Run untrusted Python code in a separate process, without network access, with its own files and resource limits.

`run_python` runs a program under `SandboxLimits` and returns a `SandboxResult`. The sandbox needs Linux: bubblewrap or
user namespaces, or else Landlock and seccomp. Each isolation is tested once per process before it is used.
"""

from .._arguments import explain_arguments
from ._isolation import arun_python, check_isolation, run_python
from ._result import Isolation, SandboxLimits, SandboxResult

__all__ = [
    "Isolation",
    "SandboxLimits",
    "SandboxResult",
    "arun_python",
    "check_isolation",
    "run_python",
]

explain_arguments(globals())
