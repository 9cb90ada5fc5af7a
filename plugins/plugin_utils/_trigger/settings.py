# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this plugin util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""The event source's arguments, checked once."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Optional

from ansible_collections.gpuops.remediation.plugins.module_utils._errors import RemediationError
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.alerts import MAX_MESSAGE_BYTES, LabelMap, label_map
from ansible_collections.gpuops.remediation.plugins.module_utils._incident.budget import Limits
from ansible_collections.gpuops.remediation.plugins.module_utils._ledger.argspec import DEFAULT_URL

POLICY_FILE = str(Path(__file__).parents[3] / "data" / "xid_policy.yml")
FENCE_IN = ("source", "playbook")
_NO_NUMBER = "it must be text that is none, since the rulebook's templates would make it one"


class BadArguments(RemediationError):
    kind = "bad_arguments"


@dataclass(frozen=True)
class Settings:
    """tokens: any of them opens the door, so that a new one can be given out before the old one is taken away."""

    tokens: tuple[str, ...] = field(repr=False)
    port: int
    host: str = "127.0.0.1"
    path: str = "/alerts"
    certfile: Optional[str] = None
    keyfile: Optional[str] = None
    cafile: Optional[str] = None
    ledger_url: str = field(default=DEFAULT_URL, repr=False)
    alert_labels: Mapping[str, Any] = field(default_factory=dict)
    window_seconds: float = 0.5
    batch_size: int = 200
    retry_seconds: float = 120.0
    max_body_bytes: int = MAX_MESSAGE_BYTES
    client_seconds: float = 60.0
    policy_file: str = POLICY_FILE
    correlation_seconds: float = 15.0
    fence_in: str = "playbook"
    kubeconfig: Optional[str] = None
    context: Optional[str] = None
    prometheus_url: str = field(default="", repr=False)
    prometheus_token: Optional[str] = field(default=None, repr=False)
    prometheus_ca_file: Optional[str] = None
    limits: Mapping[str, Any] = field(default_factory=dict)
    max_parallel_nodes: int = 5
    alertmanager_urls: tuple[str, ...] = ()
    alertmanager_token: Optional[str] = field(default=None, repr=False)
    alertmanager_ca_file: Optional[str] = None

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Settings:
        """From what the rulebook says; keys that begin with eda_ are the engine's own."""
        given = {name: value for name, value in args.items() if not name.startswith("eda_") and name != "feedback"}
        known = {one.name for one in fields(cls)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise BadArguments("the source has no argument %s; it has %s" % (", ".join(unknown), ", ".join(sorted(known))))
        given["tokens"] = _tokens(given.get("tokens"))
        given["alertmanager_urls"] = _urls(given.get("alertmanager_urls"))
        given["port"] = _number(given, "port", int, 0, 65535)
        for name, kind, least, most in (
            ("window_seconds", float, 0.0, 60.0),
            ("batch_size", int, 1, 10_000),
            ("retry_seconds", float, 1.0, 3600.0),
            ("correlation_seconds", float, 0.0, 300.0),
            ("max_parallel_nodes", int, 0, 10_000),
            ("client_seconds", float, 1.0, 3600.0),
            ("max_body_bytes", int, 1024, MAX_MESSAGE_BYTES),
        ):
            if name in given:
                given[name] = _number(given, name, kind, least, most)
        if bool(given.get("certfile")) != bool(given.get("keyfile")) or (given.get("cafile") and not given.get("certfile")):
            raise BadArguments("TLS needs certfile and keyfile; cafile, which asks clients for a certificate, needs both")
        if isinstance(given.get("prometheus_token"), (int, float)):
            raise BadArguments("prometheus_token is a number: %s" % _NO_NUMBER)
        label_map(given.get("alert_labels"))
        Limits.of(given.get("limits"))
        if not isinstance(given.get("alertmanager_token") or "", str):
            raise BadArguments("alertmanager_token must be text that is no number: the rulebook's templates would make it one")
        if given.get("fence_in", "playbook") not in FENCE_IN:
            raise BadArguments("fence_in is one of %s" % ", ".join(FENCE_IN))
        return cls(**{name: value for name, value in given.items() if value not in (None, "")})  # a rulebook cannot leave an argument out

    @property
    def labels(self) -> LabelMap:
        return label_map(self.alert_labels)

    @property
    def takes_tokens_in_the_clear(self) -> bool:
        """Whether another machine can post here, and anybody between can read its token."""
        return not self.certfile and not _is_loopback(self.host)

    @property
    def tls(self) -> Optional[ssl.SSLContext]:
        if not self.certfile:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.cafile)
        context.load_cert_chain(self.certfile, self.keyfile)
        if self.cafile:
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def _tokens(given: Any) -> tuple[str, ...]:
    tokens = [given] if isinstance(given, str) else given
    if any(isinstance(token, (int, float)) for token in (tokens if isinstance(tokens, (list, tuple)) else [tokens])):
        raise BadArguments("a token is a number: %s" % _NO_NUMBER)
    if not isinstance(tokens, (list, tuple)) or not tokens or not all(isinstance(token, str) and token.strip() for token in tokens):
        raise BadArguments("tokens is needed: one bearer token, or a list of several while they are changed")
    return tuple(token.strip() for token in tokens)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _urls(given: Any) -> tuple[str, ...]:
    urls = [given] if isinstance(given, str) and given else given or ()
    if not isinstance(urls, (list, tuple)) or not all(isinstance(url, str) and url for url in urls):
        raise BadArguments("alertmanager_urls is a list of addresses")
    return tuple(urls)


def _number(given: Mapping[str, Any], name: str, kind: Any, least: float, most: float) -> Any:
    try:
        value = kind(given[name])
    except KeyError:
        raise BadArguments("%s is needed" % name) from None
    except (TypeError, ValueError):
        raise BadArguments("%s is no number" % name) from None
    if not least <= value <= most:
        raise BadArguments("%s is %s; it may be %s to %s" % (name, value, least, most))
    return value
