from envsdk import get_renderer, load_tokenizer


def test_a_tokenizer_names_itself_and_the_number_of_its_ids() -> None:
    assert repr(load_tokenizer("embedded")) == "<Tokenizer 'embedded', 4,096 ids>"


def test_a_renderer_names_its_class_and_its_tokenizer() -> None:
    assert repr(get_renderer("chatml", "embedded")) == "<ChatML renderer, tokenizer 'embedded'>"


def test_a_renderer_shows_the_options_that_differ_from_their_defaults() -> None:
    renderer = get_renderer("qwen3", "embedded", enable_thinking=False)
    assert repr(renderer) == "<Qwen3 renderer, tokenizer 'embedded', enable_thinking=False>"


def test_a_long_option_is_shortened() -> None:
    template = "{% for m in messages %}{{ m.role + m.content + '<|im_end|>' }}{% endfor %}" + 1000 * " "
    renderer = get_renderer("fixed_base", "embedded", template=template, stop="<|im_end|>")
    assert repr(renderer).startswith("<FixedBase renderer, tokenizer 'embedded', template='{% for")
    assert len(repr(renderer)) < 200
