"""Random JSON schemas for constrained replies, an environment that asks for one, and a policy without a model."""

import json
import random
from typing import Any

import jsonschema
import numpy as np

import envsdk
from envsdk import Action, Env, Limits, Message, Turn
from envsdk.policies._grammar import GrammarState

TOKENIZER = envsdk.load_tokenizer("embedded")
LENGTHS = np.array([len(piece) for piece in TOKENIZER.token_bytes(np.arange(TOKENIZER.vocab_size, dtype=np.int32))])

_NAMES = ("id", "name", "price", "is open", "größe", "tags", "a/b", '"quoted"', "next")
_PATTERNS = ("^[a-z]{1,6}$", "^[A-Z][0-9]{2,3}$", "^(yes|no)$", r"^\d{4}-\d{2}$")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6")


def random_schema(seed: int) -> dict[str, Any]:
    """Return a schema of an object whose instances are short: at most 3 levels, of at most 4 properties."""
    rng = random.Random(seed)
    schema = _object(rng, 3)
    if rng.random() < 0.3:
        schema["$defs"] = {"node": _object(rng, 1)}
        schema["properties"]["node"] = {"$ref": "#/$defs/node"}
        schema["required"] = [*schema["required"], "node"]
    return schema


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_NAMES, rng.randint(0, 4))
    properties = {name: _value(rng, depth - 1) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in names if rng.random() < 0.6],
        "additionalProperties": False,
        "description": "Text that changes nothing.",
    }


def _value(rng: random.Random, depth: int) -> dict[str, Any]:
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "const", "pattern", "format", "types"]
    kinds += ["object", "array", "tuple", "anyOf", "allOf"] if depth else []
    match rng.choice(kinds):
        case "object":
            return _object(rng, depth)
        case "array":
            least = rng.randint(0, 2)
            return {"type": "array", "items": _value(rng, depth - 1), "minItems": least, "maxItems": least + 2}
        case "tuple":
            items = [_value(rng, depth - 1) for _ in range(rng.randint(1, 3))]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        case "anyOf":
            return {"anyOf": [_value(rng, depth - 1) for _ in range(rng.randint(2, 3))]}
        case "allOf":
            return {"allOf": [{"type": "integer", "minimum": rng.randint(-9, 0)}, {"maximum": rng.randint(1, 99)}]}
        case "string":
            return {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(4, 12)}
        case "integer":
            least = rng.randint(-1000, 1000)
            return {"type": "integer", "minimum": least, "maximum": least + rng.randint(0, 5000)}
        case "number":
            return {"type": "number", "exclusiveMinimum": 0, "maximum": rng.choice([1, 2.5, 1000])}
        case "enum":
            return {"enum": rng.sample(["red", "green", 1, 2.5, None, True, "ß\n", ["x"], {"k": 1}], rng.randint(1, 4))}
        case "const":
            return {"const": rng.choice(["one", 7, False, None, "a \\ b"])}
        case "pattern":
            return {"type": "string", "pattern": rng.choice(_PATTERNS)}
        case "format":
            return {"type": "string", "format": rng.choice(_FORMATS)}
        case "types":
            return {"type": rng.sample(["boolean", "null", "integer"], 2)}
        case kind:
            return {"type": kind}


class Form(Env):
    """Asks for an object that follows a random schema, and checks it; whether the reply was cut is a metric."""

    default_limits = Limits(max_steps=1, end_on_cut=False)

    def start(self) -> Turn:
        self.schema = random_schema(int(self.np_random.integers(2**31)))
        return Turn(f"Fill in this form: {json.dumps(self.schema)[:400]}", schema=self.schema, max_tokens=600)

    def respond(self, reply: Message) -> Turn:
        if not reply.errors:
            jsonschema.validate(json.loads(reply.content), self.schema)
        return Turn(terminated=True, metrics={"cut": float(bool(reply.errors))})


class Uniform:
    """Samples each token from those that the grammar allows: first its length, so that numbers and names end."""

    tokenizer = TOKENIZER

    def __init__(self) -> None:
        self.allowed: list[np.ndarray] = []

    def __call__(self, prompt: Any, *, stop_token_ids: Any, max_tokens: Any, sampling: Any, **_: Any) -> Action:
        rng, tokens = np.random.default_rng(len(prompt)), list[int]()
        state = GrammarState(TOKENIZER, sampling["grammar"], stop_token_ids)
        while len(tokens) < (max_tokens or 2000) and not (tokens and tokens[-1] in stop_token_ids):
            self.allowed.append(state.allowed())
            ids = np.flatnonzero(self.allowed[-1])
            tokens.append(int(rng.choice(ids[LENGTHS[ids] == rng.choice(np.unique(LENGTHS[ids]))])))
            state.accept(tokens[-1])
        is_whole = tokens[-1] in stop_token_ids
        return Action(tokens, None, "stop" if is_whole else "length", extra={"grammar": sampling["grammar"]})
