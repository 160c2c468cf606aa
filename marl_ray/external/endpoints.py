"""The endpoint, address and key variable of an expert model, by the model's case-insensitive name.

The table is in docs/how-to/configure.md. The row is chosen by the first of these rules that applies:

1. A prefix `anthropic:`, `deepseek:`, `dashscope:` or `openai:` in the name.
2. An own server: with `external.expert_base_url`, or with OPENAI_BASE_URL (unless the vendor's own address variable is
   set too), every name except claude* is a model on that server, with OPENAI_API_KEY. Hub ids (a/b) are OpenAI's too.
3. The name.

A key is always required, so that a missing key is an error at the start; for a server without keys any word works.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from marl_ray.config import ExternalConfig
from marl_ray.core.errors import UserError


@dataclass(frozen=True, slots=True)
class Vendor:
    """A row of the table. `name` is its prefix."""

    name: str
    models: str
    address: str

    @property
    def key_variable(self) -> str:
        return f"{self.name.upper()}_API_KEY"

    @property
    def address_variable(self) -> str:
        """Environment variable that replaces the address."""
        return f"{self.name.upper()}_BASE_URL"


OPENAI = Vendor("openai", "", "https://api.openai.com/v1")
ANTHROPIC = Vendor("anthropic", "claude", "https://api.anthropic.com")
DEEPSEEK = Vendor("deepseek", "deepseek", "https://api.deepseek.com")
DASHSCOPE = Vendor("dashscope", "qwen", "https://dashscope.aliyuncs.com/compatible-mode/v1")
VENDORS = (ANTHROPIC, DEEPSEEK, DASHSCOPE, OPENAI)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address. `key_variable` is the name of the environment variable with the key."""

    vendor: Vendor
    model: str
    address: str
    key_variable: str

    def __str__(self) -> str:
        """Return model and host; the address itself may contain a password."""
        where = urlsplit(self.address)
        port = f":{where.port}" if where.port else ""
        return f"{self.model} at {where.hostname}{port}"


def endpoint_of(config: ExternalConfig, variables: Mapping[str, str] = os.environ) -> Endpoint:
    """Return the endpoint of the config's expert. Raises UserError for a missing model, key or valid address."""
    name = (config.expert_model or "").strip()
    base_url = (config.expert_base_url or "").strip()
    vendor = _vendor(name, base_url, variables)
    if name.lower().startswith(f"{vendor.name}:"):
        name = name[len(vendor.name) + 1 :].strip()
    if not name:
        raise UserError("external.mode expert_edits needs external.expert_model, the model that writes the edits")
    source = "external.expert_base_url" if base_url else vendor.address_variable
    address = base_url or variables.get(vendor.address_variable, "").strip() or vendor.address
    if not is_http(address):
        raise UserError(f"{source} is not an address like http://localhost:8000/v1")
    if vendor is ANTHROPIC:  # the client adds this part of the path itself
        address = address.rstrip("/").removesuffix("/v1")
    if "/" in name and vendor is OPENAI and _same(address, OPENAI.address):
        raise UserError(
            f"external.expert_model {name!r} is a hub id, which no vendor serves: set external.expert_base_url to the "
            "server that does"
        )
    if not variables.get(vendor.key_variable, "").strip():
        hint = ""
        if not _same(address, vendor.address):
            hint = " (any word, if the server asks for none)"
        variable = vendor.key_variable
        raise UserError(f"external.expert_model {name!r} needs a key: set the environment variable {variable}{hint}")
    return Endpoint(vendor, name, address, vendor.key_variable)


def _vendor(name: str, base_url: str, variables: Mapping[str, str]) -> Vendor:
    for vendor in VENDORS:
        if name.lower().startswith(f"{vendor.name}:"):
            return vendor
    named = next(vendor for vendor in VENDORS if name.lower().startswith(vendor.models))
    general = variables.get(OPENAI.address_variable, "").strip()
    own_server = general and not _same(general, OPENAI.address) and not variables.get(named.address_variable)
    if named is not ANTHROPIC and ("/" in name or base_url or own_server):
        return OPENAI
    return named


def is_http(address: str) -> bool:
    """Return whether an address has the form `http://host:port/path`, or with https."""
    try:
        where = urlsplit(address)
        return where.scheme in ("http", "https") and bool(where.hostname) and (where.port or 1) > 0
    except ValueError:  # an invalid port
        return False


def _same(address: str, other: str) -> bool:
    return address.rstrip("/").lower() == other.lower()
