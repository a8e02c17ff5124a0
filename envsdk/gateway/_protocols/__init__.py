"""The protocols that programs speak: JSON bodies to `ModelRequest`, and `ModelReply` to JSON bodies or events.

Nothing here does I/O. A server has one handler for all of them:

```python
wire = load_protocol("chat")                            # or "responses", "anthropic"
request = wire.read(body, headers, memory)              # raises RequestError
wire.remember(request, replies, memory, created)
wire.write(request, body, replies, created)             # or wire.events(...) if body.get("stream") is True
wire.stream(request, body, created)                     # or this, to send the events of one reply while it is sampled
wire.error(error)                                       # or wire.error_event(error) in a stream
```
"""

from typing import Any

from ..._packages import load
from ...errors import unknown_name
from ._memory import SessionMemory as SessionMemory
from ._wire import WireFormat as WireFormat

_CLASSES = {"chat": "Chat", "responses": "Responses", "anthropic": "Anthropic"}


def load_protocol(name: str) -> WireFormat:
    """Return a protocol, and import the package that describes its responses (`openai` or `anthropic`).

    Args:
        name: `"chat"` (OpenAI Chat Completions), `"responses"` (OpenAI Responses) or `"anthropic"` (Anthropic
            Messages).

    Raises:
        UnknownName: If the protocol is not known.
        MissingPackage: If its package is not installed.
    """
    if name not in _CLASSES:
        raise unknown_name("protocol", name, _CLASSES)
    module: Any = load(f"{__name__}._{name}", "the gateway needs", "pip install 'envsdk[gateway]'")
    return getattr(module, _CLASSES[name])()
