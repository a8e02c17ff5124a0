"""The protocols that programs speak: JSON bodies to `ModelRequest`, and `ModelReply` to JSON bodies or events.

Nothing here does I/O. A server has one handler for all of them:

```python
wire = WIRE_FORMATS["chat"]                                # or "responses", "anthropic", "google"
request = wire.read(body, headers, memory)              # raises RequestError
wire.remember(request, replies, memory, created)
wire.write(request, body, replies, created)             # or wire.events(...) if body.get("stream") is True
wire.stream(request, body, created)                     # or this, to send the events of one reply while it is sampled
wire.error(error)                                       # or wire.error_event(error) in a stream
```
"""

from ._anthropic import Anthropic
from ._chat import Chat
from ._google import Google
from ._memory import SessionMemory as SessionMemory
from ._responses import Responses
from ._wire import WireFormat as WireFormat

WIRE_FORMATS: dict[str, WireFormat] = {
    "chat": Chat(),
    "responses": Responses(),
    "anthropic": Anthropic(),
    "google": Google(),
}
"""OpenAI's Chat Completions and Responses, Anthropic's Messages, and Google's generateContent."""
