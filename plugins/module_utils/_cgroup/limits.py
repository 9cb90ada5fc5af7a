# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Limits of a cgroup v2: what people write, what the kernel says, and what has to change. Nothing is read here.

A value is what the kernel's file holds: bytes, a number, or `max` for no limit; `cpu_max` is "QUOTA PERIOD" in microseconds; `io_max` is
{device: {key: value}}, the device as MAJOR:MINOR.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Callable, Union

from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step
from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError

MAX = "max"
MEMORY = ("memory_max", "memory_high", "memory_low", "memory_swap_max")
IO_KEYS = ("rbps", "wbps", "riops", "wiops")
NAMES = (*MEMORY, "memory_oom_group", "cpu_max", "cpu_weight", "pids_max", "io_max")  # in the order in which they are written
KEPT = tuple(name for name in NAMES if name != "memory_oom_group")  # that one is from OOMPolicy=, which cannot be set while a unit runs
NONE: Mapping[str, Any] = {"memory_low": 0, "memory_oom_group": False, "cpu_weight": 100, "io_max": []}  # `max` for the others
_PAGE_BYTES = 4096
_PERIOD_USEC = 100_000
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?$", re.IGNORECASE)
_PERCENT = re.compile(r"^(\d+(?:\.\d+)?)\s*%$")
_CPU = re.compile(r"^(\d+|max)(?:\s+(\d+))?$")

Value = Union[int, str, bool, dict[str, dict[str, Union[int, str]]]]
Limits = Mapping[str, Value]


class BadLimit(RemediationError):
    """A value that is none."""

    kind = "bad_limit"


class LimitBelowUse(RemediationError):
    """A memory limit that what runs there already exceeds: the kernel would stall it, or end it."""

    kind = "limit_below_use"


@dataclass(frozen=True)
class State:
    """`limits` has None for what the cgroup has no file for; `usage` is what its memory limits are compared with."""

    path: str
    exists: bool
    limits: Mapping[str, Value | None]
    usage: Mapping[str, int]
    managed_by: str = "cgroupfs"
    kept: Mapping[str, str] | None = None  # of what is wanted, what systemd has so too: `runtime`, until the next boot, or `persistent`

    def show(self) -> dict[str, Any]:
        return {
            "cgroup": self.path,
            "exists": self.exists,
            "managed_by": self.managed_by,
            "limits": {name: shown(self.limits.get(name)) for name in NAMES},
            "kept": dict(self.kept or {}),
        }


def shown(value: Value | None) -> Any:
    """As the module's options take it, so that what was before can be asked for again."""
    if isinstance(value, dict):
        return [{"device": device, **limits} for device, limits in sorted(value.items())]
    return value


@dataclass(frozen=True)
class Want:
    limits: Limits
    state: str = "existing"
    persistent: bool = False
    force: bool = False
    step_down: bool = False


# --- what people write ---


def parse(given: Mapping[str, Any], memory_bytes: int, device_of: Callable[[str], str]) -> dict[str, Value]:
    """What is null is left as it is. Percent of memory are of `memory_bytes`; `device_of` finds a device's numbers."""
    wanted: dict[str, Value] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in MEMORY:
            wanted[name] = parse_memory(name, value, memory_bytes)
            if wanted[name] == 0 and name in ("memory_max", "memory_high"):
                raise BadLimit(f"{name}: {value} leaves nothing to run in")
        elif name == "cpu_max":
            wanted[name] = parse_cpu(value)
        elif name == "cpu_weight":
            wanted[name] = _between(name, value, 1, 10_000)
        elif name == "pids_max":
            wanted[name] = value if value == MAX else _between(name, value, 1, 1 << 22)
        elif name == "io_max":
            wanted[name] = {device_of(one["device"]): _parse_io(one) for one in value}
        else:
            wanted[name] = value
    return wanted


