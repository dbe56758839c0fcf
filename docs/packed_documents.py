"""Which architectures keep packed documents apart: tried once, kept in `docs/packed_documents.json`, and
written into `docs/packing.md`.

    python docs/packed_documents.py --try     # tries every architecture of transformers, some minutes
    python docs/packed_documents.py           # writes the page from the file

Every architecture is tried in a process of its own, with a limit of time, on a tiny copy of its default configuration.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from holdfast.support.files import read_json, write_json

DOCS = Path(__file__).parent
OUTCOMES = DOCS / "packed_documents.json"
SECONDS = 120
"""For one architecture."""
_LIST = re.compile(r"(<!-- architectures -->\n).*?(<!-- /architectures -->)", re.DOTALL)
APART, LEAK, PACKAGES, UNTRAINED, UNKNOWN = "apart", "leak", "packages", "untrained", "unknown"
HEADS = {
    APART: "**Kept apart**",
    PACKAGES: "**Kept apart once packages are installed**, which the refusal names",
    LEAK: "**See each other**, so that each is run by itself",
    UNTRAINED: "**Not trained here**: no separate backbone and head, or no packed batch at all",
    UNKNOWN: "**Not tried**: no tiny model of the default configuration; the model itself is tried once it is loaded",
}


def try_architecture(name: str) -> str:
    """What comes of packed documents in an architecture's default configuration; one of `HEADS`."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from holdfast.training.document_attention import is_leak, packing_problem

    try:
        problem = packing_problem(CONFIG_MAPPING[name](), AutoModelForCausalLM.from_config, attention=None)
    except Exception:  # a configuration that has no defaults
        return UNKNOWN
    if problem is None:
        return UNKNOWN
    if not problem:
        return APART
    if problem.endswith("installed"):
        return PACKAGES
    return LEAK if is_leak(problem) else UNTRAINED


def in_own_process(name: str, *, seconds: int = SECONDS) -> str:
    """The same in a fork that may crash or hang."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        os.write(write, try_architecture(name).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        outcome = pipe.read()
    os.waitpid(child, 0)
    return outcome or UNKNOWN


def try_all(names: Sequence[str]) -> dict[str, str]:
    """What comes of every architecture, by name."""
    import torch
    import transformers  # noqa: F401  # once, before the forks

    torch.set_num_threads(1)
    return {name: in_own_process(name) for name in names}


def with_list(page: str) -> str:
    """The page with the list as the file has it."""
    found = read_json(OUTCOMES)
    parts = [f"Tried with transformers {found['transformers']}, each architecture's default attention.\n"]
    for outcome, head in HEADS.items():
        names = sorted(name for name, other in found["architectures"].items() if other == outcome)
        text = f"{head} ({len(names)}): {', '.join(f'`{name}`' for name in names) or 'none'}."
        parts.append(textwrap.fill(text, 120, break_on_hyphens=False) + "\n")
    return _LIST.sub(lambda match: match[1] + "\n" + "\n".join(parts) + "\n" + match[2], page)


def main() -> None:
    """Tries, where it is asked to, and rewrites the page."""
    if "--try" in sys.argv:
        import transformers
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

        outcomes = try_all(sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES))
        write_json(OUTCOMES, {"transformers": transformers.__version__, "architectures": outcomes})
        print(json.dumps(outcomes, indent=1))
    page = DOCS / "packing.md"
    page.write_text(with_list(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
