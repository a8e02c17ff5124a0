"""Run untrusted Python code: in a process of its own, without network, with files of its own, within limits.

`run_python` runs a program; `SandboxLimits` says what it may use, `SandboxResult` what came of it. It needs Linux:
bubblewrap or user namespaces, or else Landlock and seccomp. Whatever isolates is tried out, once, before it is trusted.
"""

from ..errors import SandboxError, SandboxUnavailable
from .isolation import check_isolation
from .limits import Isolation, SandboxLimits
from .result import Limit, SandboxResult
from .run import arun_python, run_python

__all__ = [
    "Isolation",
    "Limit",
    "SandboxError",
    "SandboxLimits",
    "SandboxResult",
    "SandboxUnavailable",
    "arun_python",
    "check_isolation",
    "run_python",
]
