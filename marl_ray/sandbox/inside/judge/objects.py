"""The judge's side of references: stand-ins for what lives in the guest."""

from __future__ import annotations

import builtins
import weakref
from typing import TYPE_CHECKING, Any

from ..protocol.encoding import ProtocolError, UnsupportedValue, Wire, encode
from ..protocol.references import ALL_METHODS, FROM_GUEST, stdlib_name
from ..protocol.shared_objects import SharedObjects
from ..protocol.subclass_types import ORIGIN, clean_name, origin_of
from .proxies import ProxyObject, make_proxy, provider_of, proxy_class, target_of

if TYPE_CHECKING:
    from .guest_session import GuestSession

_MOST_TYPES = 256


class JudgeObjects(SharedObjects):
    """What judge and guest both have, and the references between them."""

    def __init__(self, session: GuestSession) -> None:
        super().__init__()
        self._session = session
        self._handles: weakref.WeakValueDictionary[int, ProxyObject] = weakref.WeakValueDictionary()
        self._classes: dict[tuple[str, int], type[ProxyObject]] = {}

    def handle(self, payload: Wire, place: Any) -> ProxyObject:
        kinds = [type(part) for part in payload]
        if kinds[:3] not in ([int, str, int], [str, str, int]) or len(kinds) != 4:
            raise ProtocolError("malformed reference")
        target, name, mask, hash_value = payload
        name = clean_name(name)
        if (
            not 0 <= mask <= ALL_METHODS
            or kinds[3] not in (int, type(None))
            or not -(1 << 63) <= (hash_value or 0) < 1 << 63
        ):
            raise ProtocolError("malformed reference")
        made = self._handles.get(target)
        if made is None:
            kind = self._classes.get((name, mask))
            if kind is None:
                if len(self._classes) >= _MOST_TYPES:
                    raise ProtocolError("objects of too many types")
                kind = self._classes[name, mask] = proxy_class(name, mask)
            made = self._handles[target] = make_proxy(kind, place, target, mask, hash_value)
        return made

    def resolve_reference(self, payload: Wire) -> ProxyObject:
        if type(payload[0]) is not int:
            raise ProtocolError("malformed reference")
        return self.handle(payload, self._session)

    def attach_origin(self, value: Any, home: Wire) -> None:
        if home is not None:
            object.__getattribute__(value, "__dict__")[ORIGIN] = self.resolve_reference(home)

    def resolve_name(self, name: str) -> Any:
        if name not in FROM_GUEST:
            raise ProtocolError("unexpected name")
        return FROM_GUEST[name]

    def encode_origin(self, value: Any) -> Wire:
        home = origin_of(value)
        return None if home is None else self.encode_reference(home)

    def encode_reference(self, value: Any) -> Wire:
        if isinstance(value, ProxyObject):
            if provider_of(value).open_session() is not self._session:
                raise UnsupportedValue("an object of the program was lost when its process ended")
            return {"h": [target_of(value)]}
        if value is Ellipsis or value is NotImplemented:
            return {"n": f"builtins:{value!r}"}
        if isinstance(value, Exception) and vars(builtins).get(type(value).__name__) is type(value):
            return {"e": [type(value).__name__, [encode(argument, self, 1) for argument in value.args]]}
        name = stdlib_name(value)
        if name is not None:
            return {"n": name}
        raise UnsupportedValue(f"{type(value).__name__} is not plain data")
