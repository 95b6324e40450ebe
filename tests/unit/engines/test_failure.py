"""The lines of a failed start that matter: the first error that is no echo of another."""

from __future__ import annotations

from opsctl.agent.engines import relevant

HEAD = "(Worker_TP0 pid=3) ERROR 11-29 20:50:06 [multiproc_executor.py:783] "
ENGINE = "(EngineCore_DP0 pid=2) ERROR 11-29 20:50:07 [core.py:1006] "


def traced(head: str, *lines: str) -> list[str]:
    frames = ["Traceback (most recent call last):", *(f'  File "/s/{n}.py", line {n}, in f\n    call_{n}()' for n in (1, 2, 3))]
    return [head + part for line in [*frames, *lines] for part in line.split("\n")]


CASCADE = [
    "(APIServer pid=1) INFO 11-29 20:50:00 [launcher.py:47] Route: /health, Methods: GET",
    HEAD + "WorkerProc failed to start.",
    *traced(HEAD, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    ENGINE + "EngineCore failed to start.",
    *traced(ENGINE, "Exception: WorkerProc initialization failed due to an exception in a background process. See stack "
            "trace for root cause."),
    *traced("(APIServer pid=1) ", "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
            "proc(s): {'EngineCore_DP0': 1}"),
]  # fmt: skip


def test_the_cause_comes_without_its_echoes_and_with_its_last_frames() -> None:
    found = relevant(CASCADE)
    assert found[-1].startswith("torch.OutOfMemoryError: CUDA out of memory")
    assert [line.strip() for line in found[:-1]] == [
        'File "/s/2.py", line 2, in f', "call_2()", 'File "/s/3.py", line 3, in f', "call_3()",
    ]  # fmt: skip


def test_processes_whose_lines_are_mixed_keep_their_own_tracebacks() -> None:
    one = traced("(Worker_TP0 pid=3) ERROR 11-29 20:50:06 [a.py:1] ", "ValueError: the first")
    other = traced("(Worker_TP1 pid=4) ERROR 11-29 20:50:06 [a.py:1] ", "ValueError: the second")
    mixed = [line for pair in zip(one, other, strict=True) for line in pair]
    assert relevant(mixed)[-1] == "ValueError: the first"


def test_a_chain_shows_both_ends() -> None:
    lines = [
        *traced("", "json.decoder.JSONDecodeError: Extra data: line 22"), "",
        "During handling of the above exception, another exception occurred:", "",
        *traced("", "OSError: the config file at '/m/config.json' is not a valid JSON file."),
    ]  # fmt: skip
    found = relevant(lines)
    assert found[-2:] == [
        "json.decoder.JSONDecodeError: Extra data: line 22",
        "OSError: the config file at '/m/config.json' is not a valid JSON file.",
    ]


def test_messages_of_several_lines_are_kept_whole() -> None:
    lines = traced("", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig",
                   "  Value error, Unknown quantization method: bogus", "    For further information visit x")  # fmt: skip
    assert relevant(lines)[-2:] == ["  Value error, Unknown quantization method: bogus", "    For further information visit x"]


def test_a_usage_error_is_found_without_a_traceback() -> None:
    lines = ["INFO 11-29 20:52:57 [importing.py:68] Triton not installed", "usage: vllm serve [model_tag] [options]",
             "vllm serve: error: argument --dtype: invalid choice: 'x'"]  # fmt: skip
    assert relevant(lines) == ["vllm serve: error: argument --dtype: invalid choice: 'x'"]


def test_a_death_by_signal_is_told_behind_the_traceback() -> None:
    assert relevant([*traced("", "ValueError: x"), "Segmentation fault (core dumped)"])[-1].startswith("Segmentation")


def test_without_any_error_the_last_lines_that_say_something_remain() -> None:
    lines = [
        "(APIServer pid=1) INFO 11-29 20:50:00 [a.py:1] one", "(APIServer pid=1) INFO 11-29 20:50:00 [a.py:1] two",
        'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK', "",
        "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]",
    ]  # fmt: skip
    assert [line[-3:] for line in relevant(lines)] == ["one", "two"]
    assert relevant([]) == []


def test_no_line_is_endless_and_there_are_never_more_than_asked() -> None:
    lines = [*traced("", "ValueError: " + "x" * 10_000), *[f"ERROR 11-29 20:50:00 [a.py:1] no {n}" for n in range(99)]]
    found = relevant(lines, 8)
    assert len(found) <= 8 and max(map(len, found)) <= 600
    assert len(relevant([f"ERROR 11-29 20:50:00 [a.py:1] no {n}" for n in range(99)], 10)) == 10
