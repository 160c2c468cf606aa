"""From YAML, `--override` and the older flags to a checked `Config`.

Order, later wins: defaults, the file, overrides, the older flags. A key that does not exist is an error that
names the nearest one that does, wherever it came from. Other spellings are in `marl_ray.config.spellings`.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import types
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union

import yaml

from marl_ray.config import checks
from marl_ray.config.schema import ALGORITHMS, AlgorithmConfig, Config, ConfigError
from marl_ray.config.spellings import kept_key, one_spelling, other_names, refuse_planned

MANY = 15
"""More known settings than this are not listed in an error."""
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def load(
    path: str | Path,
    algorithm_name: str,
    overrides: dict[str, Any] | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> Config:
    """Read `path`, apply `overrides` (dotted key -> value) and return the resolved, checked config.

    `note` hears, in a line each, what was made to fit. Raises ConfigError.
    """
    tree = _read_yaml(Path(path))
    other = next(name for name in ALGORITHMS if name != algorithm_name)
    if algorithm_name not in tree and other in tree:
        raise ConfigError(f"{path} has a section '{other}': run it with python -m marl_ray.train_{other}")
    tree = one_spelling(tree, algorithm_name)
    changed = {kept_key(key, algorithm_name) for key in overrides or {}}
    for key, value in (overrides or {}).items():
        _set(tree, kept_key(key, algorithm_name), value)
        if key == "model_name" and isinstance(tree.get("agents"), list):
            tree["agents"] = [value] * len(tree["agents"])
    if f"{algorithm_name}.num_turns" in changed and f"{algorithm_name}.turn_gradient_weights" not in changed:
        _fit_weights(tree.get(algorithm_name), algorithm_name, note)
    return from_tree(tree, algorithm_name)


def from_tree(tree: dict[str, Any], algorithm_name: str) -> Config:
    """Build the checked config from nested dictionaries with the file's section names."""
    tree = one_spelling(tree, algorithm_name)
    names = [f.name for f in dataclasses.fields(Config) if f.name not in ("algorithm", "algorithm_name")]
    _refuse_unknown(set(tree), [*names, algorithm_name], "", algorithm_name)
    if algorithm_name in tree:
        tree["algorithm"] = tree.pop(algorithm_name)
    config = _build(Config, tree, "", algorithm_name)
    config.algorithm_name = algorithm_name
    checks.resolve(config)
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
    if text.startswith(("[", "{")):
        try:
            value = yaml.load(text, _UniqueKeys)
        except yaml.YAMLError as error:
            raise ConfigError(f"value {text} cannot be read: {_problem(error)}") from None
        if isinstance(value, dict) and any(v is None and ":" in str(k) for k, v in value.items()):
            raise ConfigError(f"value {text} cannot be read: a space is missing after a colon")
        return value
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
        tree = yaml.load(text, _UniqueKeys)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {_problem(error)}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds no settings: it should be a YAML mapping of sections")
    return tree


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that is given twice is an error, not the last one's victory."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"'{key.value}' is given twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return super().construct_mapping(node, deep)


def _problem(error: yaml.YAMLError) -> str:
    """What is wrong and where, on one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())[:200]
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def _fit_weights(section: Any, name: str, note: Callable[[str], None]) -> None:
    """Fewer turns were asked for than the file has weights for: the first weights stay."""
    weights, turns = (section.get(key) for key in ("turn_gradient_weights", "num_turns"))
    if isinstance(weights, list) and type(turns) is int and 1 <= turns < len(weights):
        section["turn_gradient_weights"] = weights[:turns]
        note(f"note: {name}.num_turns is {turns}, so of turn_gradient_weights {weights} the first are used")


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


def _refuse_unknown(keys: set[Any], known: list[str], where: str, algorithm_name: str) -> None:
    for key in sorted(map(str, keys)):
        if key in known:
            continue
        refuse_planned(key, where)
        names = [*known, *other_names(where.rstrip("."), algorithm_name)]
        hint = _nearest(key, names, where, algorithm_name)
        if hint is None and len(known) > MANY:
            raise ConfigError(f"unknown setting '{where}{key}': the known ones are in marl_ray/config/schema.py")
        help_ = f"known here: {', '.join(known)}" if hint is None else f"did you mean '{hint}'?"
        raise ConfigError(f"unknown setting '{where}{key}': {help_}")


def _nearest(key: str, names: list[str], where: str, algorithm_name: str) -> str | None:
    """The dotted key a person most likely means: one called so in another section, one with these initials, one of
    the section's `names` that is spelt alike, one with this word."""
    last = {full: full.rpartition(".")[2] for full in _all_keys(algorithm_name)}
    ways = (
        [full for full, name in last.items() if name == key],
        [full for full, name in last.items() if "".join(word[0] for word in name.split("_")) == key],
        [f"{where}{name}" for name in difflib.get_close_matches(key, names, n=1, cutoff=0.5)],
        [full for full, name in last.items() if key in name.split("_")],
    )
    return next((found[0] for found in ways if found), None)


def _all_keys(algorithm_name: str, cls: type = Config, where: str = "") -> list[str]:
    """Every setting as a dotted key."""
    keys = []
    for name, hint in typing.get_type_hints(cls).items():
        full = where + (algorithm_name if hint is AlgorithmConfig else name)
        inner = typing.cast(type, hint)
        keys += _all_keys(algorithm_name, inner, f"{full}.") if dataclasses.is_dataclass(hint) else [full]
    return keys


def _build(cls: type, tree: Any, where: str, algorithm_name: str) -> Any:
    """An instance of dataclass `cls` from nested dictionaries."""
    if tree is None:
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"'{where.rstrip('.')}' should be a section with settings, got {tree!r}")
    hints = typing.get_type_hints(cls)
    _refuse_unknown(set(tree), [f.name for f in dataclasses.fields(cls)], where, algorithm_name)
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
        word = value.lower() if isinstance(value, str) else value
        if word in args and not isinstance(value, bool):
            return word
        raise TypeError
    if origin is list:
        if isinstance(value, str) and value.strip():  # a,b on a command line
            value = [item.strip() for item in value.split(",")]
        elif type(value) in (int, float):
            value = [value]
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
    if hint is int:
        return _to_int(value)
    if hint is bool and isinstance(value, str) and value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
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


def _to_int(value: Any) -> int:
    """Whole numbers, also as text or as 2.0."""
    if type(value) is int:
        return value
    number = _to_float(value)
    if not number.is_integer():
        raise TypeError
    return int(number)


def _describe(hint: Any) -> str:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        *first, last = (_describe(option) for option in args)
        return f"{', '.join(first)} or {last}"
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(str, args))
    if origin is list:
        return "a list like " + ("[1.5, 0.5]" if args[0] is float else "[a, b]")
    if origin is dict:
        return "a mapping"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    return names.get(hint, str(hint))
