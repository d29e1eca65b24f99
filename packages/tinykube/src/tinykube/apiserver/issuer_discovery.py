"""Serves the documents by which others check tokens of service accounts: OpenID discovery, and the key set.

Source: OpenID Connect Discovery 1.0; pkg/serviceaccount/openidmetadata.go of Kubernetes 1.36.
"""

from __future__ import annotations

from typing import Final

import msgspec

from tinykube.apiserver.account_tokens import ISSUER
from tinykube.apiserver.asgi import HttpRequest, HttpResponse
from tinykube.apiserver.failure import ApiFailure
from tinykube.apiserver.token_key import ALGORITHM, TokenKey

CONFIGURATION_PATH: Final = "/.well-known/openid-configuration"
KEYS_PATH: Final = "/openid/v1/jwks"
_HEADERS: Final = ((b"cache-control", b"public, max-age=3600"),)


class IssuerDiscovery:
    """Both documents, made once. `address` is HOST:PORT of this API server as clients reach it."""

    def __init__(self, key: TokenKey, address: str) -> None:
        configuration = {
            "issuer": ISSUER,
            "jwks_uri": f"https://{address}{KEYS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [ALGORITHM],
        }
        keys = {"keys": [key.public]}
        self._documents = {
            CONFIGURATION_PATH: HttpResponse(200, msgspec.json.encode(configuration), "application/json", _HEADERS),
            KEYS_PATH: HttpResponse(200, msgspec.json.encode(keys), "application/jwk-set+json", _HEADERS),
        }

    async def page(self, request: HttpRequest) -> HttpResponse | None:
        """Answer requests for the documents; None for other paths and methods.

        Raises ApiFailure 406 for another type of document than the one that there is.
        """
        if request.method not in ("GET", "HEAD"):
            return None
        found = self._documents.get(request.path.rstrip("/"))
        if found is None:
            return None
        wanted = request.header(b"accept")
        if wanted and "*/*" not in wanted and found.content_type not in wanted:
            text = f"406: Not Acceptable\n\nAvailable representations: {found.content_type}"
            raise ApiFailure(406, "NotAcceptable", text, {})
        return msgspec.structs.replace(found)
