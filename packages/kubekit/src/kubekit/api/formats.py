"""The `format` keyword of structural schemas, and Go durations.

Only formats that Kubernetes checks are here; an unknown format is no constraint, as in Kubernetes.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Callable
from datetime import date, timedelta
from urllib.parse import urlsplit

from kubekit.api.durations import parse_time

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION_PART = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)")


def go_duration(text: str) -> timedelta:
    """`1h30m`, `1.5s`, `-2ms`, `0`. Raises ValueError."""
    body = text.lstrip("+-")
    if len(text) - len(body) > 1:
        raise ValueError(f"time: invalid duration {text!r}")
    if body == "0":
        return timedelta()
    seconds, end = 0.0, 0
    for match in _DURATION_PART.finditer(body):
        if match.start() != end:
            break
        seconds += float(match[1]) * _UNITS[match[2]]
        end = match.end()
    if not body or end != len(body):
        raise ValueError(f"time: invalid duration {text!r}")
    return timedelta(seconds=-seconds if text.startswith("-") else seconds)


def _raises_nothing(check: Callable[[str], object]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            check(text)
        except (ValueError, binascii.Error):
            return False
        return True

    return holds


def _matches(pattern: str, limit: int = 0) -> Callable[[str], bool]:
    compiled = re.compile(pattern)
    return lambda text: (not limit or len(text) <= limit) and compiled.fullmatch(text) is not None


def _uri(text: str) -> object:
    parts = urlsplit(text)
    if not parts.scheme and not text.startswith("/"):
        raise ValueError(text)
    return parts


_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_UUID = r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?%s[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}"

_FORMATS: dict[str, Callable[[str], bool]] = {
    "date-time": _raises_nothing(parse_time),
    "datetime": _raises_nothing(parse_time),
    "date": _raises_nothing(date.fromisoformat),
    "duration": _raises_nothing(go_duration),
    "byte": _raises_nothing(lambda text: base64.b64decode(text, validate=True)),
    "ipv4": _raises_nothing(ipaddress.IPv4Address),
    "ipv6": _raises_nothing(ipaddress.IPv6Address),
    "cidr": _raises_nothing(lambda text: ipaddress.ip_network(text, strict=False)),
    "uri": _raises_nothing(_uri),
    "uuid": _matches(_UUID % "[0-9a-f]"),
    "uuid3": _matches(_UUID % "3"),
    "uuid4": _matches(_UUID % "4"),
    "uuid5": _matches(_UUID % "5"),
    "email": _matches(r"[^@\s]+@[^@\s]+"),
    "hostname": _matches(rf"(?i){_LABEL}(\.{_LABEL})*\.?", 255),
    "mac": _matches(r"(?i)[0-9a-f]{2}([:-][0-9a-f]{2}){5}"),
    "hexcolor": _matches(r"#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})"),
    "dns1123Label": _matches(_LABEL, 63),
    "dns1123Subdomain": _matches(rf"{_LABEL}(\.{_LABEL})*", 253),
    "dns1035Label": _matches(r"[a-z]([-a-z0-9]*[a-z0-9])?", 63),
    "qualifiedName": _matches(rf"({_LABEL}(\.{_LABEL})*/)?{_NAME}", 317),
    "labelValue": _matches(rf"({_NAME})?", 63),
}


def valid_format(name: str, text: str) -> bool:
    """Return whether `text` is of the format; an unknown format always holds."""
    check = _FORMATS.get(name)
    return check is None or check(text)
