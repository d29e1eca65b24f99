"""Removes secrets from objects and logs of a bundle, and counts them.

Two ways, both for everything: by place (a field, a variable, a flag whose name is that of a secret) and by form (a
token, a key, a certificate, a password in an address wherever it stands). Secrets of Kubernetes are never read at all.

Invariants: what was redacted once stays as it is; text without a secret is unchanged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from kubekit.documents import DocumentError, decode_json

MARK: Final = "[redacted]"
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# The words of a name that is a secret's: API_TOKEN, dbPassword, client-secret.
_SECRET: Final = re.compile(
    r"(?i)(passw(or)?d|passphrase|secret|token|credential|api_?-?key|access_?-?key|private_?-?key|authorization|cookie"
    r"|ca_?-?bundle|certificate_?-?data|client_?-?key_?-?data|connection_?-?string|^auth$|dockerconfig|license)"
)
# Names that only point to a secret, or are figures.
_POINTER: Final = re.compile(r"(?i)(name|names|ref|path|file|kind|type|seconds|mode|optional|expir\w*|id)$")
_BODY: Final = r"[A-Za-z0-9._~+/=-]"
_FORMS: Final = (
    re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL),
    re.compile(r"\bLS0tLS1CRUdJTi[A-Za-z0-9+/=]*"),  # PEM in base64
    re.compile(r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{5,}(?:\.[A-Za-z0-9_-]*)?"),  # JWT
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),  # key ids of AWS
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|hf_|nvapi-|sk-|xox[a-z]-)[A-Za-z0-9_-]{16,}"),
)
_AUTHORIZED: Final = re.compile(rf"(?i)\b(bearer|basic)(\s+)({_BODY}{{6,}})")
_ADDRESS: Final = re.compile(r"([a-z][a-z0-9+.-]*://[^\s/:@\"']*:)([^\s/@\"']+)(@)", re.IGNORECASE)
_ASSIGNED: Final = re.compile(
    r"""(?ix)
    (?P<name>[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|credentials?|api[_-]?key|access[_-]?key|private[_-]?key
        |authorization|cookie)[\w-]*)
    (?P<middle>\\?["']?\s*[=:]\s*)
    (?P<open>\\?["']|)
    (?P<value>(?<=["'])[^"'\\]+|(?:\[redacted\]|[^\s,;&"'}\]\\])+)
    """
)
# `Bearer` is followed by the secret, which is found by its form.
_NO_SECRETS: Final = frozenset({"true", "false", "null", "none", "bearer", "basic"})
_FLAG: Final = re.compile(r"^--?([\w-]+)$")


class Redactor:
    """Removes secrets; `removed` counts them."""

    def __init__(self) -> None:
        self.removed = 0

    def text(self, text: str) -> str:
        """Return a text, such as a log, without secrets."""
        for form in _FORMS:
            text = form.sub(lambda found: self._mark(found[0]), text)
        text = _AUTHORIZED.sub(lambda found: found[1] + found[2] + self._mark(found[3]), text)
        text = _ADDRESS.sub(lambda found: found[1] + self._mark(found[2]) + found[3], text)
        return _ASSIGNED.sub(self._assigned, text)

    def data(self, data: Any) -> Any:
        """Return JSON data without secrets and without managedFields."""
        if isinstance(data, Mapping):
            return self._mapping(data)
        if isinstance(data, list | tuple):
            return self._words(list(data))
        return self.text(data) if isinstance(data, str) else data

    def _mapping(self, data: Mapping[str, Any]) -> dict[str, Any]:
        # A variable of the environment, a header, or another pair of name and value.
        of_pair = isinstance(data.get("name"), str) and is_secret_name(data["name"])
        found = {}
        for key, value in data.items():
            if key == "managedFields":
                continue
            if key == LAST_APPLIED and isinstance(value, str):
                found[key] = self._document(value)
            elif isinstance(value, str) and (is_secret_name(key) or (of_pair and key == "value")):
                found[key] = self._mark(value)
            else:
                found[key] = self.data(value)
        return found

    def _words(self, data: list[Any]) -> list[Any]:
        """Return a list; in a command line the word behind `--token` is a secret."""
        found = []
        before = ""
        for value in data:
            flag = _FLAG.match(before)
            if isinstance(value, str) and flag is not None and is_secret_name(flag[1]) and not value.startswith("-"):
                found.append(self._mark(value))
            else:
                found.append(self.data(value))
            before = value if isinstance(value, str) else ""
        return found

    def _document(self, text: str) -> str:
        try:
            return json.dumps(self.data(decode_json(text)), sort_keys=True)
        except DocumentError:
            return self._mark(text)

    def _assigned(self, found: re.Match[str]) -> str:
        value = found["value"]
        if _POINTER.search(found["name"]) or value.lower() in _NO_SECRETS:
            return found[0]
        return found["name"] + found["middle"] + found["open"] + self._mark(value)

    def _mark(self, value: str) -> str:
        if value and MARK not in value:  # otherwise it is counted already
            self.removed += 1
        return MARK if value else value


def is_secret_name(name: str) -> bool:
    """Return whether a field, a variable or a flag of this name has a secret: `API_TOKEN`, not `secretName`."""
    return bool(_SECRET.search(name)) and not _POINTER.search(name)
