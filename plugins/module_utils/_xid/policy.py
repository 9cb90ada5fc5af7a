# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The Xid policy: a versioned data file -> typed rows. What a fault means is decided there and nowhere in code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

from ansible.module_utils.basic import missing_required_lib
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary, RemediationError

try:
    import yaml
except ImportError as error:
    YAML_IMPORT_ERROR: Optional[ImportError] = error
else:
    YAML_IMPORT_ERROR = None

try:
    import jsonschema
except ImportError as error:
    JSONSCHEMA_IMPORT_ERROR: Optional[ImportError] = error
else:
    JSONSCHEMA_IMPORT_ERROR = None

Facts = Mapping[str, Any]

SCHEMA_NAME = "xid_policy.schema.json"
CATALOG_CODES = range(1, 174)  # every code that anybody classifies; the policy decides all of them in writing

# From what changes nothing to what takes most; the worst finding on a GPU decides.
ACTIONS = ("none", "observe", "terminate_client", "freeze", "kill", "close_instance", "hold", "quarantine_gpu", "quarantine_node")
REPAIRS = ("none", "restart_app", "reset_gpu", "reboot_node", "replace")
# Of findings that take the same, the one nearer to the metal names the incident: it explains the others.
DOMAINS = ("none", "unknown", "application", "driver", "fabric", "nvlink", "security", "firmware", "thermal", "power", "memory", "bus")
QUARANTINES = {"quarantine_gpu": "gpu", "quarantine_node": "node"}  # action -> its scope
NEVER_BY_FLEET = ("application", "nvlink", "fabric", "none", "unknown")  # one crash of a job shows on many nodes


class PolicyInvalid(RemediationError):
    """The policy file cannot be read, breaks its schema or contradicts itself."""

    kind = "policy_invalid"


@dataclass(frozen=True)
class Change:
    """How other evidence on the same GPU changes a row."""

    when: Facts
    then: Mapping[str, Any]
    because: str

    def applies(self, facts: Facts) -> bool:
        return all(_holds(name, wanted, facts) for name, wanted in self.when.items())


@dataclass(frozen=True)
class Row:
    """One decision of the policy. `because` is set where other evidence changed it."""

    key: str
    meaning: str
    domain: str
    scope: str
    action: str
    repair: str
    rationale: str
    certain_on_fleet_evidence: bool = False
    evict_blind: bool = False
    changes: tuple[Change, ...] = ()
    because: str = ""

    @property
    def rank(self) -> tuple[int, int, int]:
        """Orders rows by how much they take."""
        return ACTIONS.index(self.action), REPAIRS.index(self.repair), DOMAINS.index(self.domain)

    def under(self, facts: Facts) -> Row:
        """The row as other evidence on the same GPU leaves it."""
        for change in self.changes:
            if change.applies(facts):
                return self._changed(change)
        return self

    def variants(self) -> Iterator[Row]:
        """The row itself and everything that it can become."""
        yield self
        for change in self.changes:
            yield self._changed(change)

    def _changed(self, change: Change) -> Row:
        return replace(self, because=change.because, **change.then)


@dataclass(frozen=True)
class Repeats:
    """Different programs that fail on one GPU only (S14)."""

    programs: int
    hours: int
    row: Row


@dataclass(frozen=True)
class Policy:
    version: str
    catalog: str
    xids: Mapping[int, Row]
    unknown_xid: Row
    sxid: Row
    recovery_actions: Mapping[str, Row]
    states: Mapping[str, Row]
    repeats: Repeats

    def row(self, code: int) -> Row:
        """What the policy says of an Xid; codes that it does not know have a written rule."""
        return self.xids.get(code) or replace(self.unknown_xid, key="xid %d" % code)

    def keeps_from_service(self, event: Mapping[str, Any]) -> bool:
        """Whether one line of the kernel log alone does (S17); a switch that does not say how bad it is needs a person first."""
        facts = {"xids": {event["code"]}, "later_xids": (), "severity": event.get("severity")}
        if event.get("sxid"):
            return self.sxid.under(facts).action not in ("none", "observe")
        return self.row(event["code"]).under(facts).action in QUARANTINES

    def recovery(self, action: str) -> Row:
        return self.recovery_actions.get(action) or self.recovery_actions["unknown"]


