from envsdk import load_tokenizer
from envsdk.rendering.emission import MAX_REMEMBERED, Emission, Encoder


def written(encoder: Encoder, text: str) -> list[int]:
    emission = Emission(encoder)
    emission.scaffold(text)
    return emission.tokens()[0].tolist()


def test_the_cache_of_scaffold_is_bounded_and_changes_nothing() -> None:
    encoder = Encoder(load_tokenizer("embedded"))
    first = written(encoder, "<tool_call>call-0</tool_call>")
    for number in range(2 * MAX_REMEMBERED + 1):
        written(encoder, f"<tool_call>call-{number}</tool_call>")
    sizes = {name: len(memory) for name, memory in vars(encoder).items() if isinstance(memory, dict)}
    assert max(sizes.values()) <= MAX_REMEMBERED, sizes
    assert written(encoder, "<tool_call>call-0</tool_call>") == first
