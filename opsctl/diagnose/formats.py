"""The shapes of prefixes that logs carry, each by the program that writes it."""

from __future__ import annotations

import re

TRACEBACK = "Traceback (most recent call last)"

_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
ISO = r"\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z| ?[+-]\d\d:?\d\d)?"
_LEVEL = (
    r"(?P<level>TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|ERR|CRITICAL|FATAL|SEVERE|Warning|Error|Info"
    r"|error|warning|warn|info|debug|fatal)"
)
_ANY_LEVEL = _LEVEL.replace("?P<level>", "?:")
#: `host unit[pid]: `; without a pid `Download complete: ` must not look like one
_UNIT = r"(?P<host>(?![A-Z][a-z]+ [^\s:\[\]]+: )[\w.-]+) (?P<proc>[^\s:\[\]]+)(?:\[(?P<pid>\d+)\])?: ?"

#: torchrun and torch.distributed: `[rank3]:`, `[default0]:`
RANK = re.compile(r"\[(?P<rank>rank\d+|default\d+)\]: ?")

#: Prefixes of transports: they say where a line comes from, not what the program meant.
OUTER: tuple[re.Pattern[str], ...] = (
    # quoted in a report or a mail
    re.compile(r"(?:> ?)+"),
    # GitHub's runner: `job<tab>step<tab>time `
    re.compile(rf"(?P<proc>[^\t]{{1,60}}\t[^\t]{{1,60}})\t(?P<time>{ISO}) ?"),
    # kubernetes CRI: time, stream, full/partial flag
    re.compile(rf"(?P<time>{ISO}) (?:stdout|stderr) [FP] ?"),
    # journald short, syslog, with or without a pid: `Jun 20 11:00:00 host unit[123]: `
    re.compile(rf"(?:<\d+>)?(?P<time>{_MONTH} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)?) {_UNIT}"),
    # journald short-full: `Fri 2026-06-20 11:00:00 UTC host unit[1]: `
    re.compile(rf"(?P<time>{_DAY} \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? [\w+:-]+) {_UNIT}"),
    # journald short-iso and rsyslog's RFC 3339 form
    re.compile(rf"(?P<time>{ISO}) (?P<host>[\w.-]+) (?P<proc>[A-Za-z_][^\s:\[\]]*)\[(?P<pid>\d+)\]: ?"),
    re.compile(rf"(?P<time>{ISO}) (?P<host>[\w.-]+) (?P<proc>kernel|systemd|dockerd|containerd|kubelet): ?"),
    # RFC 5424: `<14>1 time host app pid msgid sd `
    re.compile(rf"<\d+>1 (?P<time>{ISO}) (?P<host>\S+) (?P<proc>\S+) (?P<pid>\S+) \S+ (?:-|\[[^\]]*\]) ?"),
    # journald short-monotonic: `[ 8123.100000] host unit[1]: `
    re.compile(
        r"\[ *(?P<time>\d{1,9}\.\d{6})\] (?P<host>[\w.-]+) "
        r"(?P<proc>[^\s:\[\]]+)(?:\[(?P<pid>\d+)\]: ?|(?<=kernel): ?)"
    ),
    # kernel ring buffer: `[91233.100000] ` and `[Thu Nov 20 10:00:00 2025] `
    re.compile(r"\[ *(?P<ring>\d{1,9}\.\d{6})\](?: |$)"),
    re.compile(rf"\[(?P<time>{_DAY} {_MONTH} [ \d]\d \d\d:\d\d:\d\d \d{{4}})\](?: |$)"),
    # supervisord's event listener: `vllm stderr | `; pm2: `0|vllm  | ` and `0|vllm  | 2025-11-03T10:22:00: `
    re.compile(r"(?P<proc>[\w.:-]+) std(?:out|err) \| ?"),
    re.compile(rf"(?P<proc>\d+\|[\w.-]+) *\| ?(?:(?P<time>{ISO}): ?)?"),
    # docker compose: `vllm-1  | `
    re.compile(r"(?P<proc>[A-Za-z0-9][\w.-]*) *\| ?(?![ |]*\+-)"),
    # kubectl --prefix: `[pod/name/container] `
    re.compile(r"\[(?P<proc>pod/[^\]\s]+)\] ?"),
    # mpirun --tag-output: `[1,3]<stderr>: `
    re.compile(r"\[(?P<proc>\d+,\d+)\]<std(?:out|err|diag)>: ?"),
    RANK,
    # docker --timestamps, kubectl --timestamps and other loggers that only stamp
    re.compile(rf"(?P<time>{ISO})(?: \[(?P<proc>std(?:out|err))\])?[ \t](?!- |\| |{_ANY_LEVEL} *[|:-] )"),
    re.compile(rf"(?P<time>{ISO})(?: \[std(?:out|err)\])?$"),
    # ts of moreutils: `Nov 03 10:22:00 ` and `00:01:02 `
    re.compile(rf"(?P<time>{_MONTH} [ \d]\d \d\d:\d\d:\d\d)(?: |$)"),
    re.compile(rf"(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?)(?: (?!\[?{_ANY_LEVEL}\b(?! \d\d-\d\d ))|$)"),
)

#: A line that begins with a date.
STAMP = re.compile(rf"(?:{ISO}|{_MONTH} [ \d]\d \d\d:\d\d:\d\d|\[{_DAY} {_MONTH} )")

