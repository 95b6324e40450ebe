"""From arguments to an exit status: the one place where errors become words."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from difflib import get_close_matches

import click

from ..errors import Interrupted, OpsError, UsageError
from ._verbs import root

#: As the shell sees a program that died of SIGPIPE.
BROKEN_PIPE = 141
#: What `opsctl run` gives for its own errors, as ssh does.
RUN_ERROR = 255


def run(argv: Sequence[str]) -> int:
    """Run the command line ``argv`` (without the program's name); gives the exit status."""
    _never_fail_on_encoding()
    code = 0
    try:
        _end_on_sigterm()
        code = _invoke(list(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        code = BROKEN_PIPE
        _forget_stdout()
    except OpsError as err:
        code = _own(argv, err.exit_code)
        report(err, as_json=_wants_json(argv))
    except (KeyboardInterrupt, click.Abort):
        code = _own(argv, Interrupted.exit_code)
        report(Interrupted("interrupted"), as_json=_wants_json(argv))
    except Exception as exc:
        fault = unexpected(exc)
        code = _own(argv, fault.exit_code)
        report(fault, as_json=_wants_json(argv))
    return code


def _invoke(argv: list[str]) -> int:
    if "_OPSCTL_COMPLETE" in os.environ:
        root.main(argv, prog_name="opsctl", complete_var="_OPSCTL_COMPLETE")
    try:
        with root.make_context("opsctl", argv) as ctx:
            if not argv:
                click.echo(root.get_help(ctx), err=True)
                return UsageError.exit_code
            value = root.invoke(ctx)
            return value if isinstance(value, int) else 0
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        raise usage_error(exc) from None


def usage_error(exc: click.ClickException) -> UsageError:
    """What click found wrong, in our words, with a suggestion or the way to the help."""
    ctx = getattr(exc, "ctx", None)
    command = ctx.command_path if ctx is not None else "opsctl"
    hint = f"`{command} --help` tells the options"
    if isinstance(exc, click.NoSuchOption):
        close = get_close_matches(exc.option_name, exc.possibilities or (), n=1)
        if close:
            hint = f"did you mean `{close[0]}`?"
        return UsageError(f"`{command}` has no option `{exc.option_name}`", hint=hint)
    message = exc.format_message().strip().rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def report(err: OpsError, *, as_json: bool) -> None:
    """Say what went wrong: one JSON line on stdout, or words on stderr."""
    with contextlib.suppress(OSError, ValueError):
        if as_json:
            from ..events import VERSION
            from ..ui.json import dumps

            error = {"event": "error", "version": VERSION, "ts": round(time.time(), 3), "error": err.as_dict()}
            sys.stdout.write(dumps(error) + "\n")
            sys.stdout.flush()
        else:
            from ..ui import use_color
            from ..ui.errors import render_error

            sys.stderr.write(render_error(err, color=use_color(sys.stderr)))
            sys.stderr.flush()


def unexpected(exc: BaseException) -> OpsError:
    """A fault of opsctl itself: one sentence, and where the trace is."""
    import traceback

    from ..journal import new_run_id, state_dir

    trace = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    what = f"opsctl itself failed: {type(exc).__name__}: {str(exc).strip() or 'no message'}"
    path = state_dir() / "crashes" / f"{new_run_id()}.txt"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(handle, "w", encoding="utf-8", errors="replace") as file:
            file.write(trace)
    except OSError as failed:
        last = traceback.extract_tb(exc.__traceback__)[-1]
        return OpsError(
            what,
            cause=f"in {os.path.basename(last.filename)}:{last.lineno}; the trace cannot be written: {failed}",
            hint="this is a bug: please report it with what you did",
        )
    return OpsError(what, hint=f"this is a bug: please report it with the trace in {path}")


def _wants_json(argv: Sequence[str]) -> bool:
    return "--json" in (argv[: argv.index("--")] if "--" in argv else argv)


def _own(argv: Sequence[str], code: int) -> int:
    return RUN_ERROR if argv and argv[0] == "run" and code != Interrupted.exit_code else code


def _end_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: what runs is stopped, the run gets its end."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, interrupt)


def _never_fail_on_encoding() -> None:
    """Names and output may hold what the locale cannot write: show it escaped rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """The reader is gone. Let nothing, the interpreter's last flush included, write to it again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
