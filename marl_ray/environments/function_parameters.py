"""The parameters of a user's function: a prompt, the answers, and columns of a row by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from marl_ray.core.errors import UserError
from marl_ray.environments.chat_rows import copied


@dataclass(frozen=True, slots=True)
class FunctionParameters:
    """The parameters of a user's function: the names of the first two, which receive the prompt and the answers, and
    of the others, which receive columns."""

    reserved: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    takes_all: bool = False

    def columns(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the columns of a row that the function takes."""
        taken = columns if self.takes_all else [*self.required, *self.optional]
        return {name: copied(columns[name]) for name in taken if name in columns}


def parameters_of(function: Callable[..., Any]) -> FunctionParameters:
    """Return the parameters of a function of (prompt, answers) and columns. Raises UserError."""
    if not callable(function):
        raise UserError(f"reward and feedback should be functions of (prompt, answers), got {function!r:.80}")
    try:
        signature = inspect.signature(function)
        signature.bind_partial(None, None)
        parameters = list(signature.parameters.values())
    except ValueError:  # a built-in function without a signature
        return FunctionParameters()
    except TypeError:  # the function does not take two positional arguments
        parameters = []
    kinds = {parameter.kind for parameter in parameters}
    reserved: list[str] = []
    required: list[str] = []
    optional: list[str] = []
    for parameter in parameters:  # the keyword-only ones come last
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.kind is not parameter.KEYWORD_ONLY and len(reserved) < 2:
            reserved.append(parameter.name)
        elif parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            optional.append(parameter.name)
    if len(reserved) < 2 and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise UserError(f"{name_of(function)} should take two parameters, (prompt, answers), and names of columns")
    takes_all = inspect.Parameter.VAR_KEYWORD in kinds
    return FunctionParameters(tuple(reserved), tuple(required), tuple(optional), takes_all)


def name_of(function: Callable[..., Any]) -> str:
    """Return the words by which errors name a function."""
    return f"the function {getattr(function, '__qualname__', type(function).__qualname__)}"
