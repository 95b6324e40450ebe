"""`file`, `copy`, `template`, `stat`: files, directories, links."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from .base import Args, Files, Kind, TreeEntry, arg
from .commands import content_of
from .words import Mode, NodePath, Str, YesNo

_SELINUX = "labels are not managed: use `command: chcon ...` or `restorecon`"
UNSUPPORTED = {
    "attributes": "use `command: chattr ...`",
    "attr": "use `command: chattr ...`",
    "selevel": _SELINUX,
    "serole": _SELINUX,
    "setype": _SELINUX,
    "seuser": _SELINUX,
    "unsafe_writes": "files are always replaced as a whole; there is no unsafe way",
    "decrypt": "values of a vault are not supported: keep secrets in `!secret`",
}


class _Owned(Args):
    unsupported: ClassVar[Mapping[str, str]] = UNSUPPORTED

    mode: Mode | None = arg(
        'Permissions: `0644`, `"0644"` or `u=rw,go=r`. A new file without it gets what the umask gives.', None
    )
    owner: Str | None = arg("Owner, by name or number.", None)
    group: Str | None = arg("Group, by name or number.", None)


class FileArgs(_Owned):
    """A directory, a link, a file's permissions, or its absence."""

    path: NodePath = arg("The path.", aliases=("dest", "name"))
    state: Literal["absent", "directory", "file", "hard", "link", "touch"] | None = arg(
        "`directory` makes it with its parents; `file` only checks an existing file and sets permissions and owner; "
        "`link` and `hard` make a link to `src`; `touch` makes an empty file or sets its times; `absent` removes a "
        "file or a whole tree. Without it: what is there is kept, or `directory` with `recurse`, `link` with `src`.",
        None,
    )
    src: NodePath | None = arg("What a link points to; for `link` a relative path is taken as it is.", None)
    recurse: YesNo = arg("For a directory: permissions and owner of everything in it.", False)
    follow: YesNo = arg("Whether a link at `path` is followed when permissions and owner are set.", True)
    force: YesNo = arg("For links: replace a file that is in the way, and allow that `src` does not exist.", False)
    access_time: Str | None = arg(
        "Time of the last access: `preserve`, `now`, or `YYYYMMDDhhmm.ss`.", None
    )
    modification_time: Str | None = arg(
        "Time of the last change: `preserve`, `now`, or `YYYYMMDDhhmm.ss`.", None
    )
    modification_time_format: Str = arg("How `modification_time` is written (strptime).", "%Y%m%d%H%M.%S")
    access_time_format: Str = arg("How `access_time` is written (strptime).", "%Y%m%d%H%M.%S")

    @model_validator(mode="after")
    def _together(self) -> FileArgs:
        if self.state == "hard" and self.src is None:
            raise ValueError("needs `src` for a hard link")
        if self.recurse and self.state not in (None, "directory"):
            raise ValueError("takes `recurse` only with `state: directory`")
        if self.src is not None and self.state not in (None, "link", "hard"):
            raise ValueError("takes `src` only with `state: link` or `state: hard`\nto copy a file use `copy`")
        return self


class _Placed(_Owned):
    dest: NodePath = arg("The path on the node; with a `/` at the end, a directory.")
    backup: YesNo = arg("Whether the old file is kept beside the new one.", False)
    force: YesNo = arg("Whether a file that differs is replaced.", True)
    follow: YesNo = arg("Whether a link at `dest` is followed.", False)
    validate_: Str | None = arg(
        "A command with `%s` for the new file's path; the file is put in place only if it succeeds.",
        None,
        alias="validate",
    )


class CopyArgs(_Placed):
    """A file or directory of the controller (or of the node), or content given in place."""

    follow: YesNo = arg("Whether a link at `dest` is followed.", False)
    src: Str | None = arg(
        "File or directory on the controller, looked up in `files/` beside the playbook; with a `/` at the end only "
        "the directory's content. With `remote_src`, a path on the node.",
        None,
    )
    content: Str | None = arg("The content itself; a mapping or list is written as JSON.", None)
    remote_src: YesNo = arg("Whether `src` is a path on the node.", False)
    directory_mode: Mode | None = arg("Permissions of directories that are made.", None)
    local_follow: YesNo = arg("Whether links inside a copied directory are followed on the controller.", True)
    checksum: Str | None = arg("SHA-1 that the file must have; the copy fails otherwise.", None)

    @model_validator(mode="after")
    def _one(self) -> CopyArgs:
        if (self.src is None) == (self.content is None):
            raise ValueError("needs either `src` or `content`")
        if self.content is not None and self.dest.endswith("/"):
            raise ValueError("with `content` needs a file as `dest`, not a directory")
        return self


class TemplateArgs(_Placed):
    """A Jinja2 template of the controller, rendered with the task's variables."""

    unsupported: ClassVar[Mapping[str, str]] = {**UNSUPPORTED, "output_encoding": "files are written as UTF-8"}

    src: Str = arg("Template on the controller, looked up in `templates/` beside the playbook.")
    newline_sequence: Literal["\n", "\r", "\r\n"] = arg("The line ending of the result.", "\n")
    block_start_string: Str = arg("Where a statement begins.", "{%")
    block_end_string: Str = arg("Where a statement ends.", "%}")
    variable_start_string: Str = arg("Where an expression begins.", "{{")
    variable_end_string: Str = arg("Where an expression ends.", "}}")
    comment_start_string: Str = arg("Where a comment begins.", "{#")
    comment_end_string: Str = arg("Where a comment ends.", "#}")
    trim_blocks: YesNo = arg("Whether the newline behind a statement is removed.", True)
    lstrip_blocks: YesNo = arg("Whether blanks before a statement at the start of a line are removed.", False)


