"""Encoding of numpy arrays and scalars, in processes that have imported numpy (`sandbox.packages`).

Arrays of numbers, truth values and text cross as type, shape and bytes. Arrays of objects and of records, dates, and
instances of subclasses stay objects of the program.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

_KIND = re.compile(r"\|b1|[<|][iu][1248]|<f[248]|<c(8|16)|[<|][SU][1-9][0-9]{0,4}", re.ASCII)
"""Types of numpy (`dtype.str`) of which every bit pattern is a value, and two that `decode_array` checks."""
_MAX_DIMENSIONS = 32
_MAX_EMPTY = 1 << 16
"""Bound on the dimensions of arrays without items: `tolist` of such an array makes one list per row."""


def is_array(value: Any) -> bool:
    """Return whether a value is an array that crosses as data."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and _KIND.fullmatch(value.dtype.str) is not None


def is_scalar(value: Any) -> bool:
    """Return whether a value is a scalar that crosses as data."""
    if type(value).__module__ != "numpy":
        return False
    numpy = sys.modules.get("numpy")
    is_own = numpy is not None and isinstance(value, numpy.generic) and type(value) is value.dtype.type
    return is_own and _KIND.fullmatch(value.dtype.str) is not None


def encode_array(value: Any) -> list[Any]:
    """Return [type, shape, bytes in hexadecimal] of an array or a scalar."""
    return [value.dtype.str, list(value.shape), value.tobytes().hex()]


def decode_array(payload: list[Any]) -> Any:
    """Return the array of an untrusted payload. Raises ValueError."""
    numpy = sys.modules.get("numpy")
    kind, shape, data = payload
    if numpy is None or type(kind) is not str or not _KIND.fullmatch(kind) or type(shape) is not list:
        raise ValueError("malformed array")
    if len(shape) > _MAX_DIMENSIONS or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("malformed array")
    if 0 in shape and math.prod(filter(None, shape)) > _MAX_EMPTY:
        raise ValueError("malformed array")
    array = numpy.frombuffer(bytearray.fromhex(data), numpy.dtype(kind)).reshape(shape)
    if kind == "|b1":
        array = array.view("u1") != 0
    elif kind[1] == "U" and array.size and array.reshape(-1).view("u4").max() > sys.maxunicode:
        raise ValueError("malformed array")
    return array


def decode_scalar(payload: list[Any]) -> Any:
    """Return the scalar of an untrusted payload. Raises ValueError."""
    array = decode_array(payload)
    if array.shape:
        raise ValueError("malformed scalar")
    return array[()]


def fill_array(array: Any, payload: list[Any]) -> None:
    """Give an array the content of an untrusted payload of equal type and shape. Raises ValueError."""
    content = decode_array(payload)
    if content.dtype != array.dtype or content.shape != array.shape:
        raise ValueError("array of another type or shape")
    array[...] = content
