"""Leads the links of a pod's page through the API server: `/x` becomes `/api/.../proxy/x`. Pure.

Which attributes are links is a fact of HTML; the real API server rewrites the same ones.
"""

from __future__ import annotations

import re
from typing import Final

_ATTRIBUTES: Final = (
    "action background cite classid codebase data formaction href icon longdesc manifest poster profile src usemap"
)
_TAG: Final = re.compile(rb"<[a-zA-Z][^<>]*>")
_LINK: Final = re.compile(
    rb"""(\s(?:%s)\s*=\s*["']?)(/(?!/)[^"'\s>]*)""" % "|".join(_ATTRIBUTES.split()).encode(), re.IGNORECASE
)


def is_page(content_type: str) -> bool:
    """Return whether a content type is that of HTML."""
    return content_type.partition(";")[0].strip().lower() == "text/html"


def led_through(link: str, prefix: str) -> str:
    """Return a link of a page behind `prefix` (`/api/.../proxy`); relative ones and those of other servers stay."""
    inside = link.startswith("/") and not link.startswith("//")
    return prefix + link if inside and not link.startswith(f"{prefix}/") else link


def rewrite_links(page: bytes, prefix: str) -> bytes:
    """Return a page of HTML with its links led through the API server."""

    def link(match: re.Match[bytes]) -> bytes:
        return match[1] + led_through(match[2].decode("latin-1"), prefix).encode("latin-1")

    return _TAG.sub(lambda tag: _LINK.sub(link, tag[0]), page)
