"""An inventory while it is read: sources add to it, `finish` merges the variables of every host."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import ConfigError, Span
from ..model import Group, Host, Inventory
from .ranges import expand, split_port
from .source import Map, key_span, value_span


class Layer(NamedTuple):
    """Variables that were said together: ``name`` tells for what, as `opsctl inventory HOST --explain` shows it.

    ``stage`` orders those of groups, as in Ansible: what the inventory's files say of any group, then group_vars for
    `all`, then group_vars for the other groups, folder by folder.
    """

    name: str
    vars: Map
    stage: tuple[int, int] = (0, 0)


@dataclass
class LoadedInventory(Inventory):
    """An inventory with the layers from which its hosts' variables were merged, lowest first, for `explain`.

    ``folders`` are the inventory sources' directories, ``origins`` the source in which each host was named first.
    """

    group_layers: dict[str, list[Layer]] = field(default_factory=dict)
    host_layers: dict[str, list[Layer]] = field(default_factory=dict)
    chains: dict[str, tuple[str, ...]] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    origins: dict[str, str] = field(default_factory=dict)

    def layers(self, host: str) -> list[Layer]:
        """The layers of ``host``'s variables, lowest first: those of its groups (`in_order`), then its own."""
        layers = [layer for group in self.chains.get(host, ("all",)) for layer in self.group_layers.get(group, ())]
        return in_order(layers) + self.host_layers.get(host, [])


def in_order(layers: list[Layer]) -> list[Layer]:
    """The layers of groups, which come lowest group first, by stage; within one, parents stay before their children."""
    return sorted(layers, key=lambda layer: layer.stage)


@dataclass
class _Node:
    """A group in the making; hosts and children keep the place where they were named."""

    name: str
    span: Span | None = None
    hosts: dict[str, Span] = field(default_factory=dict)
    children: dict[str, Span] = field(default_factory=dict)
    layers: list[Layer] = field(default_factory=list)


