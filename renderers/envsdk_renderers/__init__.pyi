from ._chatml import ChatML as ChatML
from ._chatml import ToolChatML as ToolChatML
from ._fixed_base import FixedBase as FixedBase
from ._harmony import Harmony as Harmony
from ._qwen3 import Qwen3 as Qwen3
from ._replies._formats import register_format as register_format