class StatArgs(Args):
    """What a path is."""

    unsupported: ClassVar[Mapping[str, str]] = {
        "get_attributes": "leave it away: they are not looked at; `command: lsattr ...` shows them",
        "get_selinux_context": _SELINUX,
    }

    path: NodePath = arg("The path.", aliases=("dest", "name"))
    follow: YesNo = arg("Whether a link is followed.", False)
    get_checksum: YesNo = arg("Whether the content's checksum is computed.", True)
    checksum_algorithm: Literal["md5", "sha1", "sha224", "sha256", "sha384", "sha512"] = arg(
        "Which checksum.", "sha1", ("checksum", "checksum_algo")
    )
    get_mime: YesNo = arg("Accepted; the type of the content is not looked at.", False, ("mime", "mime_type"))


_TEMPLATE_OPTIONS = (
    "newline_sequence", "block_start_string", "block_end_string", "variable_start_string", "variable_end_string",
    "comment_start_string", "comment_end_string", "trim_blocks", "lstrip_blocks",
)  # fmt: skip


def _copy(args: dict[str, Any], files: Files) -> dict[str, Any]:
    """Content, blob or tree in place of `src`; `name` is what `dest/` gets appended."""
    if args.get("src") is None or args.get("remote_src"):
        return args
    src = str(args["src"])
    path = files.find(src, "files")
    out = {key: value for key, value in args.items() if key not in ("src", "local_follow")}
    entries = files.tree(path)
    out["name"] = path.rstrip("/").rsplit("/", 1)[-1]
    if entries is None:
        if out.get("mode") == "preserve":
            out["mode"] = files.mode(path)
        content = content_of(path, files)
        if "blob" in content:
            # Hashed once here, and not once more on every node.
            content["sha1"] = files.sha1(path)
        return {**out, **content}
    tree = _tree(path.rstrip("/"), "", entries, files, bool(args.get("local_follow")), ())
    return {**out, "tree": tree, "inside": src.endswith("/")}


def _tree(
    root: str, prefix: str, entries: list[TreeEntry], files: Files, follow: bool, above: tuple[str, ...]
) -> list[dict[str, Any]]:
    """The entries of a directory as they travel; with ``follow``, links are what they point to."""
    above = (*above, os.path.realpath(root))
    out: list[dict[str, Any]] = []
    for entry in entries:
        whole = f"{root}/{entry.path}"
        item: dict[str, Any] = {"path": prefix + entry.path, "type": entry.type, "mode": entry.mode}
        if entry.type == "link" and follow and os.path.exists(whole) and os.path.realpath(whole) not in above:
            below = files.tree(whole)
            item.update(type="file" if below is None else "dir", mode=files.mode(whole))
            if below is not None:
                out += [item, *_tree(whole, item["path"] + "/", below, files, follow, above)]
                continue
        if item["type"] == "file":
            item.update(content_of(whole, files))
        elif item["type"] == "link":
            item["target"] = entry.target
        out.append(item)
    return out


def _template(args: dict[str, Any], files: Files) -> dict[str, Any]:
    """`template: {source, name, options}` in place of `src`; whoever renders it puts `content` in its place."""
    path = files.find(str(args["src"]), "templates")
    out = {key: value for key, value in args.items() if key not in ("src", *_TEMPLATE_OPTIONS)}
    try:
        source = files.read(path).decode()
    except UnicodeDecodeError as exc:
        from opsctl.errors import InputUnreadable

        raise InputUnreadable(
            f"the template {path} is not UTF-8",
            cause=f"byte {exc.start} is 0x{exc.object[exc.start]:02x}",
            hint="save it as UTF-8, or use `copy` for a file that is not text",
        ) from None
    if out.get("mode") == "preserve":
        out["mode"] = files.mode(path)
    options = {name: args[name] for name in _TEMPLATE_OPTIONS if name in args}
    return {**out, "name": path.rsplit("/", 1)[-1], "template": {"source": source, "name": path, "options": options}}


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="file",
            model=FileArgs,
            doc="Directories, links, permissions, removal.",
            examples="""\
- file:
    path: /srv/models
    state: directory
    owner: llm
    mode: "0755"
- file:
    path: /srv/models/current
    src: /srv/models/qwen3
    state: link
""",
        ),
        Kind(
            name="copy",
            model=CopyArgs,
            doc="Put a file, a directory or given content on the node.",
            prepare=_copy,
            sources=("src", "remote_src"),
            examples="""\
- copy:
    src: limits.conf
    dest: /etc/security/limits.d/llm.conf
    mode: "0644"
- copy:
    content: "{{ engine_settings }}"
    dest: /etc/vllm/settings.json
""",
        ),
        Kind(
            name="template",
            model=TemplateArgs,
            doc="Render a template to a file on the node.",
            prepare=_template,
            sources=("src", *_TEMPLATE_OPTIONS),
            examples="""\
- template:
    src: nginx.conf.j2
    dest: /etc/nginx/nginx.conf
    mode: "0644"
    validate: nginx -t -c %s
  notify: reload nginx
""",
        ),
        Kind(
            name="stat",
            model=StatArgs,
            doc="Look at a path.",
            examples="""\
- stat:
    path: /srv/models/qwen3/config.json
  register: config
- fail:
    msg: download the model first
  when: not config.stat.exists
""",
        ),
    )
}
