"""`patch`: statements about the source of an installed package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from ..errors import InputUnreadable, UsageError
from .base import Args, Files, Kind, arg
from .words import CommaList, NodePath, Str, YesNo

if TYPE_CHECKING:
    from ..patching.sets import PatchSet


class PatchArgs(Args):
    """Patch sets are true in the source of a package that is installed in an environment on the node, or undone.

    A set that is true already (applied, upstreamed, by another hand) changes nothing. One that has no place, or that
    somebody has edited since, fails with what was looked for. On a node all of it is written or nothing. It is done
    by the environment's owner: use `become` where the login is somebody else. Servers that run from the environment
    have imported the old source: `notify` a handler that restarts them.
    """

    set: CommaList | None = arg(
        "Names of patch sets: those that come with opsctl, and those in `patches/` beside the playbook; or files "
        "there.",
        None,
        aliases=("sets",),
    )
    env: NodePath = arg("The Python environment: its folder or its interpreter.", aliases=("venv",))
    state: Literal["applied", "reverted"] = arg(
        "`reverted` undoes what opsctl applied: these sets, or all of `package`.", "applied"
    )
    package: Str | None = arg("The package that is patched [default: that of the sets].", None)
    force: YesNo = arg(
        "Make true again what another hand has edited since, or restore the original over such edits; the edited file "
        "is kept on the node.",
        False,
    )
    rehearse: YesNo = arg(
        "Where the package is not installed, say so instead of failing; set by `opsctl deploy --rehearse`.", False
    )

    @model_validator(mode="after")
    def _together(self) -> PatchArgs:
        if not self.set and self.state == "applied":
            raise ValueError("needs `set`, the name of a patch set")
        if not self.set and not self.package:
            raise ValueError("needs `set` or `package`, to know what to undo")
        return self


def prepare(args: dict[str, Any], files: Files) -> dict[str, Any]:
    """The sets travel with the task, so that what was planned is what is applied, in a resumed run, too."""
    names = list(args.pop("set", None) or ())
    chosen = [_find(name, files) for name in names]
    packages = list(dict.fromkeys(item.package for item in chosen))
    package = args.get("package") or (packages[0] if packages else "")
    if any(other != package for other in packages):
        raise UsageError(
            f"a `patch` task is about one package, and these sets are about {', '.join(packages)}",
            hint="write a task for each package",
        )
    looks_at = list(dict.fromkeys(name for item in chosen for name in item.files()))
    return {
        **args, "package": package, "sets": [item.dump() for item in chosen], "files": looks_at,
        "named": [item.name for item in chosen] or None,
    }  # fmt: skip


def _find(name: str, files: Files) -> PatchSet:
    """A set by its name: the project's, then the built-in one; or by the name of its file."""
    from ..patching import sets

    if name.endswith((".yml", ".yaml")):
        return sets.read_set(Path(files.find(name, "patches")))
    for suffix in (".yml", ".yaml"):
        try:
            found = sets.read_set(Path(files.find(f"patches/{name}{suffix}", "")))
        except InputUnreadable:
            continue
        if found.name == name:
            return found
    return sets.choose(sets.load_sets(), [name])[0]


KINDS: dict[str, Kind] = {
    "patch": Kind(
        name="patch",
        model=PatchArgs,
        doc="The source of an installed package: statements about it are made true, or undone.",
        free_form=None,
        prepare=prepare,
        sources=("set", "package", "state"),
        examples="""\
- name: EAGLE-3 drafts for Kimi-K2.5
  patch:
    set: kimi-k25-eagle3
    env: /opt/venvs/vllm
  notify: restart the server

- name: As the package shipped it
  patch:
    package: vllm
    env: /opt/venvs/vllm
    state: reverted
""",
    )
}
