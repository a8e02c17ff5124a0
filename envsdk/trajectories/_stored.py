"""The types of stored records: exactly the fields of a dataclass, each of its type; no missing field is filled in.

A dataclass that is stored derives from `StoredRecord`: its annotations are the format of the file, and pydantic checks
them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, cast, get_type_hints

import numpy as np
from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetPydanticSchema, PlainValidator, ValidationError
from pydantic_core import CoreSchema, core_schema

from .._describing import what_is_invalid
from .._visible import brief, type_of
from ..contexts._protocol import Break
from ..contexts._side_data import Aligned, Ragged
from ..images import Image, PlacedImage
from ..limits import LARGEST
from ..messages import Message

if TYPE_CHECKING:
    from numpy.typing import NDArray


_LARGEST_INTEGER = 2**63 - 1  # what orjson writes


class StoredRecord:
    """A dataclass that is stored as a JSON object with exactly its fields.

    A field with the metadata `optional` is left out where nothing is in it.
    """

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _record_schema(cls, handler)


def _record_schema(cls: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
    """Return the schema of a JSON object that has exactly the fields of a dataclass; optional ones may be absent."""
    from numpy.typing import NDArray

    hints = get_type_hints(cls, localns={"NDArray": NDArray, "np": np}, include_extras=True)
    members = {
        field.name: core_schema.typed_dict_field(
            handler.generate_schema(hints[field.name]), required=not field.metadata.get("optional")
        )
        for field in fields(cast("Any", cls))
    }
    record = core_schema.typed_dict_schema(members, extra_behavior="forbid", config=core_schema.CoreConfig(strict=True))
    return core_schema.no_info_after_validator_function(lambda values: cls(**values), record)


def record_of(value: Any) -> dict[str, Any]:
    """Return the fields of a stored dataclass by name, without optional ones that have nothing in them."""
    given = [(field, getattr(value, field.name)) for field in fields(value)]
    return {
        field.name: own for field, own in given if not field.metadata.get("optional") or (own is not None and len(own))
    }


def _number(value: Any) -> Any:
    kind = cast("type[object]", type(value))  # of integers, True is another type
    if not (kind is float and abs(value) <= LARGEST) and not (kind is int and abs(value) <= _LARGEST_INTEGER):
        raise ValueError("expected a number that is finite in float32, and an integer of at most 63 bits")
    return value


def _check_json(value: Any) -> Any:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be written as JSON: {error}") from error
    return value


Number: TypeAlias = Annotated[float, PlainValidator(_number)]
Temperature: TypeAlias = Annotated[float, PlainValidator(_number), Field(ge=0)]
Json: TypeAlias = Annotated[Any, AfterValidator(_check_json)]
"""Any value of JSON."""
JsonObject: TypeAlias = Annotated[dict[str, Any], AfterValidator(_check_json)]


_KINDS: Mapping[str, frozenset[type]] = {
    "b": frozenset((bool,)),
    "i": frozenset((int,)),
    "u": frozenset((int,)),
    "f": frozenset((float, int)),
}
_NONE = frozenset((type(None),))


def read_array(values: Any, dtype: "type[np.generic] | np.dtype[Any]", *, missing: bool = True) -> "NDArray[Any]":
    """Read a list as a one-dimensional array of this dtype, without conversion; null is NaN if values may be missing.

    Raises:
        ValueError: If a value is of another type; the message names the position.
    """
    if type(values) is not list:
        raise ValueError(f"expected a list, got {type_of(values)}")
    values, dtype = cast("list[Any]", values), np.dtype(dtype)
    allowed = _KINDS[dtype.kind] | _NONE if missing and dtype.kind == "f" else _KINDS[dtype.kind]
    if not set(map(type, values)) <= allowed:
        at = next(index for index, value in enumerate(values) if type(value) not in allowed)
        raise ValueError(f"at {at} it holds {brief(values[at])}; expected values of {dtype}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype=dtype)
    except OverflowError as error:
        raise ValueError(f"it has a value that does not fit {dtype}: {error}") from error
    if dtype.kind == "f" and np.isinf(array).any():
        at = int(np.argmax(np.isinf(array)))
        raise ValueError(f"at {at} it holds {brief(values[at])}; expected a number that is finite in {dtype}")
    return array


Int32s: TypeAlias = Annotated["NDArray[np.int32]", PlainValidator(partial(read_array, dtype=np.int32))]
Int16s: TypeAlias = Annotated["NDArray[np.int16]", PlainValidator(partial(read_array, dtype=np.int16))]
Float32s: TypeAlias = Annotated["NDArray[np.float32]", PlainValidator(partial(read_array, dtype=np.float32))]
Bools: TypeAlias = Annotated["NDArray[np.bool_]", PlainValidator(partial(read_array, dtype=np.bool_))]


def _message(value: Any) -> Message:
    try:
        message = Message.model_validate(value)
    except ValidationError as error:
        raise ValueError(what_is_invalid(error)) from error
    written = message.model_dump(mode="json")
    if written != value:  # something was left out, or read in another form than it would be written
        wrong = [name for name in {**written, **value} if written.get(name, ...) != value.get(name, ...)]
        raise ValueError(f"expected a whole message, with all its fields as they are stored; see {', '.join(wrong)}")
    return message


StoredMessage: TypeAlias = Annotated[Message, PlainValidator(_message)]
"""A chat message, stored with all its fields."""


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    try:
        written = Message.model_validate(value).model_dump(mode="json", exclude_unset=True)
    except ValidationError as error:
        raise ValueError(what_is_invalid(error)) from error
    if written != value:
        raise ValueError(f"expected a string, or a message as it is stored, got {brief(value, 200)}")
    return value


StoredText: TypeAlias = Annotated[str | dict[str, Any], PlainValidator(_text)]
"""What a turn adds to a reply: a string, or the fields of a message that were given."""


StoredBreak: TypeAlias = Annotated[Break, GetPydanticSchema(lambda source, handler: _record_schema(Break, handler))]
"""A break, stored with all its fields."""


def _media(values: Any) -> list[PlacedImage]:
    if type(values) is not list:
        raise ValueError(f"expected a list, got {type_of(values)}")
    found: list[PlacedImage] = []
    for value in cast("list[Any]", values):
        fields = cast("dict[str, Any]", value) if type(value) is dict else {}
        start: Any = fields.get("start")
        stop: Any = fields.get("stop")
        reference: Any = fields.get("image")
        is_range = type(start) is int and type(stop) is int and 0 <= start < stop
        if fields.keys() != {"image", "start", "stop"} or type(reference) is not dict or not is_range:
            raise ValueError(f"expected an image with its start and its stop, got {brief(value, 200)}")
        found.append(PlacedImage(Image.from_reference(cast("dict[str, Any]", reference)), start, stop))
    if any(one.stop > other.start for one, other in pairwise(found)):
        raise ValueError("the tokens of two images overlap, or are not in order")
    return found


def dump_media(media: Sequence[PlacedImage]) -> list[dict[str, Any]]:
    """Return images with their tokens as they are stored, without their bytes."""
    return [{"image": placed.image.reference(), "start": placed.start, "stop": placed.stop} for placed in media]


StoredMedia: TypeAlias = Annotated[list[PlacedImage], PlainValidator(_media)]
"""Images with their tokens, in order."""


# Side data.

_DTYPES = frozenset(
    np.dtype(kind).name
    for kind in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def pack(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return side data as JSON; `unpack` restores arrays with their dtypes. Absent kinds take no space."""
    if not extra:
        return {}
    packed: dict[str, dict[str, Any]] = {"arrays": {}, "values": {}}
    for key, value in extra.items():
        match value:
            case np.ndarray():
                packed["arrays"][key] = _packed(cast("NDArray[Any]", value))
            case Aligned():
                fill = None if value.fill is None or math.isnan(value.fill) else value.fill
                aligned = {"over": value.over, "fill": fill, "array": _packed(value.values)}
                packed.setdefault("aligned", {})[key] = aligned
            case Ragged():
                ragged = {"lengths": value.lengths.tolist(), "array": _packed(value.values)}
                packed.setdefault("ragged", {})[key] = ragged
            case _:
                packed["values"][key] = value
    return packed


