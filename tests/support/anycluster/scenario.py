"""One scenario: its namespace, its names, its records, and their comparison with a real cluster's answers.

Values that differ in every run have placeholders: names that the scenario or the server chose, uids, times,
versions, addresses. All else is compared, so a field, a message or a status code that differs is found.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import re
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.anycluster.api import Answer, Api, Object

_UUID: Final = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")
_TIME: Final = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_MOUNT: Final = re.compile(r"\bkube-api-access-\w{5}\b")
_NUMBER: Final = re.compile(
    r"(?<=record \()\d+|(?<=current: )\d+|(?<=resource version: )\d+|(?<=object meta: )\d+\b(?!-)"
)
_SET: Final = re.compile(r'(?<=ReplicaSet "d-)[a-z0-9]+')
_ADDRESS: Final = re.compile(r"\b10\.\d+\.\d+\.\d+\b")
_VERSIONS: Final = ("resourceVersion", "continue", "clusterIP", "nodePort")
_HASHES: Final = ("pod-template-hash", "controller-revision-hash", "deprecated.daemonset.template.generation")


class Normal:
    """Makes alike what no two runs have alike."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def __call__(self, value: Any) -> Any:
        self._learn(value)
        return self._clean(value, "")

    def _learn(self, value: Any) -> None:
        """Names that the server made: from generateName, and the hashes of templates."""
        if isinstance(value, list):
            for item in value:
                self._learn(item)
        elif isinstance(value, dict):
            labels = value.get("labels")
            for key in _HASHES[:2]:
                if isinstance(labels, dict) and labels.get(key):
                    self.names[labels[key].rpartition("-")[2]] = "HASH"
            prefix, name = value.get("generateName"), value.get("name")
            if prefix and name and name.startswith(prefix) and name != prefix:
                self.names[name.removeprefix(prefix)] = "XXXXX"
            for item in value.values():
                self._learn(item)

    def _clean(self, value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {self._text(k): self._clean(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return _settled([self._clean(item, key) for item in value])
        if key in _VERSIONS and value and value != "None":
            return key.upper()
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for name in sorted(self.names, key=len, reverse=True):
            text = text.replace(name, self.names[name])
        text = _UUID.sub("UID", text)
        text = _NUMBER.sub("VERSION", text)
        text = _SET.sub("HASH", text)
        text = _MOUNT.sub("kube-api-access-XXXXX", text)
        return _ADDRESS.sub("ADDRESS", _TIME.sub("TIME", text))


def _settled(items: list[Any]) -> list[Any]:
    """The entries of managedFields by manager: servers sort them by time, in seconds, first."""
    if all(isinstance(item, dict) and "fieldsV1" in item for item in items):
        return sorted(items, key=lambda item: (item["manager"], item["operation"], item.get("subresource", "")))
    return items


class Scenario(Api):
    """An administrator's connection with a namespace of its own, and the transcript of what was seen."""

    def __init__(self, kubeconfig: Path, ordinary: Path, suffix: str) -> None:
        super().__init__(kubeconfig)
        self.ordinary = Api(ordinary)
        self.suffix = suffix
        self.namespace = f"conformance-{suffix}"
        self.steps: dict[str, Any] = {}
        self.normal = Normal()
        self.normal.names |= {self.namespace: "NAMESPACE", f"-{suffix}": "", suffix: "RUN", self.access.url: "URL"}
        self._made: list[str] = []
        self._connections: list[Api] = []

    # -- names and paths -------------------------------------------------------------------------------------------
    def name(self, base: str) -> str:
        """Return a name that no other scenario has, for an object in no namespace."""
        return f"{base}-{self.suffix}"

    def core(self, path: str) -> str:
        return f"/api/v1/namespaces/{self.namespace}/{path}"

    def apps(self, path: str) -> str:
        return self.at("apps/v1", path)

    def at(self, api_version: str, path: str) -> str:
        return f"/apis/{api_version}/namespaces/{self.namespace}/{path}"

    # -- calls -----------------------------------------------------------------------------------------------------
    def call(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        answer = super().call(method, path, body, **more)
        if answer.status == 201 and method in ("POST", "PATCH") and "/namespaces/" not in path and "dryRun" not in more:
            made = (answer.body.get("metadata") or {}).get("name") if isinstance(answer.body, dict) else None
            if made and answer["metadata"].get("uid"):
                self._made.append(path if method == "PATCH" else f"{path}/{made}")
        return answer

    def bearer(self, token: str) -> Api:
        """Connect as the user with this token."""
        made = Api(self.access.kubeconfig, token=token)
        self._connections.append(made)
        return made

    def made(self, path: str, body: Any, **more: Any) -> Object:
        """Create an object; return the answer. Fails if the create fails."""
        answer = self.create(path, body, **more)
        assert answer.status == 201, answer.body
        whole: Object = answer.body
        return whole

    # -- what was seen ---------------------------------------------------------------------------------------------
    def see(self, step: str, value: Any, *, managed: bool = False) -> None:
        """Keeps `value` (an Answer, an object, a list) under the step's name. managedFields only if asked for."""
        assert step not in self.steps, f"two steps are called {step!r}"
        value = copy.deepcopy(value.seen if isinstance(value, Answer) else value)
        if not managed:
            _without(value, "managedFields")
        self.steps[step] = self.normal(value)

    def end(self) -> None:
        """Deletes what lies in no namespace, last first, and the namespace."""
        try:
            for path in reversed(self._made):
                super().call("DELETE", path)
            super().call("DELETE", f"/api/v1/namespaces/{self.namespace}")
        finally:
            for connection in (self, self.ordinary, *self._connections):
                connection.close()


def _without(value: Any, key: str) -> None:
    if isinstance(value, dict):
        value.pop(key, None)
        for item in value.values():
            _without(item, key)
    elif isinstance(value, list):
        for item in value:
            _without(item, key)


# -- what a real cluster showed --------------------------------------------------------------------------------------
def record(file: Path, steps: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text(steps))


def recorded(file: Path) -> dict[str, Any]:
    with contextlib.suppress(FileNotFoundError):
        found: dict[str, Any] = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
        return found
    return {}


def text(steps: dict[str, Any]) -> str:
    return yaml.dump(steps, Dumper=_Plain, sort_keys=False, width=110, allow_unicode=True)


class _Plain(yaml.CSafeDumper):
    """No anchors: what two steps have in common is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def differences(expected: dict[str, Any], seen: dict[str, Any]) -> dict[str, str]:
    """Step -> a diff from what was expected to what was seen."""
    found = {}
    for step in {**expected, **seen}:
        before, after = (steps.get(step, "(no such step)") for steps in (expected, seen))
        if before != after:
            real, here = (yaml.dump(v, Dumper=_Plain, width=110).splitlines() for v in (before, after))
            found[step] = "\n".join(difflib.unified_diff(real, here, "real", "here", lineterm="", n=4))
    return found
