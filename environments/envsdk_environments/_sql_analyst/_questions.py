"""Questions about the made-up databases, with a right query for each."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from ._databases import COUNTRIES, DAYS, MOST_SCORE, PRICES, TableName, Trade, day

Difficulty: TypeAlias = Literal["easy", "medium", "hard"]

_SHORTEST_PERIOD, _LONGEST_PERIOD = 120, 480


class SqlQuestion(NamedTuple):
    """A question and a right query."""

    text: str
    query: str
    is_ordered: bool
    """True if the question asks for rows in a certain order."""


class _QuestionForm(NamedTuple):
    """A question and its query with format fields. `{event}` is a word in the text, and a table in the query."""

    text: str
    query: str
    is_ordered: bool = False


_AMOUNT_IS = " The {amount} is the sum of {parts} over the lines."
_IN_PERIOD = "e.{event.date} BETWEEN '{first}' AND '{last}'"
_AMOUNT = "SUM(l.{line.quantity} * l.{line.price})"
_LINES = "{event} e JOIN {line} l ON l.{line.event} = e.{event.id}"
_ITEMS = _LINES + " JOIN {item} i ON i.{item.id} = l.{line.item}"
_PEOPLE = "{person} p JOIN {event} e ON e.{event.person} = p.{person.id}"
_PEOPLE_LINES = _PEOPLE + " JOIN {line} l ON l.{line.event} = e.{event.id}"

_FORMS: Mapping[Difficulty, tuple[_QuestionForm, ...]] = {
    "easy": (
        _QuestionForm(
            "How many {events} from {first} to {last} have the {status} '{a_status}'?",
            f"SELECT COUNT(*) FROM {{event}} e WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}'",
        ),
        _QuestionForm(
            "How many {persons} with the {tier} '{a_tier}' {joined} from {first} to {last}?",
            "SELECT COUNT(*) FROM {person} WHERE {person.tier} = '{a_tier}' "
            "AND {person.since} BETWEEN '{first}' AND '{last}'",
        ),
        _QuestionForm(
            "What is the average {score} of the {events} from {first} to {last} that have the {status} '{a_status}'? "
            "Those without a {score} do not count.",
            f"SELECT AVG(e.{{event.score}}) FROM {{event}} e WHERE {_IN_PERIOD} "
            "AND e.{event.status} = '{a_status}' AND e.{event.score} IS NOT NULL",
        ),
        _QuestionForm(
            "Which {items} of the {kind} '{a_kind}' have a {price} from {low} to {high}? Give the name and the "
            "{price}, the highest {price} first, with ties sorted by name.",
            "SELECT {item.name}, {item.price} FROM {item} WHERE {item.kind} = '{a_kind}' "
            "AND {item.price} BETWEEN {low} AND {high} ORDER BY {item.price} DESC, {item.name}",
            is_ordered=True,
        ),
        _QuestionForm(
            "How many {events} from {first} to {last} have the {status} '{a_status}' and no {score}?",
            f"SELECT COUNT(*) FROM {{event}} e WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}' "
            "AND e.{event.score} IS NULL",
        ),
        _QuestionForm(
            "For each {status} of the {events} from {first} to {last}: how many {events} have it, and how many of them "
            "have a {score} of at least {a_score}? Give the {status} and the two numbers.",
            f"SELECT e.{{event.status}}, COUNT(*), COUNT(CASE WHEN e.{{event.score}} >= {{a_score}} THEN 1 END) "
            f"FROM {{event}} e WHERE {_IN_PERIOD} GROUP BY e.{{event.status}}",
        ),
        _QuestionForm(
            "Of the {persons} with the {tier} '{a_tier}' who {joined} from {first} to {last}, who {joined} last? If "
            "there is a tie, take the first by name. Give the name and the day.",
            "SELECT {person.name}, {person.since} FROM {person} WHERE {person.tier} = '{a_tier}' "
            "AND {person.since} BETWEEN '{first}' AND '{last}' ORDER BY {person.since} DESC, {person.name} LIMIT 1",
        ),
        _QuestionForm(
            "For each {kind} of {items} with a {price} from {low} to {high}: how many such {items} are there, and what "
            "is their highest {price}? Give the {kind}, the number and the {price}.",
            "SELECT {item.kind}, COUNT(*), MAX({item.price}) FROM {item} "
            "WHERE {item.price} BETWEEN {low} AND {high} GROUP BY {item.kind}",
        ),
    ),
    "medium": (
        _QuestionForm(
            "How many {events} from {first} to {last} with the {status} '{a_status}' do the {persons} of each {area} "
            "have? Give the name of the {area} and the number, and leave out {areas} that have none.",
            f"SELECT a.{{area.name}}, COUNT(*) FROM {_PEOPLE} JOIN {{area}} a ON a.{{area.id}} = p.{{person.area}} "
            f"WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}' GROUP BY a.{{area.id}}",
        ),
        _QuestionForm(
            "Which {person} has the most {events} from {first} to {last} with the {status} '{a_status}'? If there is a "
            "tie, take the first by name. Give the name and the number.",
            f"SELECT p.{{person.name}}, COUNT(*) FROM {_PEOPLE} WHERE {_IN_PERIOD} "
            "AND e.{event.status} = '{a_status}' "
            "GROUP BY p.{person.id} ORDER BY COUNT(*) DESC, p.{person.name} LIMIT 1",
        ),
        _QuestionForm(
            "What is the total {amount} of all {events} from {first} to {last} with the {status} '{a_status}'?",
            f"SELECT {_AMOUNT} FROM {_LINES} WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}'",
        ),
        _QuestionForm(
            "Which {persons} with the {tier} '{a_tier}' have no {event} from {first} to {last}? Give their names.",
            "SELECT p.{person.name} FROM {person} p WHERE p.{person.tier} = '{a_tier}' AND NOT EXISTS "
            f"(SELECT 1 FROM {{event}} e WHERE e.{{event.person}} = p.{{person.id}} AND {_IN_PERIOD})",
        ),
        _QuestionForm(
            "Which {a_number} {items} have the highest {quantity} in {events} from {first} to {last}? Give the name "
            "and the {quantity}, the highest first, with ties sorted by name.",
            f"SELECT i.{{item.name}}, SUM(l.{{line.quantity}}) FROM {_ITEMS} WHERE {_IN_PERIOD} "
            "GROUP BY i.{item.id} ORDER BY SUM(l.{line.quantity}) DESC, i.{item.name} LIMIT {a_number}",
            is_ordered=True,
        ),
        _QuestionForm(
            "For each {kind} of {items}: what is the {amount} of their lines in {events} from {first} to {last} with "
            "the {status} '{a_status}'? Give the {kind} and the {amount}, and leave out those that have none.",
            f"SELECT i.{{item.kind}}, {_AMOUNT} FROM {_ITEMS} WHERE {_IN_PERIOD} "
            "AND e.{event.status} = '{a_status}' GROUP BY i.{item.kind}",
        ),
        _QuestionForm(
            "Which {persons} have at least {a_number} {events} from {first} to {last}? Give their names in "
            "alphabetical order.",
            f"SELECT p.{{person.name}} FROM {_PEOPLE} WHERE {_IN_PERIOD} GROUP BY p.{{person.id}} "
            "HAVING COUNT(*) >= {a_number} ORDER BY p.{person.name}",
            is_ordered=True,
        ),
        _QuestionForm(
            "How many different {persons} have {events} from {first} to {last} with at least one of the {items} of "
            "{makers} from {a_country}?",
            f"SELECT COUNT(DISTINCT e.{{event.person}}) FROM {_ITEMS} JOIN {{maker}} m "
            f"ON m.{{maker.id}} = i.{{item.maker}} WHERE {_IN_PERIOD} AND m.{{maker.country}} = '{{a_country}}'",
        ),
        _QuestionForm(
            "For each {tier}: what is the average {score} of the {events} from {first} to {last} of {persons} with it? "
            "Those without a {score} do not count. Give the {tier} and the average, and leave out those without any.",
            f"SELECT p.{{person.tier}}, AVG(e.{{event.score}}) FROM {_PEOPLE} WHERE {_IN_PERIOD} "
            "AND e.{event.score} IS NOT NULL GROUP BY p.{person.tier}",
        ),
    ),
    "hard": (
        _QuestionForm(
            "For each {area}: which of its {persons} has the highest total {amount} in {events} from {first} to {last} "
            "with the {status} '{a_status}'? If there is a tie, take the first by name. Give the name of the {area}, "
            "that of the {person}, and the {amount}, and leave out {areas} that have none.",
            f"WITH totals AS (SELECT p.{{person.area}} AS area, p.{{person.name}} AS name, {_AMOUNT} AS total "
            f"FROM {_PEOPLE_LINES} WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}' "
            "GROUP BY p.{person.id}), "
            "ranked AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY area ORDER BY total DESC, name) AS place "
            "FROM totals WHERE area IS NOT NULL) SELECT a.{area.name}, r.name, r.total FROM ranked r "
            "JOIN {area} a ON a.{area.id} = r.area WHERE r.place = 1",
        ),
        _QuestionForm(
            "For each {person} with the {tier} '{a_tier}' who has {events} from {first} to {last}, take the total "
            "{amount} of these {events}. Whose total is above the average of all these {persons}? Give the names.",
            f"WITH totals AS (SELECT p.{{person.name}} AS name, {_AMOUNT} AS total FROM {_PEOPLE_LINES} "
            f"WHERE {_IN_PERIOD} AND p.{{person.tier}} = '{{a_tier}}' GROUP BY p.{{person.id}}) "
            "SELECT name FROM totals WHERE total > (SELECT AVG(total) FROM totals)",
        ),
        _QuestionForm(
            "What share of the total {amount} of all {events} from {first} to {last} with the {status} '{a_status}' "
            "comes from {items} of the {kind} '{a_kind}'?",
            "SELECT SUM(CASE WHEN i.{item.kind} = '{a_kind}' THEN l.{line.quantity} * l.{line.price} ELSE 0 END) "
            f"/ {_AMOUNT} FROM {_ITEMS} WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}'",
        ),
        _QuestionForm(
            "For each month with {events} from {first} to {last} that have the {status} '{a_status}': what is their "
            "total {amount}, and by how much is it higher than in the previous month of this list? Give the month like "
            "2020-01, the {amount} and the difference, which is NULL for the first month, in the order of months.",
            f"WITH months AS (SELECT substr(e.{{event.date}}, 1, 7) AS month, {_AMOUNT} AS total FROM {_LINES} "
            f"WHERE {_IN_PERIOD} AND e.{{event.status}} = '{{a_status}}' GROUP BY 1) "
            "SELECT month, total, total - LAG(total) OVER (ORDER BY month) FROM months ORDER BY month",
            is_ordered=True,
        ),
        _QuestionForm(
            "Which {persons} with the {tier} '{a_tier}' have more {events} from {first} to {last} than the {person} by "
            "whom they were {sponsored}? Leave out those who were not {sponsored} by anyone. Give the names.",
            f"WITH counts AS (SELECT p.{{person.id}} AS id, COUNT(e.{{event.id}}) AS number FROM {{person}} p "
            f"LEFT JOIN {{event}} e ON e.{{event.person}} = p.{{person.id}} AND {_IN_PERIOD} GROUP BY p.{{person.id}}) "
            "SELECT p.{person.name} FROM {person} p JOIN counts own ON own.id = p.{person.id} "
            "JOIN counts other ON other.id = p.{person.sponsor} WHERE own.number > other.number "
            "AND p.{person.tier} = '{a_tier}'",
        ),
        _QuestionForm(
            "For each {area}, including those without any: how many {persons} does it have, and how many {events} from "
            "{first} to {last} with the {status} '{a_status}' do they have? Give the name of the {area} and the two "
            "numbers, the most {events} first, with ties sorted by name.",
            "SELECT a.{area.name}, COUNT(DISTINCT p.{person.id}), COUNT(e.{event.id}) FROM {area} a "
            "LEFT JOIN {person} p ON p.{person.area} = a.{area.id} "
            f"LEFT JOIN {{event}} e ON e.{{event.person}} = p.{{person.id}} AND {_IN_PERIOD} "
            "AND e.{event.status} = '{a_status}' GROUP BY a.{area.id} "
            "ORDER BY COUNT(e.{event.id}) DESC, a.{area.name}",
            is_ordered=True,
        ),
        _QuestionForm(
            "Which {event} from {first} to {last} has the {an_ordinal} highest {amount}? In a tie, the lower key comes "
            "first. Give its key and the {amount}.",
            f"SELECT e.{{event.id}}, {_AMOUNT} AS total FROM {_LINES} WHERE {_IN_PERIOD} GROUP BY e.{{event.id}} "
            "ORDER BY total DESC, e.{event.id} LIMIT 1 OFFSET {an_ordinal_less_1}",
        ),
        _QuestionForm(
            "Which {person} with the {tier} '{a_tier}' has the longest time between two consecutive {events} from "
            "{first} to {last}? If there is a tie, take the first by name. Give the name and the number of days.",
            f"WITH gaps AS (SELECT p.{{person.name}} AS name, julianday(e.{{event.date}}) - LAG(julianday("
            f"e.{{event.date}})) OVER (PARTITION BY p.{{person.id}} ORDER BY e.{{event.date}}) AS days "
            f"FROM {_PEOPLE} WHERE {_IN_PERIOD} AND p.{{person.tier}} = '{{a_tier}}') "
            "SELECT name, days FROM gaps WHERE days IS NOT NULL ORDER BY days DESC, name LIMIT 1",
        ),
        _QuestionForm(
            "Add up the {amount} of the {events} from {first} on, day by day. On which day does the sum reach {a_sum}, "
            "and what is it on that day? Consider only {events} up to {last}. Give the day and the sum.",
            f"WITH days AS (SELECT e.{{event.date}} AS day, {_AMOUNT} AS total FROM {_LINES} WHERE {_IN_PERIOD} "
            "GROUP BY e.{event.date}), sums AS (SELECT day, SUM(total) OVER (ORDER BY day) AS total FROM days) "
            "SELECT day, total FROM sums WHERE total >= {a_sum} ORDER BY day LIMIT 1",
        ),
        _QuestionForm(
            "Which {persons} have, in their {events} from {first} to {last}, {items} of at least {a_number} different "
            "{kinds}, but none of the {kind} '{a_kind}'? Give the names.",
            f"SELECT p.{{person.name}} FROM {_PEOPLE_LINES} JOIN {{item}} i ON i.{{item.id}} = l.{{line.item}} "
            f"WHERE {_IN_PERIOD} GROUP BY p.{{person.id}} HAVING COUNT(DISTINCT i.{{item.kind}}) >= {{a_number}} "
            "AND SUM(i.{item.kind} = '{a_kind}') = 0",
        ),
    ),
}


def draw_question(
    trade: Trade, names: Mapping[str, TableName], difficulty: Difficulty, rng: np.random.Generator
) -> SqlQuestion:
    """Draw a question about a database of a trade whose tables and columns have these names."""
    forms = _FORMS[difficulty]
    form = forms[int(rng.integers(len(forms)))]
    values = _draw_values(trade, rng)
    text = form.text + _AMOUNT_IS * ("{amount}" in form.text)
    return SqlQuestion(
        text=text.format_map({**trade.words, **values}),
        query=form.query.format_map({**names, **values}),
        is_ordered=form.is_ordered,
    )


def _draw_values(trade: Trade, rng: np.random.Generator) -> dict[str, str]:
    """Draw the values of the format fields. No trade's values contain quotes."""

    def one_of(values: Sequence[str]) -> str:
        return values[int(rng.integers(len(values)))]

    length = int(rng.integers(_SHORTEST_PERIOD, _LONGEST_PERIOD + 1))
    first = int(rng.integers(DAYS - length))
    place = int(rng.integers(2, 5))
    low, high = sorted(rng.uniform(*PRICES, size=2).round(2).tolist())
    return {
        "first": day(first),
        "last": day(first + length),
        "low": str(low),
        "high": str(high),
        "a_status": one_of(trade.values["event.status"]),
        "a_tier": one_of(trade.values["person.tier"]),
        "a_kind": one_of(trade.values["item.kind"]),
        "a_country": one_of(COUNTRIES),
        "a_score": str(int(rng.integers(2, MOST_SCORE + 1))),
        "an_ordinal": {2: "2nd", 3: "3rd", 4: "4th"}[place],
        "an_ordinal_less_1": str(place - 1),
        "a_number": str(int(rng.integers(2, 5))),
        "a_sum": str(int(rng.integers(200, 4_000))),
    }