def load_policy(path: str, schema_path: Optional[str] = None) -> Policy:
    """Reads and checks a policy file; its schema lies beside it unless named."""
    for library, error in (("PyYAML", YAML_IMPORT_ERROR), ("jsonschema", JSONSCHEMA_IMPORT_ERROR)):
        if error is not None:
            raise MissingLibrary(missing_required_lib(library), exception=str(error))
    schema_path = schema_path or os.path.join(os.path.dirname(path), SCHEMA_NAME)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same in C, where PyYAML has it
    raw = _load(path, lambda stream: yaml.load(stream, loader), yaml.YAMLError)
    schema = _load(schema_path, json.load, ValueError)
    problems = [_problem(error) for error in jsonschema.Draft7Validator(schema).iter_errors(raw)]
    if problems:
        raise PolicyInvalid("the policy %s breaks its schema: %s" % (path, "; ".join(problems[:5])), path=path, problems=problems)
    policy, problems = read_policy(raw)
    if problems:
        raise PolicyInvalid("the policy %s contradicts itself: %s" % (path, "; ".join(problems[:5])), path=path, problems=problems)
    return policy


def read_policy(raw: Mapping[str, Any]) -> tuple[Policy, list[str]]:
    """A document that fits the schema -> the policy, and what contradicts itself in it."""
    xids: dict[int, Row] = {}
    problems = []
    for entry in raw["xids"]:
        for code in _codes(entry["codes"]):
            if code in xids:
                problems.append("Xid %d has two rows" % code)
            xids[code] = _row("xid %d" % code, entry)
    missing = [str(code) for code in CATALOG_CODES if code not in xids]
    if missing:
        problems.append("no row for Xid %s" % ", ".join(missing))
    repeats = raw["repeats"]
    policy = Policy(
        version=raw["policy_version"],
        catalog="%s, %s" % (raw["catalog"]["name"], raw["catalog"]["revision"]),
        xids=xids,
        unknown_xid=_row("unknown xid", raw["unknown_xid"]),
        sxid=_row("sxid", raw["sxid"]),
        recovery_actions={name: _row("recovery action %s" % name, rule) for name, rule in raw["recovery_actions"].items()},
        states={name: _row(name, rule) for name, rule in raw["states"].items()},
        repeats=Repeats(repeats["programs"], repeats["hours"], _row("repeats", repeats)),
    )
    rows = [*xids.values(), policy.unknown_xid, policy.sxid, *policy.recovery_actions.values(), *policy.states.values(), policy.repeats.row]
    return policy, problems + [problem for row in rows for variant in row.variants() for problem in _contradictions(variant)]


def _row(key: str, entry: Mapping[str, Any]) -> Row:
    changes = tuple(Change(change["when"], change["then"], change["because"]) for change in entry.get("changes", ()))
    return Row(key=key, meaning=entry["meaning"], rationale=entry["rationale"], changes=changes, **entry["decision"])


def _codes(items: Sequence[Any]) -> Iterator[int]:
    for item in items:
        first, _dash, last = str(item).partition("-")
        yield from range(int(first), int(last or first) + 1)


def _contradictions(row: Row) -> Iterator[str]:
    if row.action in QUARANTINES and row.scope != QUARANTINES[row.action]:
        yield "%s: %s at scope %s" % (row.key, row.action, row.scope)  # S14: process and container scope never taint
    if row.domain == "application" and row.action in QUARANTINES:
        yield "%s: a quarantine for the application's fault" % row.key
    if row.evict_blind and not row.certain_on_fleet_evidence:
        yield "%s: evict_blind without certain_on_fleet_evidence" % row.key
    if row.certain_on_fleet_evidence and row.domain in NEVER_BY_FLEET:
        yield "%s: the domain %s is never certain on fleet evidence" % (row.key, row.domain)


def _holds(name: str, wanted: Any, facts: Facts) -> bool:
    if name == "xids_any":
        return any(code in facts["xids"] for code in wanted)
    if name == "xids_none":
        return not any(code in facts["xids"] for code in wanted)
    if name == "followed_by":
        return any(code in facts["later_xids"] for code in wanted)
    return bool(facts.get(name) == wanted)  # a fact that could not be read is None and fulfils nothing


def _load(path: str, parse: Any, error_type: Any) -> Any:
    try:
        with open(path, encoding="utf-8") as stream:
            return parse(stream)
    except OSError as error:
        raise PolicyInvalid("cannot read %s: %s" % (path, error.strerror), path=path) from error
    except (error_type, UnicodeDecodeError) as error:
        raise PolicyInvalid("cannot parse %s: %s" % (path, error), path=path) from error


def _problem(error: Any) -> str:
    return "%s: %s" % ("/".join(map(str, error.absolute_path)) or "top level", error.message[:200])
