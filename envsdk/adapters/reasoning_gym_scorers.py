"""Which scorers of reasoning-gym are asked about which replies, as their code was read in version 0.1.25.

A scorer that is not listed is never asked: only the data set's own answer is right. That is because the scorer takes no
other; or because it runs a reply as code, to whoever trains a model an open door (`simple_integration`,
`intermediate_integration`, `polynomial_multiplication`, `puzzle24`; `binary_matrix`, `spiral_matrix` and
`string_insertion`, too, for a part of the score); or because it takes long for some replies (`codeio`); or because it
takes wrong ones (`coin_flip`, `figlet_font`, `game_of_life`, `game_of_life_halting`, `letter_jumble`,
`number_sorting`, `puzzle24`, `spell_backward`).
"""

import re
from importlib.metadata import version

_ANY = re.compile(r".*", re.DOTALL)
# A decimal is never "nan", which some take as near to every number, and has no power of ten that takes long to compute.
_UNSIGNED = r"[0-9]{1,100}(?:\.[0-9]{0,100})?"
_DECIMAL = rf"[-+]?{_UNSIGNED}"
_COMPLEX = rf"{_DECIMAL}i?|(?:{_DECIMAL}\s?)?[-+]?\s?(?:{_UNSIGNED})?i"
# These count up to the numbers that stand in a reply.
_MOVES = re.compile(r"(?:[^0-9]|(?<![0-9])[0-9]){0,2000}", re.DOTALL)
# This one tries all values of the names in a reply. What may stand behind a name or a bracket is no other.
_LOGIC = re.compile(r"(?!.*[A-Z)]\s*[A-Z(\u00ac])[A-Z\u2227\u2228\u00ac\u2192\u2194() ]{1,200}")

_ASKED_ABOUT: dict[str, re.Pattern[str]] = {
    "advanced_geometry": _ANY,
    "arc_agi": _ANY,
    "bitwise_arithmetic": _ANY,
    "boxnet": _ANY,
    "calendar_arithmetic": _ANY,
    "chain_sum": _ANY,
    "color_cube_rotation": _ANY,
    "complex_arithmetic": re.compile(_COMPLEX),
    "countdown": re.compile(r"(?!.*\*\*)[0-9+\-*/() ]{1,200}"),  # it runs a reply: this can be no more than a sum
    "cryptarithm": _ANY,
    "decimal_arithmetic": _ANY,
    "decimal_chain_sum": _ANY,
    "dice": _ANY,
    "family_relationships": _ANY,
    "fraction_simplification": re.compile(
        rf"\$?(?:\\d?frac{{{{{_UNSIGNED}}}}}{{{{{_UNSIGNED}}}}}|{_UNSIGNED}\s?/\s?{_UNSIGNED})\$?"
    ),
    "graph_color": _ANY,
    "group_anagrams": _ANY,
    "gsm_symbolic": re.compile(_UNSIGNED),  # it does not see a sign
    "jugs": _ANY,
    "kakurasu": re.compile(r"[01\s]+"),
    "knight_swap": _ANY,
    "knights_knaves": _ANY,
    "manipulate_matrix": _ANY,
    "n_queens": re.compile(r"[Q_\s]+"),  # it runs a reply: this is no code
    "needle_haystack": _ANY,
    "number_format": _ANY,
    "palindrome_generation": _ANY,
    "palindrome_partitioning": _ANY,
    "path_star": _ANY,
    "polynomial_equations": re.compile(rf"{_DECIMAL}(?:,\s?{_DECIMAL}){{0,20}}"),
    "pool_matrix": _ANY,
    "power_function": _ANY,
    "prime_factorization": _ANY,
    "products": _ANY,
    "propositional_logic": _LOGIC,
    "quantum_lock": re.compile(r"[A-Ca-c\u2192>,\s-]+"),
    "rearc": _ANY,
    "rectangle_count": _ANY,
    "rubiks_cube": _MOVES,
    "rush_hour": _MOVES,
    "sentence_reordering": _ANY,
    "shortest_path": _ANY,
    "sokoban": re.compile(r"[UDLR]{1,1000}"),
    "survo": re.compile(r"[0-9\s]+"),
    "time_intervals": _ANY,
    "tower_of_hanoi": _ANY,
    "tsumego": _ANY,
    "word_ladder": _ANY,
    "word_sorting": _ANY,
    "zebra_puzzles": _ANY,
}
_MAX_CHARS = 10_000
_READ_VERSION = "0.1.25"


def may_be_asked(dataset: str, answer: str) -> bool:
    """Whether the scorer of a data set may be asked about an answer, whoever gave it."""
    if version("reasoning-gym") != _READ_VERSION:
        return False  # nobody has read what the scorers of another one do
    pattern = _ASKED_ABOUT.get(dataset)
    return pattern is not None and len(answer) <= _MAX_CHARS and pattern.fullmatch(answer) is not None
