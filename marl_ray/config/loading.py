"""From YAML, `--override` and the older flags to a checked `Config`.

Order, later wins: defaults, the file, the older flags, overrides. A key that does not exist is an error that
names the nearest one that does, wherever it came from.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union

import yaml

from marl_ray.config import checks
from marl_ray.config.schema import ALGORITHMS, Config

SAME_SETTING = {
    "{algorithm}.external_original_prompt": "external.original_prompt",
    "{algorithm}.external_previous_response": "external.previous_response",
    "{algorithm}.temperature": "model.temperature",
    "{algorithm}.top_p": "model.top_p",
    "{algorithm}.agent_learning_rate": "{algorithm}.learning_rate",
    "model_name": "model.name",
}
"""Other spellings, and the one that is kept."""


class ConfigError(ValueError):
    """A setting that cannot be used; the text is one line that says what to change."""


def load(
    path: str | Path,
    algorithm_name: str,
    overrides: dict[str, Any] | None = None,
) -> Config:
    """Read `path`, apply `overrides` (dotted key -> value) and return the resolved, checked config.

    Raises ConfigError.
    """
    tree = _read_yaml(Path(path))
    other = next(name for name in ALGORITHMS if name != algorithm_name)
    if algorithm_name not in tree and other in tree:
        raise ConfigError(f"{path} has a section '{other}': run it with python -m marl_ray.train_{other}")
    tree = _one_spelling(tree, algorithm_name)
    for key, value in (overrides or {}).items():
        kept = _kept_key(key, algorithm_name)
        _set(tree, kept, value)
        if key == "model_name" and isinstance(tree.get("agents"), list):
            tree["agents"] = [value] * len(tree["agents"])
    return from_tree(tree, algorithm_name)


def from_tree(tree: dict[str, Any], algorithm_name: str) -> Config:
    """Build the checked config from nested dictionaries with the file's section names."""
    tree = _one_spelling(tree, algorithm_name)
    names = [f.name for f in dataclasses.fields(Config) if f.name not in ("algorithm", "algorithm_name")]
    _refuse_unknown(set(tree), [*names, algorithm_name], "")
    if algorithm_name in tree:
        tree["algorithm"] = tree.pop(algorithm_name)
    config = _build(Config, tree, "", algorithm_name)
    config.algorithm_name = algorithm_name
    try:
        checks.resolve(config)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return config


def to_tree(config: Config) -> dict[str, Any]:
    """The resolved config with the file's section names; `from_tree` of it gives the same config."""
    tree = dataclasses.asdict(config)
    name = tree.pop("algorithm_name")
    return {name if key == "algorithm" else key: value for key, value in tree.items()}


def to_yaml(config: Config) -> str:
    """The resolved config as YAML."""
    return yaml.safe_dump(to_tree(config), sort_keys=False)


def parse_overrides(items: list[str]) -> dict[str, Any]:
    """`key=value` strings to a dictionary, values read as a person means them."""
    result = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"override '{item}' is not of the form section.key=value")
        result[key.strip()] = parse_value(text.strip())
    return result


