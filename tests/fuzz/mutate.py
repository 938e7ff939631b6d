"""Odd inputs by seed: changed bytes of known inputs, and protobuf messages with odd values in their fields."""

from __future__ import annotations

import math
import random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor as Field

NUMBERS = (
    b"0",
    b"-1",
    b"1e308",
    b"1e999",
    b"nan",
    b"-inf",
    b"9223372036854775808",
    b"9" * 40,
    b"9" * 5000,
    b".",
    b"0x10",
    b"2147483648",
    b"1e-320",
    b"-0",
)
TOKENS = (
    *NUMBERS,
    b"\x00",
    b"\xff\xfe",
    b"\r\n",
    b"\n",
    b'"',
    b"'",
    b"{}",
    b"[]",
    b"null",
    b"true",
    b": ",
    b"- ",
    b"&a",
    b"*a",
    b"<<: ",
    b"!!python/object:os.system",
    b"<a>",
    b"&amp;",
    b"]]>",
    b"\xef\xbb\xbf",
    b"\x1f\x8b",
    b"%s",
    b"../",
    b"\x1b[2J",
    "\u202e²é".encode(),
    b"#",
    b",",
    b";",
    b"step = ",
    b"loss = ",
)
FLOATS = (0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e300, 1e-300, 1e15, 0.5)
WHOLE = (0, 1, 2, 3, 7, 8, 1000, 2**31 - 1)
TEXTS = (
    "",
    "a",
    "n1",
    "n1:8041",
    "application_1_0001",
    "appattempt_1_0001_000001",
    "root.default",
    "r1",
    "j0/1/0",
    "x" * 300,
    "a\nb",
    "\x1b[2J",
    "é²",
    "../..",
    "job000",
    "running",
    "isonomy",
)


def mutated(rng: random.Random, corpus: list[bytes], most: int = 1 << 16) -> bytes:
    """One of the known inputs, changed in some places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 16))):
        at, size = rng.randint(0, len(data)), rng.choice((1, 2, 8, 64, 500))
        match rng.randrange(7):
            case 0 if data:
                data[at % len(data)] = rng.randrange(256)
            case 1:
                data[at:at] = rng.choice(TOKENS)
            case 2:
                del data[at : at + size]
            case 3:
                data[at:at] = data[at : at + size] * rng.choice((1, 2, 50))
            case 4:
                other = rng.choice(corpus)
                begin = rng.randint(0, len(other))
                data[at : at + rng.choice((0, size))] = other[begin : begin + size]
            case 5:
                data[at : at + size] = rng.choice(TOKENS)
            case _:
                data[at:at] = rng.randbytes(rng.choice((1, 4, 20)))
    return bytes(data[:most])


def message(rng: random.Random, kind: type[Any], depth: int = 0) -> Any:
    """A message with some fields set, to odd values; now and then of enum values and fields that nobody knows."""
    made = kind()
    for field in made.DESCRIPTOR.fields:
        if rng.random() < 0.35 and not (field.containing_oneof and made.WhichOneof(field.containing_oneof.name)):
            _set(rng, made, field, depth)
    for one in made.DESCRIPTOR.oneofs:
        if made.WhichOneof(one.name) is None and rng.random() < 0.9:
            _set(rng, made, rng.choice(one.fields), depth)
    if rng.random() < 0.02:
        made.MergeFromString(b"\xfa\x3f\x03abc")
    return made


def _set(rng: random.Random, made: Any, field: Any, depth: int) -> None:
    held = getattr(made, field.name)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        for _ in range(rng.choice((1, 2, 3))):
            if value.message_type is None:
                held[_value(rng, key)] = _value(rng, value)
            else:
                inner = held[_value(rng, key)]
                inner.CopyFrom(message(rng, type(inner), depth + 1))
    elif field.message_type is not None:
        if depth > 5:
            return
        if field.is_repeated:
            for _ in range(rng.choice((1, 1, 2, 5))):
                held.append(message(rng, held.add().__class__, depth + 1))
        else:
            held.CopyFrom(message(rng, type(held), depth + 1))
    elif field.is_repeated:
        held.extend(_value(rng, field) for _ in range(rng.choice((1, 2, 3, 4))))
    else:
        setattr(made, field.name, _value(rng, field))


def _value(rng: random.Random, field: Any) -> Any:
    match field.cpp_type:
        case Field.CPPTYPE_DOUBLE | Field.CPPTYPE_FLOAT:
            return rng.choice(FLOATS)
        case Field.CPPTYPE_STRING:
            text = rng.choice(TEXTS)
            return text.encode() if field.type == Field.TYPE_BYTES else text
        case Field.CPPTYPE_BOOL:
            return rng.random() < 0.5
        case Field.CPPTYPE_INT32 | Field.CPPTYPE_ENUM:
            return rng.choice((*WHOLE, -1, -(2**31)))
        case Field.CPPTYPE_INT64:
            return rng.choice((*WHOLE, -1, 2**63 - 1, -(2**63)))
        case Field.CPPTYPE_UINT64:
            return rng.choice((*WHOLE, 2**64 - 1))
        case _:
            return rng.choice((*WHOLE, 2**32 - 1))
