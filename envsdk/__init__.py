"""Write multi-turn agent tasks once; every trainer gets token-exact samples.

Names are imported when they are first used, so that `import envsdk` is fast and light.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_MODULE_OF = {
    "Action": "action",
    "Observation": "action",
    "Break": "action",
    "Env": "env",
    "EnvConfig": "env",
    "ToolEnv": "tool_env",
    "ToolEnvConfig": "tool_env",
    "Tool": "tools",
    "tool": "tools",
    "Turn": "turn",
    "Handoff": "handoff",
    "HandoffResult": "handoff",
    "Limits": "limits",
    "StopReason": "limits",
    "Message": "messages",
    "ToolCall": "messages",
    "UndeclaredBreak": "errors",
    "Trajectory": "trajectory",
    "Sample": "samples",
    "Renderer": "renderer",
    "HistoryPolicy": "history",
    "make": "registry",
    "register_env": "registry",
    "list_envs": "registry",
    "register_renderer": "registry",
    "get_renderer": "registry",
    "list_renderers": "registry",
    "load_tokenizer": "tokenizers",
    "rollout": "rollouts",
    "arollout": "rollouts",
    "tree_batch": "tree",
    "sft_samples": "sft",
}
_SUBPACKAGES = ("history", "rollouts", "trainers", "credit", "rewards", "sandbox", "diagnostics", "testing", "errors")

__all__ = [*_MODULE_OF, *_SUBPACKAGES]  # pyright: ignore[reportUnsupportedDunderAll]

if TYPE_CHECKING:
    from . import credit as credit
    from . import diagnostics as diagnostics
    from . import errors as errors
    from . import history as history
    from . import rewards as rewards
    from . import rollouts as rollouts
    from . import sandbox as sandbox
    from . import testing as testing
    from . import trainers as trainers
    from .action import Action as Action
    from .action import Break as Break
    from .action import Observation as Observation
    from .env import Env as Env
    from .env import EnvConfig as EnvConfig
    from .errors import UndeclaredBreak as UndeclaredBreak
    from .handoff import Handoff as Handoff
    from .handoff import HandoffResult as HandoffResult
    from .history import HistoryPolicy as HistoryPolicy
    from .limits import Limits as Limits
    from .limits import StopReason as StopReason
    from .messages import Message as Message
    from .messages import ToolCall as ToolCall
    from .registry import get_renderer as get_renderer
    from .registry import list_envs as list_envs
    from .registry import list_renderers as list_renderers
    from .registry import make as make
    from .registry import register_env as register_env
    from .registry import register_renderer as register_renderer
    from .renderer import Renderer as Renderer
    from .rollouts import arollout as arollout
    from .rollouts import rollout as rollout
    from .samples import Sample as Sample
    from .sft import sft_samples as sft_samples
    from .tokenizers import load_tokenizer as load_tokenizer
    from .tool_env import ToolEnv as ToolEnv
    from .tool_env import ToolEnvConfig as ToolEnvConfig
    from .tools import Tool as Tool
    from .tools import tool as tool
    from .trajectory import Trajectory as Trajectory
    from .tree import tree_batch as tree_batch
    from .turn import Turn as Turn


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        value = getattr(importlib.import_module(f".{_MODULE_OF[name]}", __name__), name)
    elif name in _SUBPACKAGES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
