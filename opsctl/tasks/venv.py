"""`venv`: Python environments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, model_validator

from opsctl.agent import requirements as node_side

from ..errors import InputUnreadable
from .base import Args, Files, Kind, arg
from .words import CommaList, NodePath, Raw, Str, YesNo

_MAY_BE = "write a version (`3.12`), a name (`python3.12`) or a path (`/usr/bin/python3.12`)"


def _packages(value: Any) -> list[str]:
    try:
        items = node_side.as_list(value)
        for item in items:
            node_side.parse(item)
    except node_side.BadRequirement as exc:
        raise ValueError(str(exc)) from None
    return items


def _python(value: str) -> str:
    if not value.strip() or any(char in value for char in "<>=,* "):
        raise ValueError(f"cannot be {value!r}\n{_MAY_BE}")
    return value.strip()


class VenvArgs(Args):
    """A Python environment with packages, made and filled by uv or pip."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "virtualenv": "write it as `path`",
        "virtualenv_python": "write it as `python`",
        "name": "write it as `packages`",
        "executable": "give the environment's directory as `path`",
        "extra_args": "write it as `installer_args`, a list of words",
    }

    path: NodePath = arg("The environment's directory.", aliases=("dest",))
    state: Literal["absent", "present"] = arg("`absent` removes the directory, if it is an environment.", "present")
    python: Annotated[Str, AfterValidator(_python)] | None = arg(
        "Its Python: a version (`3.12`, quoted), a name or a path. uv fetches a version that the node has not got. An "
        "environment that opsctl made with another Python is made anew.",
        None,
    )
    packages: Annotated[Raw, AfterValidator(_packages)] | None = arg(
        "Packages: `vllm==0.33.0`, `torch>=2.9,<3`, `uvicorn[standard]`, an address or a path on the node.", None
    )
    requirements: Str | None = arg(
        "A requirements file of the controller, looked up in `files/` beside the playbook; what it includes travels "
        "along. With `remote_src`, a path on the node.",
        None,
    )
    lock: Str | None = arg(
        "A file that lists all packages with exact versions (`uv pip compile`, `pip freeze`): exactly these are "
        "installed, nothing is resolved, others are removed. Found as `requirements` is.",
        None,
    )
    remote_src: YesNo = arg("Whether `requirements` and `lock` are paths on the node.", False)
    no_deps: YesNo = arg("Whether only the named packages are installed, without what they depend on.", False)
    upgrade: YesNo = arg("Whether packages are brought to the newest versions that are allowed; asks the index.", False)
    index_url: Str | None = arg("The package index (default: as pip or uv is configured on the node).", None)
    extra_index_url: CommaList | None = arg("Further indexes.", None, ("extra_index_urls",))
    find_links: CommaList | None = arg("Directories or pages with packages.", None)
    no_index: YesNo = arg("Whether only `find_links` is looked at.", False)
    torch_backend: Str | None = arg(
        "The build of torch: `auto` (uv looks at the node's driver), `cpu`, `cu128`, ...; taken from PyTorch's index.",
        None,
    )
    installer: Literal["auto", "pip", "uv"] = arg(
        "`auto` takes uv, fetched into opsctl's own directory if the node has none, else pip.", "auto"
    )
    installer_args: list[Str] | None = arg("Further words for the installer's `install`.", None)
    system_site_packages: YesNo = arg("Whether the environment sees the packages of its Python.", False)
    rehearse: YesNo = arg(
        "Make and install nothing, and say what was left out; set by `opsctl deploy --rehearse`.", False
    )

    @model_validator(mode="after")
    def _together(self) -> VenvArgs:
        if self.state == "absent" and (self.packages or self.requirements or self.lock):
            raise ValueError("with `state: absent` takes no packages\nremove them, or the `state`")
        if self.lock and (self.packages or self.requirements):
            raise ValueError("takes either `lock` or `packages` and `requirements`\na lock file lists everything")
        if self.lock and self.upgrade:
            raise ValueError("cannot upgrade beyond a `lock` file\nlock again, and deploy that")
        if self.lock and os.path.basename(self.lock).endswith((".lock", ".toml")):
            raise ValueError(
                f"takes a `lock` in the form of a requirements file, not {os.path.basename(self.lock)!r}\n"
                "make one with `uv export --format requirements-txt` or `uv pip compile`"
            )
        if self.no_index and not self.find_links:
            raise ValueError("with `no_index` needs `find_links`")
        if self.installer == "pip" and self.torch_backend == "auto":
            raise ValueError("needs uv for `torch_backend: auto`\nname the backend (`cpu`, `cu128`)")
        return self


def _prepare(args: dict[str, Any], files: Files) -> dict[str, Any]:
    if args.get("remote_src"):
        return args
    out = dict(args)
    constraints: list[str] = []
    for name in ("requirements", "lock"):
        if args.get(name):
            path = files.find(args[name], "files")
            out[f"{name}_content"] = "\n".join(_flat(path, files, constraints, ())) + "\n"
    if constraints:
        out["constraints_content"] = "\n".join(constraints) + "\n"
    return out


def _flat(path: str, files: Files, constraints: list[str], above: tuple[str, ...]) -> list[str]:
    """The lines of a requirements file with what it includes; the lines of constraints files go to ``constraints``."""
    if path in above:
        raise InputUnreadable(f"`{path}` includes itself", hint="remove the `-r` line that closes the circle")
    try:
        found = node_side.lines_of(files.read(path).decode())
    except UnicodeDecodeError:
        raise InputUnreadable(f"`{path}` is no text in UTF-8", hint="save it as UTF-8") from None
    out: list[str] = []
    for option in found.options:
        word, _, rest = option.replace("=", " ", 1).partition(" ")
        if word in ("-r", "--requirement"):
            out += _flat(os.path.join(os.path.dirname(path), rest.strip()), files, constraints, (*above, path))
        elif word in ("-c", "--constraint"):
            inner: list[str] = []
            constraints += _flat(os.path.join(os.path.dirname(path), rest.strip()), files, inner, (*above, path))
            constraints += inner
        else:
            out.append(option)
    for line in found.requirements:
        bare = line.removeprefix("-e ").strip()
        if bare.startswith("."):
            raise InputUnreadable(
                f"`{path}` names a path of the controller: `{line}`",
                hint="copy the package to the node and name its path there in `packages`",
            )
        out.append(line)
    return out


KINDS = {
    "venv": Kind(
        name="venv",
        model=VenvArgs,
        doc="A Python environment on the node, with packages.",
        prepare=_prepare,
        sources=("requirements", "lock", "remote_src"),
        examples="""\
- name: vLLM
  venv:
    path: /opt/venvs/vllm
    python: "3.12"
    packages: [vllm==0.33.0]
    torch_backend: auto

- name: What the lock file says, to the byte
  venv:
    path: /opt/venvs/vllm
    lock: vllm-0.33.txt
""",
    )
}
