# Copyright (c) The gpuops.remediation maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this module util is **PRIVATE** to the collection. It can have breaking changes at any time.

"""Brings one probe to where it is wanted: read, plan, apply, read again."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from ansible_collections.gpuops.remediation.plugins.module_utils._bpf import kernel, syscalls
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.errors import ProbeError
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libbpf import LoadedObject
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.libraries import Copy
from ansible_collections.gpuops.remediation.plugins.module_utils._bpf.probes import ENTER, FUNCTIONS, LEAVE, Link, Probe, file_of
from ansible_collections.gpuops.remediation.plugins.module_utils._converge import Step

_ATTACH, _DETACH, _FORGET = "attach", "detach", "forget"
_READABLE, _FOLDER = 0o644, 0o755  # an exporter without privileges reads the maps; nobody else can write them


@dataclass(frozen=True)
class State:
    """What is pinned: links and maps by name. A loader that was killed may have left folders without either.

    `astray`: a link counts into maps that are not pinned, so that nobody reads all of it.
    """

    links: tuple[str, ...]
    maps: tuple[str, ...]
    folder: bool
    astray: bool = False

    def show(self) -> dict[str, Any]:
        return {"links": list(self.links), "maps": list(self.maps)}


class ProbeTask:
    """`want` are the links by name, in the order of attaching; with `keep_maps` false the counts go too.

    `check` is called before anything is done to a probe that sits on functions, and raises if it cannot be. `keeps` tells of a file, by device and
    inode, whether a link to it stays though it is not among those that are wanted.
    """

    def __init__(
        self,
        probe: Probe,
        bpffs_dir: str,
        want: Mapping[str, Link],
        *,
        keep_maps: bool,
        multi: bool,
        entries: Mapping[str, int],
        check: Callable[[], None],
        keeps: Callable[[str, int], bool],
    ) -> None:
        self._probe, self._want, self._keep_maps, self._multi, self._entries = probe, want, keep_maps, multi, entries
        self._top = Path(bpffs_dir)
        self._links, self._maps = self._top / probe.name / "links", self._top / probe.name / "maps"
        self._keeps = keeps
        self._check: Callable[[], None] | None = check if probe.cookies else None
        self._forgotten = self._top / probe.name / "forgotten"
        self._loaded: LoadedObject | None = None
        self._files: dict[str, int] = {}
        self._ending: list[int] = []
        self.refused: dict[str, str] = {}  # copies in containers that could not be attached to, by key, and why

    def read(self) -> State:
        kernel.wait_until_gone(self._ending)
        links, maps = _names(self._links), _names(self._maps)
        return State(links, maps, self._links.parent.exists(), self._is_astray(links, maps))

    def plan(self, state: State) -> list[Step]:
        """New links before the old ones go: an allocation that both see is counted once, one that neither sees never.

        Where links do not share the pinned maps nothing can be kept.
        """
        want = {name: link for name, link in self._want.items() if not self.is_refused(name)}
        attach = [Step(_ATTACH, name, None, link.target) for name, link in want.items() if state.astray or name not in state.links]
        kept = set() if state.astray else {*want, *(name for name in state.links if self._is_kept(name))}
        gone = sorted(set(state.links) - kept, key=lambda name: (f"_{ENTER}" not in name, name))
        detach = [Step(_DETACH, name, "attached", None) for name in gone]
        forget = [Step(_FORGET, str(self._links.parent), list(state.maps), None)]
        if state.astray:
            return detach + forget + attach
        return attach + detach + (forget if not self._keep_maps and state.folder else [])

    def predict(self, state: State, steps: Sequence[Step]) -> State:
        links = set(state.links) - {step.target for step in steps if step.action == _DETACH}
        links |= {step.target for step in steps if step.action == _ATTACH}
        forgets = any(step.action == _FORGET for step in steps)
        maps = self._probe.maps if links else () if forgets else state.maps
        return State(tuple(sorted(links)), tuple(sorted(maps)), folder=bool(links or maps))

    def apply(self, step: Step) -> None:
        if self._check:
            self._check()
            self._check = None
        if step.action == _ATTACH:
            self._try_attach(self._want[step.target])
        elif step.action == _DETACH:
            self._detach(step.target)
        else:
            self._forget()

    def _is_astray(self, links: Sequence[str], maps: Sequence[str]) -> bool:
        pinned = {kernel.map_id(str(self._maps / name)) for name in maps}
        programs = {kernel.link_ids(str(self._links / name))[1] for name in links}
        return not all(kernel.program_maps(program) <= pinned for program in programs)

    def _is_kept(self, name: str) -> bool:
        file = file_of(name)
        return name not in self._want and file is not None and self._keeps(*file)

    def is_refused(self, name: str) -> bool:
        link = self._want.get(name)
        return link is not None and link.copy is not None and link.copy.key in self.refused

    def close(self) -> None:
        for fd in self._files.values():
            os.close(fd)
        if self._loaded:
            self._loaded.close()

    def _try_attach(self, link: Link) -> None:
        """Whoever has a container can make up a copy that cannot be attached to; the node's other copies get their probes nevertheless."""
        if self.is_refused(link.name):
            return
        loaded = self._load()
        try:
            self._attach(loaded, link)
        except ProbeError as error:
            if not link.copy:
                raise
            error.details.setdefault("path", link.copy.path)
            if not link.copy.in_container:
                raise
            self.refused[link.copy.key] = str(error)
            for name in _names(self._links):
                if self.is_refused(name):
                    self._detach(name)

    def _detach(self, name: str) -> None:
        pin = self._links / name
        self._ending.append(kernel.link_ids(str(pin))[0])
        pin.unlink()

    def _attach(self, loaded: LoadedObject, link: Link) -> None:
        pin = str(self._links / link.name)
        if link.tracepoint and "/" in link.tracepoint:
            fd = syscalls.attach(loaded.program_fd(link.program), link.tracepoint)
        elif link.tracepoint:
            fd = kernel.attach_raw_tracepoint(loaded.program_fd(link.program), link.tracepoint)
        elif link.copy:
            path, returns = self._open(link.copy), link.program == LEAVE
            if not self._multi:
                (name,) = link.functions
                site, cookie = link.copy.sites[name], self._probe.cookies[name]
                return loaded.attach_function(link.program, path, site, cookie, returns=returns, pin=pin)
            sites = {name: link.copy.sites[name] for name in link.functions}
            fd = kernel.attach_multi(loaded.program_fd(link.program), path, sites, self._probe.cookies, returns=returns)
        try:
            kernel.pin(fd, pin)
        finally:
            os.close(fd)

    def _open(self, copy: Copy) -> str:
        """A path to the very file that was looked at, for as long as this task lasts."""
        if copy.key not in self._files:
            self._files[copy.key] = copy.open_again(FUNCTIONS)
        return f"/proc/self/fd/{self._files[copy.key]}"

    def _load(self) -> LoadedObject:
        """Loaded once, with the first link: a probe without links has no maps either."""
        if not self._loaded:
            self._unpin_forgotten()
            for folder in (self._top, self._top / self._probe.name, self._links, self._maps):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(_FOLDER)
            types = dict.fromkeys((ENTER, LEAVE), kernel.UPROBE_MULTI) if self._multi and self._probe.cookies else {}
            self._loaded = LoadedObject(self._probe.image, str(self._maps), types, self._entries)
            for name in _names(self._maps):
                (self._maps / name).chmod(_READABLE)
        return self._loaded

    def _forget(self) -> None:
        """The maps go from sight at once: over some of them alone a later loader would count wrongly."""
        self._unpin_forgotten()
        if self._maps.exists():
            self._maps.rename(self._forgotten)
            self._unpin_forgotten()
        for folder in (self._links, self._links.parent, self._top):
            try:
                folder.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTEMPTY):
                    raise ProbeError(f"cannot remove {folder}: {error}") from error

    def _unpin_forgotten(self) -> None:
        for name in _names(self._forgotten):
            (self._forgotten / name).unlink()
        if self._forgotten.exists():
            self._forgotten.rmdir()


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(sorted(os.listdir(folder)))
    except FileNotFoundError:
        return ()