def parse_memory(name: str, text: str, memory_bytes: int) -> int | str:
    """Whole pages, as the kernel keeps it."""
    if text.strip() == MAX:
        return MAX
    percent = _PERCENT.match(text.strip())
    wanted = memory_bytes * float(percent.group(1)) / 100 if percent else _parse_size(name, text)
    if percent and float(percent.group(1)) > 100:
        raise BadLimit(f"{name}: {text} is more memory than there is")
    return int(wanted) // _PAGE_BYTES * _PAGE_BYTES


def _parse_size(name: str, text: str) -> int:
    match = _SIZE.match(text.strip())
    if not match:
        raise BadLimit(f"{name}: {text!r} is neither bytes, a size such as 2G, nor {MAX}")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def parse_cpu(text: str) -> str:
    """150% is one CPU and a half; else as the kernel has it, QUOTA and perhaps PERIOD."""
    percent = _PERCENT.match(text.strip())
    if percent:
        quota: int | str = int(float(percent.group(1)) * _PERIOD_USEC / 100)
        period = _PERIOD_USEC
    else:
        match = _CPU.match(text.strip())
        if not match:
            raise BadLimit(f"cpu_max: {text!r} is neither a percentage of one CPU, QUOTA PERIOD in microseconds, nor {MAX}")
        quota = MAX if match.group(1) == MAX else int(match.group(1))
        period = int(match.group(2) or _PERIOD_USEC)
    if not 1000 <= period <= 1_000_000:
        raise BadLimit(f"cpu_max: a period of {period} microseconds is not within 1000 to 1000000")
    if isinstance(quota, int) and quota < 1000:
        raise BadLimit(f"cpu_max: {quota} microseconds in each {period} are less than the kernel's least, 1000")
    return f"{quota} {period}"


def _between(name: str, text: Any, least: int, most: int) -> int:
    try:
        value = int(text)
    except ValueError as error:
        raise BadLimit(f"{name}: {text!r} is no number") from error
    if not least <= value <= most:
        raise BadLimit(f"{name}: {value} is not within {least} to {most}")
    return value


def _parse_io(one: Mapping[str, Any]) -> dict[str, int | str]:
    wanted: dict[str, int | str] = {}
    for key in IO_KEYS:
        if one.get(key) is None:
            continue
        value = MAX if str(one[key]).strip() == MAX else _parse_size(f"io_max {key}", str(one[key]))
        if value == 0:
            raise BadLimit(f"io_max {key}: 0 would stop all of it")
        wanted[key] = value
    if not wanted:
        raise BadLimit(f"io_max: nothing is said about {one['device']}")
    return wanted


# --- what the kernel says ---


def read_value(name: str, text: str) -> Value:
    """The content of the file of that name."""
    text = text.strip()
    if name == "io_max":
        return {
            device: {key: value if value == MAX else int(value) for key, value in (pair.split("=") for pair in pairs)}
            for device, *pairs in (line.split() for line in text.splitlines())
        }
    if name == "memory_oom_group":
        return text == "1"
    if name == "cpu_max" or text == MAX:
        return text
    return int(text)


def file_of(name: str) -> str:
    """memory_swap_max -> memory.swap.max"""
    return name.replace("_", ".")


# --- what has to change ---


def changes(limits: Mapping[str, Value | None], wanted: Limits) -> dict[str, Value]:
    """What differs. No limit where the cgroup has no file for it is nothing to change."""
    found: dict[str, Value] = {}
    for name in NAMES:
        if name not in wanted:
            continue
        have, want = limits.get(name), wanted[name]
        if isinstance(want, dict):
            devices = have if isinstance(have, dict) else {}
            differing = {
                device: keys for device, keys in want.items() if any(devices.get(device, {}).get(k, MAX) != v for k, v in keys.items())
            }
            if differing:
                found[name] = differing
        elif have != want and not (have is None and is_none(name, want)):
            found[name] = want
    return found


def is_none(name: str, value: Value) -> bool:
    """Whether it limits and protects nothing."""
    return value == NONE.get(name, MAX) or (name == "cpu_max" and str(value).startswith(MAX))