class Draft:
    """Collects hosts, groups and variables in the order in which they are written."""

    def __init__(self) -> None:
        self.groups: dict[str, _Node] = {"all": _Node("all"), "ungrouped": _Node("ungrouped")}
        self.hosts: dict[str, Span] = {}
        self.host_layers: dict[str, list[Layer]] = {}
        self.sources: list[str] = []
        self.folders: list[str] = []
        self.origins: dict[str, str] = {}
        self.problems: list[ConfigError] = []

    def group(self, name: str, span: Span) -> None:
        """Name a group."""
        node = self.groups.setdefault(name, _Node(name, span))
        if node.span is None:
            node.span = span

    def add_hosts(self, written: str, group: str | None, span: Span) -> list[str]:
        """Name the hosts that ``written`` stands for, as members of ``group``; returns their names."""
        names = []
        base, port = split_port(written)
        if port is not None and not 0 < port < 65536:
            raise ConfigError(f"`{port}` is no port number", span=span)
        for name in expand(base, span):
            self.hosts.setdefault(name, span)
            self.origins.setdefault(name, span.file)
            if group is not None:
                self.groups[group].hosts.setdefault(name, span)
            if port is not None:
                made = Map(span)
                made.put("ansible_port", port, span, span)
                self.add_vars(f"host `{name}`", made, host=name)
            names.append(name)
        return names

    def child(self, parent: str, child: str, span: Span) -> None:
        """Make the group ``child`` a part of ``parent``."""
        self.group(child, span)
        self.groups[parent].children.setdefault(child, span)

    def add_vars(
        self, name: str, values: Map, *, group: str | None = None, host: str | None = None, folder: int | None = None
    ) -> None:
        """Add a layer of variables to a group or a host; ``folder`` counts those whose group_vars/ were read before."""
        if not values:
            return
        if group is not None:
            stage = (0, 0) if folder is None else (1 if group == "all" else 2, folder)
            self.groups[group].layers.append(Layer(name, values, stage))
        elif host is not None:
            self.host_layers.setdefault(host, []).append(Layer(name, values))

    # -- the result -----------------------------------------------------------------------------------------------

    def finish(self) -> LoadedInventory:
        """Merge. Raises ConfigError when groups contain themselves."""
        depths = self._depths()
        parents: dict[str, list[str]] = {}
        for node in self.groups.values():
            for child in node.children:
                parents.setdefault(child, []).append(node.name)
        direct: dict[str, list[str]] = {}
        for node in self.groups.values():
            for name in node.hosts:
                direct.setdefault(name, []).append(node.name)
        order = {name: (depths[name], self._priority(name), name) for name in self.groups}
        merged: dict[tuple[str, ...], tuple[tuple[str, ...], Map]] = {}
        out = LoadedInventory(
            sources=tuple(dict.fromkeys(self.sources)), folders=tuple(dict.fromkeys(self.folders)), origins=self.origins
        )
        ungrouped = self.groups["ungrouped"]
        for name, span in self.hosts.items():
            own = [group for group in direct.get(name, ()) if group != "all"]
            if not own:
                own = ["ungrouped"]
                ungrouped.hosts.setdefault(name, span)
            elif "ungrouped" in own and len(own) > 1:
                own.remove("ungrouped")
                ungrouped.hosts.pop(name, None)
            key = tuple(own)
            if key not in merged:
                chain = self._chain(own, parents, order)
                layers = in_order([layer for group in chain for layer in self.groups[group].layers])
                merged[key] = chain, self._merge(layers)
            chain, group_vars = merged[key]
            layers = self.host_layers.get(name, [])
            names = tuple(sorted(group for group in chain if group != "all"))
            out.hosts[name] = Host(name, self._merge(layers, group_vars), names, span)
            out.chains[name] = chain
        out.host_layers = {name: layers for name, layers in self.host_layers.items() if name in self.hosts}
        for node in self.groups.values():
            out.groups[node.name] = Group(node.name, self._merge(node.layers), list(node.hosts), list(node.children))
            out.group_layers[node.name] = node.layers
        self._complete_all(out)
        return out

    def _complete_all(self, out: LoadedInventory) -> None:
        """`all` holds every host, and every group that has no parent is its child."""
        everything = out.groups["all"]
        everything.hosts = list(self.hosts)
        with_parent = {child for node in self.groups.values() for child in node.children}
        everything.children = [
            name for name in out.groups if name != "all" and (name not in with_parent or name in everything.children)
        ]

    @staticmethod
    def _merge(layers: list[Layer], below: Map | None = None) -> Map:
        if below is None:
            out = Map(layers[0].vars.span if layers else Span("", 1))
        else:
            out = Map(below.span, below)
            out.keys_at, out.values_at = dict(below.keys_at), dict(below.values_at)
        for layer in layers:
            out.update(layer.vars)
            out.keys_at.update(layer.vars.keys_at)
            out.values_at.update(layer.vars.values_at)
        return out

    @staticmethod
    def _chain(
        own: list[str], parents: dict[str, list[str]], order: dict[str, tuple[int, int, str]]
    ) -> tuple[str, ...]:
        """The groups above a host, lowest precedence first: by depth, priority, name."""
        seen = {"all"}
        todo = list(own)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += parents.get(name, ())
        return tuple(sorted(seen, key=lambda name: order[name]))

    def _priority(self, name: str) -> int:
        value: Any = 1
        span = None
        for layer in self.groups[name].layers:
            if "ansible_group_priority" in layer.vars:
                value = layer.vars["ansible_group_priority"]
                span = value_span(layer.vars, "ansible_group_priority")
        try:
            return int(value)
        except (TypeError, ValueError):
            raise ConfigError(
                "`ansible_group_priority` must be a whole number",
                span=span,
                hint="the higher one wins between groups of the same depth; 1 is the default",
            ) from None

    def _depths(self) -> dict[str, int]:
        """How deep each group lies below `all` (the longest way); without recursion, and circles are found."""
        indegree = dict.fromkeys(self.groups, 0)
        for node in self.groups.values():
            for child, span in node.children.items():
                if child == "all":
                    raise ConfigError(
                        "`all` cannot be a child of a group", span=span, cause="every group is part of `all` already"
                    )
                if node.name != "all":
                    indegree[child] += 1
        depths = {name: 0 if name == "all" else 1 for name in self.groups}
        ready = [name for name, count in indegree.items() if count == 0]
        done = 0
        while ready:
            name = ready.pop()
            done += 1
            if name == "all":
                continue
            for child in self.groups[name].children:
                depths[child] = max(depths[child], depths[name] + 1)
                indegree[child] -= 1
                if indegree[child] == 0:
                    ready.append(child)
        if done < len(self.groups):
            raise self._circle({name for name, count in indegree.items() if count > 0})
        return depths

    def _circle(self, left: set[str]) -> ConfigError:
        """Walk along groups that are still waiting until one comes again."""
        at = next(iter(name for name in self.groups if name in left))
        path: list[str] = []
        # Groups below the circle wait too; going to parents leads into it for certain.
        while at not in path:
            path.append(at)
            at = next(node.name for node in self.groups.values() if node.name in left and at in node.children)
        circle = path[path.index(at) :]
        circle.reverse()
        span = self.groups[circle[0]].children.get(circle[1] if len(circle) > 1 else circle[0])
        return ConfigError(
            f"the group `{circle[0]}` contains itself",
            span=span,
            cause=" -> ".join([*circle, circle[0]]),
            hint="remove one of these `children`",
        )


def vars_of(value: Any, what: str, span: Span) -> Map:
    """A mapping of variables with names that templates can use; nothing is an empty one."""
    if value is None:
        return Map(span)
    if not isinstance(value, Map):
        raise ConfigError(f"{what} must be a mapping of variables", span=span, hint="write `name: value`, one a line")
    for key in value:
        if not isinstance(key, str) or not key.isidentifier():
            raise ConfigError(
                f"`{key}` cannot be the name of a variable",
                span=key_span(value, key, span),
                hint="use letters, digits and `_`",
            )
    return value
