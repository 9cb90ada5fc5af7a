# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Messages that no Alertmanager sent, for hypothesis: from any bytes to a recorded one with parts exchanged."""

from __future__ import annotations

import copy
import json
from typing import Any

from alerts import fingerprint, recorded
from hypothesis import strategies as st

TEXT = st.text(st.characters(), max_size=40)  # lone surrogates among them, which JSON can spell and UTF-8 cannot
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**4000, -(2**63), 1e308, -0.0])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)
_RECORDED = [
    alert
    for name in ("firing-single", "firing-grouped-two-gpus", "resolved-single", "send_resolved-false-partial")
    for alert in recorded(name)["alerts"]
]
_TELLING = {  # values that look right, or nearly so
    "status": ["firing", "resolved", "Firing"],
    "startsAt": [
        "2026-11-29T20:19:40.555Z",
        "2026-02-29T00:00:00Z",
        "0001-01-01T00:00:00Z",
        "2026-11-29T20:19:40+99:99",
        "٢٠٢٦-11-29T20:19:40Z",
    ],
    "fingerprint": ["0123456789ABCDEF", "", "7"],
}
_LABELS = {
    "node": ["gpu-1", "gpu-2", "gpu-3", "GPU.1_x", "gpu-1\n", "-", "a" * 253, "a" * 254],
    "Hostname": ["gpu-1", "gpu-4"],
    "gpu": ["0", "7", "٣", "-1", "99999"],
    "gpu_uuid": ["GPU-5f0c1a52-6a8d-4f0e-9f0e-3c1d4e8a2b11", "MIG-5F0C1A52-6a8d-4f0e-9f0e-3c1d4e8a2b11", "GPU-"],
    "pci_bus_id": ["00000000:19:00.0", "0000:AF:00", "19:00"],
    "xid": ["79", "{{ 7 * 7 }}"],
    "rack": ["r1/a:2", "{{ 7 * 7 }}"],
    "hpc_job": ["4711", "-"],
    "alertname": ["GpuXidFatal", "{{ 7 * 7 }}"],
}


@st.composite
def near_alerts(draw: st.DrawFn) -> Any:
    """A recorded alert, with a few parts exchanged or taken out. A fingerprint is still that of its labels, or none."""
    alert: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(_RECORDED)))
    for target, telling in ((alert["labels"], _LABELS), (alert, _TELLING)):
        for name in draw(st.sets(st.sampled_from(sorted(telling)), max_size=3)):
            target[name] = draw(st.sampled_from(telling[name]))
        if target is not alert:
            alert["fingerprint"] = fingerprint(alert["labels"])
    for name in draw(st.sets(st.sampled_from(sorted(alert)), max_size=1)):
        if draw(st.booleans()):
            alert[name] = draw(VALUES)
        else:
            del alert[name]
    return alert


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    """What the endpoint takes: version 4, with a list of alerts."""
    message = recorded("firing-single")
    message["alerts"] = draw(st.lists(near_alerts() | VALUES, max_size=6))
    for name in draw(st.sets(st.sampled_from(["truncatedAlerts", "groupKey", "commonLabels", "unknown"]), max_size=2)):
        message[name] = draw(st.integers(-2, 3) | VALUES)
    return message


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Nearly such a message: a part exchanged or given twice, bytes changed, the end missing; or anything else."""
    content = draw(messages())
    for name in draw(st.sets(st.sampled_from(sorted(content)), max_size=1)):
        content[name] = draw(VALUES)
    text = json.dumps(content)
    if draw(st.booleans()):
        text = text[:-1] + ", " + json.dumps({draw(st.sampled_from(sorted(content))): draw(VALUES)})[1:]
    body = bytearray(text.encode())
    for position in draw(st.lists(st.integers(0, len(body) - 1), max_size=2)):
        body[position] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.none() | st.integers(0, len(body)))])


def turned(value: Any) -> Any:
    """The same JSON, with the keys of every object the other way round."""
    if isinstance(value, dict):
        return {name: turned(inner) for name, inner in reversed(value.items())}
    return [turned(inner) for inner in value] if isinstance(value, list) else value
