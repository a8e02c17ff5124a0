"""What an encoder remembers of the scaffold: it changes nothing, and it is bounded."""

from envsdk import load_tokenizer
from envsdk.rendering.emission import MAX_REMEMBERED, Emission, Encoder


def written(encoder: Encoder, text: str) -> list[int]:
    emission = Emission(encoder)
    emission.scaffold(text)
    return emission.tokens()[0].tolist()


def test_however_many_texts_are_scaffold_few_are_remembered() -> None:
    encoder = Encoder(load_tokenizer("embedded"))
    for number in range(2 * MAX_REMEMBERED + 1):
        written(encoder, f"<tool_call>call-{number}</tool_call>")
    sizes = {name: len(memory) for name, memory in vars(encoder).items() if isinstance(memory, dict)}
    assert max(sizes.values()) <= MAX_REMEMBERED, sizes


def test_what_was_forgotten_is_written_as_before() -> None:
    encoder = Encoder(load_tokenizer("embedded"))
    first = written(encoder, "<tool_call>call-0</tool_call>")
    for number in range(MAX_REMEMBERED):
        written(encoder, f"<tool_call>call-{number}</tool_call>")
    assert written(encoder, "<tool_call>call-0</tool_call>") == first
