"""The forms of an answer that programs read: versioned, sorted documents in JSON or YAML."""

from __future__ import annotations

from typing import Any

from gpuplane.cli.terminal import Console
from kubekit.errors import UsageError


def as_document(kind: str, data: dict[str, Any], form: str) -> str:
    """Return the answer as `json` or `yaml`; both have the same content."""
    if form == "json":
        return Console.as_json(kind, data)
    import msgspec  # late, as in Console.as_json
    import yaml  # late: 20 ms that other forms do without

    content = msgspec.to_builtins(data, str_keys=True)
    return str(yaml.safe_dump({"apiVersion": "cli.gpuplane.dev/v1", "kind": kind, **content})).rstrip()


def require_form(form: str, forms: tuple[str, ...], what: str) -> None:
    """Raise UsageError if a part of a command has not the form that another part of it has."""
    if form not in forms:
        raise UsageError(f"{what} has no form {form}", where="-o/--output", cure=f"choose from {', '.join(forms)}")
