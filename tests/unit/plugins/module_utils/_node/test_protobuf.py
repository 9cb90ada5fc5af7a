# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib

import pytest
from ansible_collections.gpuops.remediation.plugins.module_utils._node.protobuf import Message, WireError
from hypothesis import given, strategies

# Field 1 "a", 2 = 300, 3 as fixed64, 4 as fixed32, 5 a message with field 1 "b", and field 1 again: "z"
BYTES = b"\x0a\x01a\x10\xac\x02\x19" + b"\0" * 8 + b"\x25" + b"\0" * 4 + b"\x2a\x03\x0a\x01b\x0a\x01z"


def test_fields():
    message = Message(BYTES)
    assert (message.text(1), message.texts(1), message.text(9)) == ("z", ["a", "z"], "")
    assert [inner.text(1) for inner in message.messages(5)] == ["b"]


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05a", b"\x0b", b"\x0a" + b"\x80" * 11, b"\x19\0"])
def test_what_is_cut_off_or_unknown(data):
    with pytest.raises(WireError):
        Message(data)


@given(strategies.binary(max_size=40))
def test_no_bytes_are_worse_than_an_error(data):
    with contextlib.suppress(ValueError):
        Message(data).text(1)
