# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.
"""nvidia-mig-parted's configuration file: read strictly, written so that it reads back the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import MissingLibrary
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.device_id import DeviceId, parse_device_id
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.errors import MigError
from ansible_collections.gpuops.remediation.plugins.module_utils._mig.names import parse_name

try:
    import yaml
except ImportError as error:
    YAML_IMPORT_ERROR: Optional[ImportError] = error
else:
    YAML_IMPORT_ERROR = None

_FIELDS = {"device-filter", "devices", "mig-enabled", "mig-devices"}


class PartedInvalid(MigError):
    """The file is not what nvidia-mig-parted reads."""

    kind = "mig_parted_invalid"


@dataclass(frozen=True)
class Entry:
    """What some GPUs of a node shall have. `devices` None is all of them; no filter is every model."""

    mig: bool
    counts: Mapping[str, int] = field(default_factory=dict)
    devices: Optional[tuple[int, ...]] = None
    device_filter: tuple[DeviceId, ...] = ()


Configs = Mapping[str, tuple[Entry, ...]]


def _need_yaml() -> None:
    if YAML_IMPORT_ERROR is not None:
        from ansible.module_utils.basic import missing_required_lib  # which a node has not while it boots

        raise MissingLibrary(missing_required_lib("PyYAML"), exception=str(YAML_IMPORT_ERROR))


def load(text: str) -> Configs:
    _need_yaml()
    try:
        twice = next(_repeated_keys(yaml.compose(text, yaml.SafeLoader), set()), None)
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PartedInvalid(f"no YAML: {error}") from error
    if twice is not None:
        raise PartedInvalid(f"line {twice.start_mark.line + 1} repeats the key {twice.value}")
    return read(document)


def dump(configs: Configs) -> str:
    _need_yaml()
    text: str = yaml.safe_dump(document_of(configs), sort_keys=False)
    return text


def read(document: Any) -> Configs:
    _need(isinstance(document, Mapping), "the file is no mapping")
    _need(document.get("version") == "v1", "the version is not v1")
    _need(set(document) == {"version", "mig-configs"}, "the file has to have version and mig-configs and nothing else")
    configs = document["mig-configs"]
    _need(isinstance(configs, Mapping) and configs, "mig-configs is empty or no mapping")
    for name, entries in configs.items():
        _need(isinstance(name, str), f"the name {name!r} is no text")
        _need(isinstance(entries, list) and entries, f"{name} is empty or no list")
    return {name: tuple(_entry(f"{name}[{place}]", raw) for place, raw in enumerate(entries)) for name, entries in configs.items()}


def entries_of(raw: Any, name: str) -> tuple[Entry, ...]:
    """Of one configuration in a file, which is text or the mapping that it is."""
    configs = load(raw) if isinstance(raw, str) else read(raw)
    if name not in configs:
        raise PartedInvalid(f"there is no configuration {name}; there are {', '.join(configs)}")
    return configs[name]


def document_of(configs: Configs) -> dict[str, Any]:
    return {"version": "v1", "mig-configs": {name: [_raw(entry) for entry in entries] for name, entries in configs.items()}}


def _entry(where: str, raw: Any) -> Entry:
    _need(isinstance(raw, Mapping), f"{where} is no mapping")
    unknown = sorted(str(key) for key in set(raw) - _FIELDS)
    _need(not unknown, f"{where} has unknown fields: {', '.join(unknown)}")
    for required in ("devices", "mig-enabled"):
        _need(required in raw, f"{where} has no {required}")
    mig, counts = raw["mig-enabled"], raw.get("mig-devices")
    _need(isinstance(mig, bool), f"{where}: mig-enabled is neither true nor false")
    _need(counts is not None or not mig, f"{where} enables MIG and has no mig-devices")
    _need(not (counts and not mig), f"{where} has mig-devices and does not enable MIG")
    return Entry(mig, _counts(where, counts or {}), _devices(where, raw["devices"]), _filter(where, raw.get("device-filter") or []))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0  # YAML's true is an int to Python


def _counts(where: str, raw: Any) -> Mapping[str, int]:
    _need(isinstance(raw, Mapping), f"{where}: mig-devices is no mapping")
    for name, count in raw.items():
        _need(isinstance(name, str) and parse_name(name) is not None, f"{where}: {name!r} is no profile")
        _need(_is_count(count), f"{where}: {name} has the count {count!r}")
    _need(not raw or any(raw.values()), f"{where}: all counts are 0")
    return dict(raw)


def _devices(where: str, raw: Any) -> Optional[tuple[int, ...]]:
    if raw == "all":
        return None
    _need(
        isinstance(raw, list) and all(_is_count(one) for one in raw),
        f"{where}: devices is neither all nor a list of indices",
    )
    return tuple(raw)


def _filter(where: str, raw: Any) -> tuple[DeviceId, ...]:
    ids = [raw] if isinstance(raw, str) else raw
    _need(
        isinstance(ids, list) and all(isinstance(one, str) for one in ids), f"{where}: device-filter is neither a text nor a list of texts"
    )
    parsed = [parse_device_id(one) for one in ids]
    wrong = [text for text, one in zip(ids, parsed) if one is None]
    _need(not wrong, f"{where}: device-filter has what is no PCI id: {', '.join(wrong)}")
    return tuple(one for one in parsed if one is not None)


def _raw(entry: Entry) -> dict[str, Any]:
    ids = [str(one) for one in entry.device_filter]
    raw: dict[str, Any] = {"device-filter": ids[0] if len(ids) == 1 else ids} if ids else {}
    raw["devices"] = "all" if entry.devices is None else list(entry.devices)
    raw["mig-enabled"] = entry.mig
    if entry.mig:
        raw["mig-devices"] = dict(entry.counts)
    return raw


def _repeated_keys(node: Any, seen: set[int]) -> Iterator[Any]:
    """A profile that is there twice has two counts, and YAML libraries take the last without a word."""
    if node is None or id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if key.value in keys:
                yield key
            keys.add(str(key.value))
            yield from _repeated_keys(value, seen)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value, seen)


def _need(holds: Any, otherwise: str) -> None:
    if not holds:
        raise PartedInvalid(otherwise)
