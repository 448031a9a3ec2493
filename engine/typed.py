"""Plain JSON values into dataclasses, exactly as their type hints say.

Contract: `record_reader(kind)` returns what turns an object into a `kind`, or raises
`UnsoundError` with the field's place. Nothing is converted but whole numbers to floats and lists to
tuples; numbers are finite and small enough for readers in any language. Unknown fields are left
out, missing ones take their default.
"""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from engine.sound import UnsoundError

DEEPEST = 40
"""How deep free data may be nested."""

LARGEST_INT = 2**53
"""Beyond it, readers in other languages lose digits."""

LARGEST_FLOAT = 1e15
Reader = Callable[[Any], Any]


@cache
def record_reader(kind: type) -> Reader:
    """Return what turns an object into a `kind`."""
    hints = get_type_hints(kind)
    fields = [
        (
            field.name,
            _reader(hints[field.name]),
            field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    ]

    def read_fields(value: Any) -> Any:
        if not isinstance(value, dict):
            raise UnsoundError("type")
        found = {}
        for name, read_field, needed in fields:
            if name in value:
                try:
                    found[name] = read_field(value[name])
                except UnsoundError as error:
                    raise error.inside(name) from None
            elif needed:
                raise UnsoundError("missing", name)
        return kind(**found)

    return read_fields


@cache
def _reader(hint: Any) -> Reader:
    """Return what turns a plain JSON value into what the type hint says."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = [_reader(each) for each in arguments if each is not type(None)]
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _list_reader(_reader(arguments[0]))
    if origin is Literal:
        return _choice_reader(frozenset(arguments))
    if origin is dict:
        return _strings if arguments[1] is str else _plain_object
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return record_reader(hint)
    return {int: _whole, float: _number, str: _text, bool: _boolean}[hint]


def _list_reader(read_item: Reader) -> Reader:
    def read_list(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise UnsoundError("type")
        found = []
        for i, item in enumerate(value):
            try:
                found.append(read_item(item))
            except UnsoundError as error:
                raise error.inside(f"[{i}]") from None
        return tuple(found)

    return read_list


def _choice_reader(choices: frozenset[str]) -> Reader:
    def read_choice(value: Any) -> Any:
        if not isinstance(value, str) or value not in choices:
            raise UnsoundError("type")
        return value

    return read_choice


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) > LARGEST_INT:  # a bool is no number here
        raise UnsoundError("type")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) <= LARGEST_FLOAT:  # False for NaN
        raise UnsoundError("type")
    return float(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise UnsoundError("type")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise UnsoundError("type")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:  # half a character pair, which no page can show
        raise UnsoundError("text") from error
    return value


def _strings(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise UnsoundError("type")
    return {_text(name): _text(item) for name, item in value.items()}


def _plain_object(value: Any) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UnsoundError("type")
    _check_plain(value, DEEPEST)
    return value


def _check_plain(value: Any, deepest: int) -> None:
    if deepest == 0:
        raise UnsoundError("deep")
    if isinstance(value, str):
        _text(value)
    elif isinstance(value, int | float):
        if not abs(value) <= (LARGEST_INT if isinstance(value, int) else sys.float_info.max):
            raise UnsoundError("range")
    elif isinstance(value, list):
        for item in value:
            _check_plain(item, deepest - 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            _text(name)
            _check_plain(item, deepest - 1)
