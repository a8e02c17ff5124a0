"""The scorers of reasoning-gym that may score a reply, from a review of their code in version 0.1.25.

A scorer that is not listed is never used: only the data set's own answer is correct. Its scorer either accepts no other
answer; or runs a reply as code, which a trained model can exploit (`simple_integration`, `intermediate_integration`,
`polynomial_multiplication`, `puzzle24`; for a part of the score, also `binary_matrix`, `spiral_matrix` and
`string_insertion`); or is slow for some replies (`codeio`); or accepts wrong answers (`coin_flip`, `figlet_font`,
`game_of_life`, `game_of_life_halting`, `letter_jumble`, `number_sorting`, `puzzle24`, `spell_backward`).
"""

import re
from importlib.metadata import version

_ANY = re.compile(r".*", re.DOTALL)
# This excludes "nan", which some scorers treat as close to every number, and powers of ten that are slow to compute.
_UNSIGNED = r"[0-9]{1,100}(?:\.[0-9]{0,100})?"
_DECIMAL = rf"[-+]?{_UNSIGNED}"
_COMPLEX = rf"{_DECIMAL}i?|(?:{_DECIMAL}\s?)?[-+]?\s?(?:{_UNSIGNED})?i"
# These scorers count up to the numbers in a reply.
_MOVES = re.compile(r"(?:[^0-9]|(?<![0-9])[0-9]){0,2000}", re.DOTALL)
# This scorer tries all values of the names in a reply. No name or bracket follows another one directly.
_LOGIC = re.compile(r"(?!.*[A-Z)]\s*[A-Z(\u00ac])[A-Z\u2227\u2228\u00ac\u2192\u2194() ]{1,200}")

_ALLOWED_ANSWERS: dict[str, re.Pattern[str]] = {
    "advanced_geometry": _ANY,
    "arc_agi": _ANY,
    "bitwise_arithmetic": _ANY,
    "boxnet": _ANY,
    "calendar_arithmetic": _ANY,
    "chain_sum": _ANY,
    "color_cube_rotation": _ANY,
    "complex_arithmetic": re.compile(_COMPLEX),
    "countdown": re.compile(r"(?!.*\*\*)[0-9+\-*/() ]{1,200}"),  # it runs a reply as code: this allows only arithmetic
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
    "gsm_symbolic": re.compile(_UNSIGNED),  # it ignores a sign
    "jugs": _ANY,
    "kakurasu": re.compile(r"[01\s]+"),
    "knight_swap": _ANY,
    "knights_knaves": _ANY,
    "manipulate_matrix": _ANY,
    "n_queens": re.compile(r"[Q_\s]+"),  # it runs a reply as code: this allows none
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
_REVIEWED_VERSION = "0.1.25"


def may_score(dataset: str, answer: str) -> bool:
    """Return whether the scorer of a data set is safe and correct for an untrusted answer."""
    if version("reasoning-gym") != _REVIEWED_VERSION:
        return False  # the scorers of other versions have not been reviewed
    pattern = _ALLOWED_ANSWERS.get(dataset)
    return pattern is not None and len(answer) <= _MAX_CHARS and pattern.fullmatch(answer) is not None
