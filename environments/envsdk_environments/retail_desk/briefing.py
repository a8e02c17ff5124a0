"""What a language model is told that plays the customer: what a customer knows, and nothing else."""

import re

from .tasks import SUBJECTS, RetailDeskTask, Wish

END = "DONE"
"""The customer's last line, when the conversation is over."""
GREETING = "Welcome to the service desk. What can I do for you?"
EMPTY = f"An empty message was not sent. Write something, or {END}."
_BRIEFING = """\
You play a customer who writes to the service desk of a shop. Write as a customer would, one or two sentences at a \
time. You know only what stands here; what is not here, you do not know. Say in your first message only your first \
wish, and tell anything else when you are asked for it. Do not go on to the next wish before the last one is \
settled and you have an answer to its question. When all is settled, or you see that it leads nowhere, write {end} \
on a line of its own.

# Who you are
{identity}
{wishes}"""


def briefing(task: RetailDeskTask) -> str:
    """The system message of the customer."""
    persona = task.persona
    identity = f"Your name is {persona.name}, and your postal code is {persona.postal_code}. "
    identity += (
        f"Your e-mail address is {persona.email}." if persona.email else "You do not remember your e-mail address."
    )
    wishes = "".join(_wish(number, wish) for number, wish in enumerate(task.wishes, start=1))
    return _BRIEFING.format(end=END, identity=identity, wishes=wishes)


def _wish(number: int, wish: Wish) -> str:
    lines = [f"\n# Wish {number}", f'You say: "{wish.request}"']
    lines += [f'Asked to tell {SUBJECTS[detail.subject]}: "{detail.text}"' for detail in wish.details]
    if wish.second_thought is not None:
        lines.append(f'Before you say yes to what the agent is about to do: "{wish.second_thought.text}"')
    if wish.way_out is not None:
        lines.append(f'If you hear that what you want is not possible: "{wish.way_out.text}"')
    if wish.protest:
        lines.append(f'If you are refused, you say once: "{wish.protest}" Then you take it as it is.')
    lines += ["You say yes when the agent wants to do what you want in the end.", f'You ask: "{wish.question}"']
    return "\n".join([*lines, ""])


def is_end(text: str) -> bool:
    """Whether the customer says that the conversation is over."""
    lines = text.strip().splitlines()
    return bool(lines) and re.fullmatch(rf"\W*{END}\W*", lines[-1]) is not None