def unpack(packed: Any) -> dict[str, Any]:
    """Read what `pack` wrote.

    Raises:
        ValueError: If it is damaged.
    """
    given = cast("dict[str, Any]", packed) if type(packed) is dict else {}
    _has_keys(packed, ("arrays", "values", *(given.keys() & {"aligned", "ragged"})) if packed else ())
    if not given:
        return {}
    _check_json(given["values"])
    for kind, content in given.items():
        if type(content) is not dict:
            raise ValueError(f"its {kind} are {brief(content)}; expected an object")
    read: dict[str, Any] = dict(given["values"])
    for kind in ("arrays", "aligned", "ragged"):
        for key, content in given.get(kind, {}).items():
            if key in read:
                raise ValueError(f"{brief(key)} occurs twice")
            if kind == "arrays":
                read[key] = _unpacked(key, content)
                continue
            if kind == "aligned":
                _has_keys(content, ("over", "fill", "array"))
                rows = Aligned(_unpacked(key, content["array"]), content["over"], content["fill"])
            else:
                _has_keys(content, ("lengths", "array"))
                rows = Ragged(_unpacked(key, content["array"]), read_array(content["lengths"], np.int64))
            try:
                rows.check()
            except ValueError as error:
                raise ValueError(f"of {brief(key)}, {error}") from error
            read[key] = rows
    return read


