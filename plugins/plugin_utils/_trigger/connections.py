# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Connections that ask for nothing, or take for ever to ask, are closed: aiohttp waits for them without end."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ansible_collections.gpuops.remediation.plugins.plugin_utils._trigger.libraries import web


class Connections:
    def __init__(self, idle_seconds: float) -> None:
        self._most = idle_seconds
        self._idle_since: dict[Any, float] = {}  # when it was first seen without a request
        self._busy: set[Any] = set()

    def middleware(self) -> Any:
        async def watched(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
            self._busy.add(request.protocol)
            self._idle_since.pop(request.protocol, None)
            try:
                return await handler(request)
            finally:
                self._busy.discard(request.protocol)

        return web.middleware(watched)

    def close_idle(self, connections: Iterable[Any], now: float) -> None:
        self._idle_since = {one: self._idle_since.get(one, now) for one in connections if one not in self._busy}
        for connection, since in self._idle_since.items():
            if now - since >= self._most:
                connection.force_close()


def server_log(name: str) -> logging.Logger:
    """For the server: what it says of a request that it cannot read quotes the header, which may hold a token."""
    logger = logging.getLogger(name)
    if not logger.filters:
        logger.addFilter(_without_quotes)
    return logger


def _without_quotes(record: logging.LogRecord) -> bool:
    kind = record.exc_info[0].__name__ if record.exc_info and record.exc_info[0] else "error"
    record.msg, record.args, record.exc_info = "a request could not be answered: %s", (kind,), None
    return True
