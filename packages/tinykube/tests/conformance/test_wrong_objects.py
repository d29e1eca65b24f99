"""Wrong objects of every kind (`wrong/`): status, reason and causes are those of a real API server.

Each is a valid object in which values at some paths are others. All are dry runs, so nothing but what is updated is
stored.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

WRONG = Path(__file__).with_name("wrong")


def kinds():
    for file in sorted(WRONG.glob("*.yaml")):
        found = yaml.safe_load(file.read_text())
        for kind in found if isinstance(found, list) else [found]:
            name = kind["path"].rpartition("/")[2] + ("" if kind["wrong"] else "-fixed")
            yield pytest.param(kind, id=name)


def changed(valid, changes):
    """Returns a copy of `valid` with each value at its path; a number is an index, null takes the field away."""
    found = copy.deepcopy(valid)
    for path, value in changes.items():
        *way, last = [int(part) if part.isdecimal() else part for part in parts(path)]
        at = found
        for part in way:
            if isinstance(at, dict) and part not in at:
                at[part] = {}
            at = at[part]
        if value is None:
            del at[last]
        elif isinstance(at, list) and last == len(at):
            at.append(value)
        else:
            at[last] = value
    return found


def parts(path):
    """Splits at dots that are not between quotes."""
    plain = path.split('"')
    found = []
    for at, text in enumerate(plain):
        found += [text] if at % 2 else [part for part in text.split(".") if part]
    return found


def named(value, here):
    if isinstance(value, dict):
        return {key: named(one, here) for key, one in value.items()}
    if isinstance(value, list):
        return [named(one, here) for one in value]
    return value.replace("{run}", here.suffix) if isinstance(value, str) else value


def verdict(answer):
    """Return the parts of an answer that clients read: status, reason, and for each field its reason and message."""
    if answer.status < 300:
        return {"status": answer.status}
    causes = (answer.body.get("details") or {}).get("causes") or ()
    # The lines after the first have the change, as Go prints its own types.
    causes = [{**cause, "message": cause["message"].partition("\n")[0]} for cause in causes]
    more = {"causes": causes} if causes else {"message": answer.body["message"]}
    return {"status": answer.status, "reason": answer.body.get("reason"), **more}


@pytest.mark.parametrize("kind", list(kinds()))
def test_wrong(here, kind):
    path = kind["path"].format(namespace=here.namespace)
    valid = named(kind["valid"], here)
    here.see("valid", verdict(here.create(path, valid, dryRun="All")))
    for name, changes in kind["wrong"].items():
        here.see(name, verdict(here.create(path, changed(valid, named(changes, here)), dryRun="All")))
    if updates := kind.get("updates"):
        stored = here.made(path, valid)
        for name, changes in updates.items():
            wrong = changed(stored, named(changes, here))
            wrong["metadata"].pop("resourceVersion")
            at = f"{path}/{stored['metadata']['name']}"
            here.see(f"update: {name}", verdict(here.replace(at, wrong, dryRun="All")))