def _has_keys(value: Any, names: tuple[str, ...]) -> None:
    if type(value) is not dict or cast("dict[str, Any]", value).keys() != set(names):
        raise ValueError(f"it is {brief(value)}; expected an object with {', '.join(names) or 'nothing in it'}")


def _packed(array: "NDArray[Any]") -> dict[str, Any]:
    values: list[Any] = array.ravel().tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        names = {math.inf: "Infinity", -math.inf: "-Infinity"}
        values = [value if math.isfinite(value) else names.get(value, "NaN") for value in values]
    return {"dtype": array.dtype.name, "shape": list(array.shape), "values": values}


def _unpacked(key: str, packed: Any) -> "NDArray[Any]":
    """Return an array; its header is checked before memory is allocated for it."""
    try:
        _has_keys(packed, ("dtype", "shape", "values"))
        name, shape, values = packed["dtype"], packed["shape"], packed["values"]
        if not isinstance(name, str) or name not in _DTYPES:
            raise ValueError(f"its dtype is {brief(name)}; expected one of {', '.join(sorted(_DTYPES))}")
        if type(values) is not list or type(shape) is not list:
            raise ValueError("its shape and its values are not lists")
        are_sizes = all(type(size) is int and 0 <= size < 2**31 for size in cast("list[Any]", shape))
        if not are_sizes or not 1 <= len(cast("list[Any]", shape)) <= 32:
            raise ValueError(f"its shape is {brief(shape)}; expected 1 to 32 sizes")
        if math.prod(cast("list[int]", shape)) != len(cast("list[Any]", values)):
            raise ValueError(f"its shape is {shape}, but it has {len(cast('list[Any]', values))} values")
        numbers = cast("list[Any]", values)
        named: dict[int, float] = {}  # JSON has neither NaN nor infinities
        if np.dtype(name).kind == "f":
            named = {at: _NOT_FINITE[one] for at, one in enumerate(numbers) if type(one) is str and one in _NOT_FINITE}
            numbers = [0.0 if at in named else one for at, one in enumerate(numbers)]
        array = read_array(numbers, np.dtype(name), missing=False)
        array[list(named)] = list(named.values())
        return array.reshape(cast("list[int]", shape))
    except ValueError as error:
        raise ValueError(f"of the array {brief(key)}, {error}") from error


Packed = PlainValidator(unpack)
"""Marks a mapping that is stored as `pack` writes it."""
