# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Recorded Alertmanager messages, moved to now and to the nodes of a test.

The recordings in tests/fixtures/alertmanager/ came from a real Alertmanager 0.25 (their shape, ids and odd corners are its own).
Only what must differ is rewritten: the times and the labels named by the caller. A label of None is taken out. The fingerprint is the
one that Alertmanager would give the labels.
"""

from __future__ import annotations

import argparse
import copy
import datetime as dt
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).resolve().parents[1] / "fixtures" / "alertmanager"


def recorded(name: str) -> dict[str, Any]:
    """A message as Alertmanager sent it, for example `firing-single`."""
    return json.loads((RECORDINGS / f"{name}.json").read_text())


def rewritten(
    message: Mapping[str, Any],
    labels: Mapping[str, str | None],
    *,
    annotations: Mapping[str, str | None] | None = None,
    starts_at: dt.datetime | None = None,
) -> dict[str, Any]:
    """`message` with `labels` set on every alert and its times moved so that the first alert starts at `starts_at` (default: now)."""
    moved: dict[str, Any] = copy.deepcopy(dict(message))
    alerts = moved["alerts"]
    shift = (starts_at or dt.datetime.now(dt.timezone.utc)) - _time(alerts[0]["startsAt"])
    for alert in alerts:
        _set(alert["labels"], labels)
        _set(alert["annotations"], annotations or {})
        alert["startsAt"] = _text(_time(alert["startsAt"]) + shift)
        if not alert["endsAt"].startswith("0001-"):  # Alertmanager's "not ended"
            alert["endsAt"] = _text(_time(alert["endsAt"]) + shift)
        alert["fingerprint"] = fingerprint(alert["labels"])
    moved["groupLabels"] = {name: alerts[0]["labels"].get(name, "") for name in moved["groupLabels"]}
    moved["commonLabels"] = _common([alert["labels"] for alert in alerts])
    moved["commonAnnotations"] = _common([alert["annotations"] for alert in alerts])
    moved["groupKey"] = "{}:{" + ", ".join(f'{name}="{value}"' for name, value in moved["groupLabels"].items()) + "}"
    return moved


def fingerprint(labels: Mapping[str, str]) -> str:
    """Alertmanager's: FNV-1a, 64 bits, over the sorted labels."""
    value = 14695981039346656037
    for byte in b"".join(str(text).encode(errors="surrogatepass") + b"\xff" for pair in sorted(labels.items()) for text in pair):
        value = (value ^ byte) * 1099511628211 % 2**64
    return f"{value:016x}"


def _set(target: dict[str, str], values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value


def _common(maps: list[dict[str, str]]) -> dict[str, str]:
    return {name: value for name, value in maps[0].items() if all(other.get(name) == value for other in maps)}


def _time(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text.replace("Z", "+00:00"))


def _text(time: dt.datetime) -> str:
    return time.astimezone(dt.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def main() -> None:
    parser = argparse.ArgumentParser(description="Print a recorded Alertmanager message with its times moved to now and labels set.")
    parser.add_argument("recording", help="for example firing-single")
    parser.add_argument("labels", nargs="*", metavar="NAME=VALUE")
    arguments = parser.parse_args()
    labels = dict(pair.split("=", 1) for pair in arguments.labels)
    json.dump(rewritten(recorded(arguments.recording), labels), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