def parse_value(text: str) -> Any:
    """A Python or YAML literal (3e-5, -2, True, none, [1.5,0.5], 'quoted'), or else the text itself."""
    words = {"true": True, "false": False, "none": None, "null": None, "~": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        pass
    if text[:1] in "[{":
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"value {text} cannot be read: {_first_line(error)}") from None
    return text


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        raise ConfigError(f"config {path} is not a text file") from None
    except OSError as error:
        near = sorted(str(p) for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
        hint = f"; there are {', '.join(near)}" if near else ""
        raise ConfigError(f"config {path} cannot be read: {error.strerror}{hint}") from None
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_first_line(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds no settings: it should be a YAML mapping of sections")
    return tree


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _set(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, making sections on the way."""
    *sections, last = key.split(".")
    for section in sections:
        inner = tree.get(section)
        if inner is None:
            inner = tree[section] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{key}: '{section}' is a single value, not a section")
        tree = inner
    tree[last] = value


def _kept_key(key: str, algorithm_name: str) -> str:
    for other, kept in SAME_SETTING.items():
        if key == other.format(algorithm=algorithm_name):
            return kept.format(algorithm=algorithm_name)
    return key


def _one_spelling(tree: dict[str, Any], algorithm_name: str) -> dict[str, Any]:
    """The tree with every setting under the one key that is kept. Raises ConfigError if two spellings disagree."""
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in tree.items()}
    for other, kept in SAME_SETTING.items():
        *sections, last = other.format(algorithm=algorithm_name).split(".")
        place = tree.get(sections[0]) if sections else tree
        if not isinstance(place, dict) or place.get(last) is None:
            continue
        value = place.pop(last)
        key = kept.format(algorithm=algorithm_name)
        section, name = key.split(".")
        there = tree.get(section)
        if other != "model_name" and isinstance(there, dict) and there.get(name) not in (None, value):
            spelling = other.format(algorithm=algorithm_name)
            raise ConfigError(f"{spelling} and {key} are the same setting and differ: give one of them")
        _set(tree, key, value)
    return tree


def _refuse_unknown(keys: set[str], known: list[str], where: str) -> None:
    for key in sorted(keys, key=str):
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
            hint = f"did you mean '{where}{near[0]}'?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"unknown setting '{where}{key}': {hint}")


def _build(cls: type, tree: Any, where: str, algorithm_name: str) -> Any:
    """An instance of dataclass `cls` from nested dictionaries."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"'{where.rstrip('.')}' should be a section with settings, got {tree!r}")
    hints = typing.get_type_hints(cls)
    _refuse_unknown(set(tree), [f.name for f in dataclasses.fields(cls)], where)
    values = {}
    for key, value in tree.items():
        name = algorithm_name if not where and key == "algorithm" else key
        if dataclasses.is_dataclass(hints[key]):
            values[key] = _build(typing.cast(type, hints[key]), value, f"{where}{name}.", algorithm_name)
        else:
            values[key] = _coerce(value, hints[key], f"{where}{name}")
    return cls(**values)


def _coerce(value: Any, hint: Any, name: str) -> Any:
    """`value` as the type `hint`, or a ConfigError that names the setting."""
    try:
        return _convert(value, hint)
    except TypeError:
        raise ConfigError(f"{name} should be {_describe(hint)}, got {value!r}") from None


def _convert(value: Any, hint: Any) -> Any:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for option in args:
            try:
                return _convert(value, option)
            except TypeError:
                continue
        raise TypeError
    if origin is Literal:
        if value is None and "none" in args:  # YAML and overrides read the bare word as null
            return "none"
        if value in args and not isinstance(value, bool):
            return value
        raise TypeError
    if origin is list:
        if not isinstance(value, list | tuple):
            raise TypeError
        return [_convert(item, args[0]) for item in value]
    if origin is dict:
        if not isinstance(value, dict):
            raise TypeError
        return {_convert(k, args[0]): _convert(v, args[1]) for k, v in value.items()}
    if hint is type(None):
        if value is not None:
            raise TypeError
        return None
    if hint is float:
        return _to_float(value)
    if hint is str and type(value) is int:  # a name that is a number
        return str(value)
    if type(value) is not hint:
        raise TypeError
    return value


def _to_float(value: Any) -> float:
    """Numbers, and what YAML leaves a string though a person means a number (3e-5)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise TypeError from None
    if number != number or number in (float("inf"), float("-inf")):
        raise TypeError
    return number


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in args)
    if origin is Literal:
        return "one of " + ", ".join(str(option) for option in args)
    if origin is list:
        return f"a list of {_describe(args[0])}"
    if origin is dict:
        return "a mapping"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(hint, str(hint))
