"""The client of a cloud's control, for `gpuplane cloud` and `gpuplane up --cloud`."""

from __future__ import annotations

import http.client
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from gpulab.cloud.settings import CloudAddress
from kubekit.documents import DocumentError, decode_json
from kubekit.errors import InvalidInput, NoAnswer

_SECONDS: Final = 30.0
_GOOD: Final = 200
_WRONG: Final = 400


def ask(address: CloudAddress, method: str, path: str, order: Any = None) -> Any:
    """Return the answer of the cloud. Raises InvalidInput as the cloud refuses, NoAnswer."""
    place = urlsplit(address.url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_SECONDS)
    try:
        connection.request(method, f"/_cloud/{path}", msgspec.json.encode(order) if order is not None else None)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise NoAnswer(f"the simulated cloud does not answer: {error}", where=address.url) from error
    finally:
        connection.close()
    try:
        content = decode_json(body)
    except DocumentError as error:
        raise NoAnswer(f"the simulated cloud answers with {answer.status}", where=address.url) from error
    if answer.status == _WRONG:
        raise InvalidInput(content["what"], where="simulated cloud", cure=content["cure"])
    if answer.status != _GOOD:
        raise NoAnswer(content["what"], where=address.url, cure=content["cure"])
    return content


def answers(address: CloudAddress) -> bool:
    """Return whether the cloud is ready at an address."""
    try:
        ask(address, "GET", "faults")
    except (NoAnswer, InvalidInput):
        return False
    return True