#: stern's `pod container ` and srun's `3: ` are only believed in front of something that looks like an engine's line.
STERN = re.compile(
    r"(?P<proc>(?:[a-z0-9]+-)+[a-z0-9]+ [a-z0-9](?:[a-z0-9-]*[a-z0-9])?) "
    r"(?=\(|\[|\{\"|[A-Z]{4,8}\b|Traceback|  File|    |\d{4}-)"
)
SRUN = re.compile(
    rf"(?P<proc>\d{{1,4}}): (?=\(|\[|\{{\"|{ISO}|{_MONTH} |INFO|WARN|ERROR|CRITICAL|Traceback|  File|    )"
)

#: Prefixes of processes inside one server.
ACTOR = re.compile(
    r"\((?P<proc>[A-Za-z_:][\w.:<>-]*)"
    r"(?P<rest>(?:,? (?:pid|ip|rank|local_rank|node|actor|TP|PP|DP|EP)[=\d][^\s,)]*)+| \+[\dhms]+| TP\d+ pid=\d+)\) ?"
)
#: Ray's own processes: `(raylet, ip=10.0.0.4) ` and `[2025-11-03 10:22:31,112 E 1203 1203] (raylet) file.cc:88: `
RAY = re.compile(r"\((?P<proc>raylet|gcs_server|dashboard|autoscaler|core_worker)(?:,? (?:pid|ip)=[^\s,)]+)*\) ")
RAY_LOG = re.compile(
    rf"\[(?P<time>{ISO}) (?P<letter>[DIWEFC]) \d+ \d+\] (?:\((?P<proc>\w+)\) )?(?P<src>[\w./-]+:\d+): "
)
#: `[2025-11-20 10:00:00 TP3] `; with a level in brackets behind it, it is a logger of Python's.
SGLANG = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?)(?P<ranks>(?: [A-Z]{2,4}\d+)*)\]"
    rf"(?: (?!\[{_ANY_LEVEL}\])|$)"
)
GLOG = re.compile(
    r"\[?(?P<letter>[IWEFC])(?P<time>\d{4} \d\d:\d\d:\d\d(?:\.\d+)?)(?: +\d+)? (?P<src>[\w./<>-]+:\d+)\] ?"
)
NCCL = re.compile(
    r"(?P<host>[\w.-]+):(?P<pid>\d+):(?P<tid>\d+) \[(?P<dev>\d+)\] (?:(?P<src>\S+:\d+) )?"
    r"NCCL (?P<level>INFO|WARN|TRACE|ABORT|VERSION) ?"
)

#: Formats of loggers: level, time and place in some order.
LOGGERS: tuple[re.Pattern[str], ...] = (
    # vLLM: `ERROR 11-18 18:07:10 [core.py:390] ` and before 0.8.3 `ERROR 11-18 18:07:10 core.py:390] `
    re.compile(
        rf"(?:\[?[\w.-]+\]? )?{_LEVEL} (?P<time>\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?) \[?(?P<src>[\w./-]+:\d+)\] ?"
    ),
    # Python logging's favourites
    re.compile(rf"(?P<time>{ISO}) [-|] {_LEVEL} *[-|] (?P<src>[\w.<>:-]+) [-|] "),
    re.compile(rf"(?P<time>{ISO}) [-|] (?P<src>[\w.<>:-]+) [-|] {_LEVEL} [-|] "),
    re.compile(rf"(?P<time>{ISO}) \[?{_LEVEL}\]? *(?:[-|:] |(?P<src>[\w.-]+(?::\d+)?):? )?"),
    re.compile(
        rf"\[(?P<time>{ISO})\]\[?(?: \[\d+\])? ?(?:\[(?P<src>[\w.-]+)\]\[|\[|(?P<name>\w+) ){_LEVEL}\]?:? ?(?:- )?"
    ),
    re.compile(rf"\[(?P<time>{ISO}) [+-]\d{{4}}\] \[\d+\] \[{_LEVEL}\] "),
    re.compile(rf"\[{_LEVEL}\|(?P<src>[\w./-]+:\d+)\] (?P<time>{ISO}) ?(?:>> )?"),
    re.compile(rf"{_LEVEL}:(?P<src>[\w.]+):"),
    re.compile(rf"\[{_LEVEL}\][ :-]*"),
    re.compile(rf"(?P<time>\d\d:\d\d:\d\d(?:[.,]\d+)?) (?:\[?{_LEVEL}\]?:? +)(?:\[(?P<src>[\w./-]+:\d+)\] ?)?"),
    # LMCache: `LMCache WARNING: message`
    re.compile(r"[A-Z]\w+ (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): "),
    # uvicorn: `INFO:     message`
    re.compile(r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): {2,6}(?! )"),
    re.compile(r"(?P<level>TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL): (?! )"),
)

#: What begins a line that an engine printed, wherever it stands.
KNOWN_FORM = re.compile(
    r"\([A-Za-z_]"
    r"[\w.:-]*(?: rank=\d+| TP\d+)? pid=\d+[,)]"
    r"|(?:TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[ \w]*)\] "
    r"|(?:INFO|WARNING|ERROR):     \S"
    r"|Traceback \(most recent call last\):$"
    r"|NVRM: (?:Xid|GPU)"
    r'|\{"[\w@]+": ?["\d]'
)
