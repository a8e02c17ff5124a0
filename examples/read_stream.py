"""Read a reply token by token, and print what each token adds: reasoning, content and tool calls.

Run it with `python examples/read_stream.py`. `reader.end()` returns the message that `renderer.parse` returns.
"""

import envsdk
from envsdk import Message, ToolCall
from envsdk.rendering.reading import CallEnded, ContentText, ReadingError, ReasoningText, ReplyRead

PARAMETERS = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
PRICE = {
    "type": "function",
    "function": {"name": "price", "description": "Look up a price.", "parameters": PARAMETERS},
}


def main() -> None:
    """Read a reply token by token, as if a model sampled it now."""
    renderer = envsdk.get_renderer("qwen3", "embedded")
    prompt = renderer.render([Message(role="user", content="What is a pen?")], tools=[PRICE], generation_prompt=True)
    call = ToolCall(name="price", arguments={"item": "pen"})
    sampled = renderer.reply(
        Message(role="assistant", reasoning="I look it up.", content="One moment.", tool_calls=(call,))
    )
    reader = renderer.reader(tools=[PRICE], prompt_tail=prompt.tokens[prompt.starts[-1] :])
    for position, token in enumerate(sampled):
        for event in reader.feed(token):
            match event:
                case ReasoningText(text):
                    print(f"{position:3} reasoning {text!r}")
                case ContentText(text):
                    print(f"{position:3} content   {text!r}")
                case CallEnded(_, call):
                    print(f"{position:3} call      {call.name}({call.arguments})")
                case ReadingError():
                    print(f"{position:3} {event}")
                case _:
                    pass
    *_, last = reader.end()
    assert isinstance(last, ReplyRead)
    assert last.message == renderer.parse(sampled, tools=[PRICE], prompt_tail=prompt.tokens[prompt.starts[-1] :])
    print(f"the message: {last.message.content!r} with {len(last.message.tool_calls)} call")


if __name__ == "__main__":
    main()
