"""What a customer takes from an agent's message: facts, and what the agent asks for.

What it asks for is found by plain rules over words, sentence by sentence. A question that is missed costs a turn and no
more, since a customer who does not know what to say tells what it was not asked for.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from .figures import MAX_CHARS, is_crowded, tells
from .tasks import Subject, Wish

Asked: TypeAlias = Subject | Literal["identity", "email", "name", "postal_code"]

_SENTENCE = re.compile(r"(?<=[.!?])[\"')*]*\s+|\n+")
_ASKS = re.compile(
    r"\?|^(and |so |also )?(what|which|who|where|why|how)\b"
    r"|\b(please|could you|can you|would you|need|require|tell me|let me know|give me|share|send me|provide|specify"
    r"|confirm)\b"
)
_ASKED: dict[Asked, re.Pattern[str]] = {
    "identity": re.compile(r"identi|verif|who (you are|am i)|your (account|profile|customer|details)"),
    "email": re.compile(r"\be-?mail"),
    "name": re.compile(r"\b(full|first|last|your|the|and) names?\b(?! of)|^names?\b"),
    "postal_code": re.compile(r"\bpost(al)?[ -]?code|\bzip"),
    "order": re.compile(
        r"\border('s)? ?(number|id\b|no\b|code|ref)|\b(which|what|whose) orders?\b"
        r"|\b(number|id) of (the|your|that|this) order|\border (is it|do you mean|are you|would you)"
    ),
    "item": re.compile(r"\b(items?|products?|articles?|pieces?)\b|\bwhich ones?\b"),
    "option": re.compile(
        r"\bvariants?\b|colou?r|\bsizes?\b|\boptions?\b|\bversions?\b|\binstead\b|exchange (it|them) for"
    ),
    "address": re.compile(r"\baddress|\bstreet|\bcity\b|\bwhere (to|should|shall|do|would)\b"),
    "reason": re.compile(r"\breasons?\b|\bwhy\b|what is wrong|what happened"),
    "refund": re.compile(
        r"payment method|refund(ed)? (it |you )?to\b|(money|refund) .{0,20}\b(go|sent|paid)\b|\bpaypal\b"
    ),
}
_IDENTITY = r"(me |with me |us )?(your|the) (full |order |e-?mail|name|identi|postal|zip|details|account)"
_CONFIRMS = re.compile(
    r"\b(proceed|go ahead|(shall|should) (i|we)|(want|like) (me|us) to|do you (confirm|agree|accept|consent)"
    r"|(do|would) you (still )?(want|wish|like) to|sound(s)? good|your (confirmation|consent|approval|go-ahead))\b"
    r"|\b(is|are) (this|that|it|these|those|everything|all|all of this)\b[^?]{0,40}\?"
    r"|\b(correct|right|ok|okay|yes)\b[^?]{0,20}\?|\breply (with )?['\"]?yes|\(yes"
    rf"|\bconfirm\b(?! {_IDENTITY})"
)
_ELSE = re.compile(
    r"\b(any|some)thing else\b|\bwhat else\b|\b(any|other|further|more) (questions?|requests?|concerns?|help|assist)"
)
_REFUSES = re.compile(
    r"\b(cannot|can't|can not|couldn't|could not|unable|not able|won't be able|no longer (be|possible|available)"
    r"|out of stock|sold out|unavailable|impossible|too late|expired|refuse|decline|against (our|the) policy)\b"
    r"|\b(not|isn't|aren't) (be )?(possible|allowed|eligible|permitted|available|offered|in stock|accepted|returnable)"
    r"|\bfinal sale\b|\b(can|may|must) only\b|\bonly (be|to|go|goes|possible)\b|\boriginal (payment )?method\b"
)
_DONE = re.compile(
    r"\b(cancell?ed|changed|updated|exchanged|returned|refunded|registered|processed|completed|submitted|transferred"
    r"|escalated|redirected|arranged|initiated|issued|opened|created|done|ticket)\b"
)
_NOT_DONE = re.compile(
    r"\b(can|could|will|would|shall|should|if|once|when|after|before|not|may|must|to be|cannot|until|unless|want)\b"
    r"|n't\b|'ll\b|\?"
)
_INTENDS = re.compile(r"\bi( wi|')ll\b|\bi( would|'d)\b|\bi( am|'m) (about|going) to\b|\bi can\b|\blet me\b")
_OPEN = re.compile(r"(and |so |also )?(what|which|who|where|why|how)\b")


class Understood(NamedTuple):
    """What an agent's message says, as far as a customer has to react to it."""

    asked: tuple[Asked, ...]
    """What it asks for."""
    confirms: bool
    """Whether it asks for a yes."""
    refuses: bool
    """Whether it says that something is not possible."""
    is_done: bool
    """Whether it says that something has been done."""
    intends: bool
    """Whether it says what the agent is about to do."""
    offers_more: bool
    """Whether it asks for further wishes."""


def understand(text: str) -> Understood:
    """Read a message."""
    asked: list[Asked] = []
    confirms = refuses = is_done = intends = offers_more = False
    for sentence in _SENTENCE.split(_plain(text)):
        if _ELSE.search(sentence):
            offers_more = True
            continue
        refuses = refuses or _REFUSES.search(sentence) is not None
        if _ASKS.search(sentence):
            asked += _subjects(sentence)
            confirms = confirms or (_OPEN.match(sentence) is None and _CONFIRMS.search(sentence) is not None)
        else:
            intends = intends or _INTENDS.search(sentence) is not None
            is_done = is_done or (_DONE.search(sentence) is not None and _NOT_DONE.search(sentence) is None)
    return Understood(tuple(dict.fromkeys(asked)), confirms, refuses, is_done, intends, offers_more)


def _subjects(sentence: str) -> list[Asked]:
    sentence = re.sub(r"\be-?mail address(es)?", "e-mail", sentence)
    return [subject for subject, pattern in _ASKED.items() if pattern.search(sentence)]


def _plain(text: str) -> str:
    return text[:MAX_CHARS].replace("’", "'").casefold()


class Ears:
    """Keeps what of the facts a customer has heard.

    Args:
        wishes: Whose facts and secrets they are.
    """

    def __init__(self, wishes: Sequence[Wish]) -> None:
        self._wishes = wishes
        self._missing = [list(wish.facts) for wish in wishes]
        self._leaked = [False] * len(wishes)

    def listen(self, text: str, only: int | None = None) -> bool:
        """Hear a message.

        Args:
            text: The message.
            only: The wish whose facts count; None: all.

        Returns:
            Whether it says anything new.
        """
        for index, wish in enumerate(self._wishes):
            self._leaked[index] |= any(tells(text, secret.value) for secret in wish.secrets)
        if is_crowded(text):
            return False
        is_new = False
        for index in range(len(self._wishes)) if only is None else (only,):
            left = [fact for fact in self._missing[index] if not tells(text, fact.value)]
            is_new = is_new or len(left) < len(self._missing[index])
            self._missing[index] = left
        return is_new

    def knows(self, index: int) -> bool:
        """Whether all facts of a wish were told."""
        return not self._missing[index]

    def share(self) -> float:
        """The share of wishes of which all facts, and no secrets, were told."""
        told = [self.knows(index) and not self._leaked[index] for index in range(len(self._wishes))]
        return sum(told) / len(told)