def merged(limits: Mapping[str, Value | None], changed: Limits) -> dict[str, Value | None]:
    """As it is after the change."""
    after = {**limits, **changed}
    if "io_max" in changed:
        have = limits.get("io_max")
        devices = dict(have) if isinstance(have, dict) else {}
        for device, keys in _devices(changed["io_max"]).items():
            devices[device] = {**dict.fromkeys(IO_KEYS, MAX), **devices.get(device, {}), **keys}
        after["io_max"] = {device: keys for device, keys in devices.items() if any(value != MAX for value in keys.values())}
    return after


def _devices(value: Value) -> Mapping[str, Mapping[str, int | str]]:
    return value if isinstance(value, dict) else {}


def plan(state: State, want: Want) -> list[Step]:
    """A memory limit is not set below what is in use, unless forced; `step_down` has the kernel reclaim first (S15)."""
    if want.state == "absent":
        return [Step("remove", state.path, {"exists": True}, {"exists": False})] if state.exists else []
    steps = [] if state.exists else [Step("create", state.path, {"exists": False}, {"exists": True})]
    changed = changes(state.limits, want.limits)
    exceeded = {name: value for name in ("memory_max", "memory_high") for value in [changed.get(name)] if _below(value, state)}
    if exceeded and not want.force:
        name, least = min(exceeded.items(), key=lambda item: int(str(item[1])))
        if not want.step_down:
            raise below_use(state, name, int(str(least)))
        steps.append(_step_down(state, int(str(least))))
    writes = {name: value for name, value in want.limits.items() if name in changed or _must_be_kept(name, state, want)}
    writes = {name: changed.get(name, writes[name]) for name in NAMES if name in writes}
    if writes:
        before = {name: shown(_named(state.limits.get(name), value)) for name, value in writes.items()}
        steps.append(Step("set", state.path, before, {name: shown(value) for name, value in writes.items()}))
    return steps


def _step_down(state: State, limit: int) -> Step:
    """Somewhat lower than the limit, which is not to be met on the way."""
    soft = (limit - limit // 16) // _PAGE_BYTES * _PAGE_BYTES
    before = {"memory_high": state.limits.get("memory_high"), "memory_current": state.usage["memory_current"]}
    return Step("step_down", state.path, before, {"memory_high": soft, "memory_current": limit})


def _below(limit: Value | None, state: State) -> bool:
    return isinstance(limit, int) and limit < state.usage.get("memory_current", 0)


def below_use(state: State, name: str, limit: int) -> LimitBelowUse:
    used = state.usage["memory_current"]
    return LimitBelowUse(
        f"{name} {limit} of {state.path} is below the {used} bytes in use: what runs there would stall or be killed. "
        "With step_down the kernel reclaims what it can first",
        limit_bytes=limit,
        usage=dict(state.usage),
    )


def undo_of(steps: Sequence[Step]) -> dict[str, Any]:
    """What to ask for, to have it as it was."""
    before: Mapping[str, Any] = next((step.before for step in steps if step.action == "set"), {})
    return {name: NONE.get(name, MAX) if value is None else value for name, value in before.items()}


def _named(have: Value | None, written: Value) -> Value | None:
    """Of the devices those that are written."""
    if not isinstance(written, dict):
        return have
    devices = have if isinstance(have, dict) else {}
    return {device: devices.get(device, dict.fromkeys(IO_KEYS, MAX)) for device in written}


def _must_be_kept(name: str, state: State, want: Want) -> bool:
    """It is so now, and systemd would forget it: with its next change of the unit, or with the next boot."""
    if state.kept is None or name not in KEPT:
        return False
    return name not in state.kept or (want.persistent and state.kept[name] != "persistent")


def predict(state: State, steps: Sequence[Step], want: Want) -> State:
    """As it is after the steps; what is in use is not predicted."""
    if any(step.action == "remove" for step in steps):
        return replace(state, exists=False, limits={}, usage={}, kept=None)
    written = [name for step in steps if step.action == "set" for name in step.after]
    kept = state.kept
    if kept is not None:
        kept = {**kept, **{name: "persistent" if want.persistent else kept.get(name, "runtime") for name in written if name in KEPT}}
    return replace(state, exists=True, limits=merged(state.limits, changes(state.limits, want.limits)), kept=kept)
