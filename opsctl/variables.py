"""The variables of a run: which values each host sees, in the layers that the planner and the node take (contracts 2)."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .agent.expr import Scope
from .agent.values import ExprError, Lazy, UnknownValue, lift
from .config.connection import ConnectionSpec, check_play_variables, connection_of, layered, of_connection
from .config.source import Map, SecretRef
from .config.templates import Templates, locate
from .config.vars import groups_of, layers_for, load_vars_files, magic_vars, run_vars
from .errors import ConfigError, OpsError
from .files import ControllerFiles
from .hosts import HostState
from .model import Host, Inventory, Play, Playbook
from .plan import HostContext, Planner

if TYPE_CHECKING:
    from .executor import DeployOptions
    from .secrets import Masker

#: What is not said by any layer, and Ansible's templates use.
DEFAULTS = {"ansible_managed": "managed by opsctl"}


class Variables:
    """Values for every host of a run, evaluated when they are needed. Safe from several threads."""

    def __init__(
        self,
        playbook: Playbook,
        inventory: Inventory,
        options: DeployOptions,
        masker: Masker | None = None,
    ) -> None:
        """``masker`` learns every secret that is fetched, so that it is masked everywhere."""
        from .config.bytecode import ByteCode, default_folder

        self.playbook = playbook
        self.inventory = inventory
        self.options = options
        self.files = ControllerFiles(os.path.dirname(playbook.path))
        self._secrets: dict[str, str] = {}
        self._lock = threading.RLock()
        self.masker = masker
        self.extra = self._lift(options.extra)
        self._groups = groups_of(inventory)
        self._run = run_vars(
            check=options.check,
            diff=options.diff,
            rehearse=options.rehearse,
            tags=options.tags,
            skip_tags=options.skip_tags,
            limit=options.limit,
            forks=options.forks,
            verbosity=options.verbosity,
        )
        self._low: dict[str, dict[str, Any]] = {}
        self._play_vars: dict[tuple[Any, ...], tuple[dict[str, Any], Map]] = {}  # by the play's number and its files
        self._specs: dict[str, ConnectionSpec] = {}  # of hosts, without any play
        folder = default_folder(os.environ)
        self.templates = Templates(
            os.path.dirname(playbook.path),
            environ=os.environ,
            cache=ByteCode(folder) if folder else None,
            load=self._include,
        )
        self.engine = self.templates.engine

    def _include(self, name: str) -> str | None:
        try:
            return self.files.read(self.files.find(name, "templates")).decode("utf-8", "replace")
        except OpsError:
            return None

    # -- hosts --------------------------------------------------------------------------------------------------------

    def hosts_of(self, play: Play) -> list[str]:
        """The names of the play's hosts after `--limit`."""
        from .config.patterns import select

        pattern = play.hosts
        if _templated(pattern):
            try:
                pattern = self.engine.evaluate(lift(pattern), self.engine.scope(DEFAULTS, lift(play.vars), self.extra))
            except ExprError as exc:
                raise locate(exc, play.span) from None
        return [host.name for host in select(self.inventory, pattern, list(self.options.limit) or None, span=play.span)]

    def host(self, name: str) -> Host:
        """The host ``name``; `localhost` exists without being written down."""
        if name in self.inventory.hosts:
            return self.inventory.hosts[name]
        from .config.patterns import select

        found = select(self.inventory, name)
        if not found:
            raise ConfigError(f"there is no host `{name}` in the inventory")
        return found[0]

    def connection(self, host: Host) -> ConnectionSpec:
        """How to reach a host, with what the command line says on top."""
        with self._lock:
            if host.name not in self._specs:
                context = HostContext(host.name, self.low(host), extra=self.extra)
                self._specs[host.name] = self._connection(host, {}, {}, context)
            return self._specs[host.name]

    def connection_in(self, play: Play, state: HostState, *, delegated: bool = False) -> ConnectionSpec:
        """How to reach a host in a play, whose keywords and variables may say something about it. Of the keywords
        only `remote_user` is meant for hosts that tasks are ``delegated`` to."""
        keywords: dict[str, Any] = {"remote_user": play.remote_user}
        if not delegated:
            keywords.update(connection=play.connection, port=play.port)
        keywords = Map(play.span, {word: value for word, value in keywords.items() if value is not None})
        if not keywords and not play.vars_files and not any(str(name).startswith("ansible_") for name in play.vars):
            return self.connection(state.host)
        context = self.context(play, state)
        _, variables = self._play(play, context)
        if not keywords and not variables:
            return self.connection(state.host)
        return self._connection(state.host, keywords, variables, context)

    def _connection(
        self, host: Host, keywords: Mapping[str, Any], variables: Mapping[str, Any], context: HostContext
    ) -> ConnectionSpec:
        scope = self.scope(context)

        def render(value: Any) -> Any:
            if isinstance(value, SecretRef):
                return self._reveal(value)
            try:
                return self.engine.evaluate(lift(value), scope)
            except ExprError as exc:
                raise locate(exc, host.span or _nowhere(host.name)) from None

        extra = {name: value for name, value in self.options.extra.items() if name.startswith(("ansible_", "opsctl_"))}
        values = layered(host.vars, keywords, variables, extra) if keywords or variables or extra else None
        spec = connection_of(host, render, values=values)
        options = self.options
        for password in (spec.password, spec.become_password):
            if password is not None and self.masker is not None:
                self.masker.add(password)
        return replace(
            spec,
            user=options.remote_user or spec.user,
            password=options.connect_password or spec.password,
            become_password=options.become_password or spec.become_password,
        )

    def _reveal(self, ref: SecretRef) -> str:
        from .secrets import resolve

        with self._lock:
            if ref.ref not in self._secrets:
                secret = resolve(ref.ref, base=os.path.dirname(ref.span.file), span=ref.span)
                if self.masker is not None:
                    self.masker.add(secret)
                self._secrets[ref.ref] = secret.reveal()
            return self._secrets[ref.ref]

    def _fetch(self, ref: SecretRef) -> str:
        """`_reveal` for a template, whose errors have their own kind."""
        try:
            return self._reveal(ref)
        except OpsError as exc:
            what = f"{exc.what}: {exc.cause}" if exc.cause else exc.what
            raise ExprError(what, [ref.span.file, ref.span.line, ref.span.col], 1, exc.hint) from None

    def _lift(self, raw: Any) -> Any:
        """`lift`, with secrets that are fetched when they are used."""
        if isinstance(raw, SecretRef):
            return Lazy(lambda: self._fetch(raw))
        if isinstance(raw, Mapping):
            return {str(key): self._lift(value) for key, value in raw.items()}
        if isinstance(raw, (list, tuple)):
            return [self._lift(value) for value in raw]
        return lift(raw)

    # -- layers -------------------------------------------------------------------------------------------------------

    def low(self, host: Host) -> dict[str, Any]:
        """Everything below the facts: what the inventory says, and what opsctl itself knows."""
        with self._lock:
            if host.name not in self._low:
                merged: dict[str, Any] = dict(DEFAULTS)
                for layer in layers_for(self.inventory, host):
                    merged.update(self._lift(layer.vars))
                self._low[host.name] = merged
            return self._low[host.name]

    def _play(self, play: Play, context: HostContext) -> tuple[dict[str, Any], Map]:
        """The play's `vars` and `vars_files`, and the connection variables among them as they were written. Which
        files those are may be another thing for each host."""
        with self._lock:
            if (play.index,) not in self._play_vars:
                self._play_vars[(play.index,)] = (self._lift(play.vars), of_connection(play.vars))
            own, link = self._play_vars[(play.index,)]
            if not play.vars_files:
                return own, link
            scope = self.scope(replace(context, play=own))

            def render(raw: Any) -> Any:
                return self.templates.evaluate(raw, scope)

            key = (play.index, *(str(render(raw)) for raw in play.vars_files))
            if key not in self._play_vars:
                out = dict(own)
                for _, values in load_vars_files(play, self.playbook.path, render):
                    out.update(self._lift(values))
                    problems = check_play_variables(values)
                    if problems:
                        raise problems[0]
                    link = layered(link, {}, of_connection(values))
                self._play_vars[key] = (out, link)
            return self._play_vars[key]

    def context(
        self,
        play: Play,
        state: HostState,
        hosts: Sequence[str] | None = None,
        *,
        all_hosts: Sequence[str] | None = None,
        batch: Sequence[str] | None = None,
    ) -> HostContext:
        """What a host sees in a play. ``hosts`` are the play's hosts that have not failed, ``batch`` those of its
        `serial` batch."""
        magic = magic_vars(
            self.inventory,
            state.host,
            groups=self._groups,
            playbook=self.playbook.path,
            play=play,
            play_hosts=hosts or [state.host.name],
            all_hosts=all_hosts,
            batch=batch,
            run=self._run,
        )
        context = HostContext(
            name=state.host.name,
            low=self.low(state.host),
            set=dict(state.set),
            extra={**self.extra, **magic},
            facts=state.facts,
        )
        return replace(context, play=self._play(play, context)[0])

    def scope(self, context: HostContext) -> Scope:
        """The names of a host outside of any task."""
        return self.engine.scope(context.low, context.facts or {}, context.play, context.set, context.extra)

    def all_of(self, play: Play, state: HostState) -> dict[str, Any]:
        """Every variable of a host that can be evaluated: `hostvars[...]`."""
        scope = self.scope(self.context(play, state))
        out: dict[str, Any] = {}
        for name in scope:
            try:
                out[name] = scope[name]
            except (ExprError, UnknownValue):
                continue
        return out

    # -- planning -----------------------------------------------------------------------------------------------------

    def planner(self, play: Play) -> Planner:
        """The planner of a play."""
        from .agent.facts import FACT_NAMES
        from .remote import bootstrap
        from .tasks import kind

        return Planner(
            play,
            self.engine,
            self.options.plan(),
            self.files,
            kinds=kind,
            fact_names=FACT_NAMES,
            jinja_hash=bootstrap.jinja_hash,
            on_environment=None if self.masker is None else self.masker.add_environment,
        )


def _templated(value: Any) -> bool:
    if isinstance(value, str):
        return "{{" in value
    return isinstance(value, (list, tuple)) and any(map(_templated, value))


def _nowhere(name: str) -> Any:
    from .errors import Span

    return Span(f"host {name}", 1)
