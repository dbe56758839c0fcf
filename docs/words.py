"""Words of every page that somebody wrote: `python docs/words.py`.

The log is left out, and so is what a script writes: tables of keys and commands, tables from records, the verdicts, the
page of claims, the list of architectures, the table of the real model. Code blocks count.
"""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
GENERATED = {"claims.md", "examples/real_model/README.md"}
_BLOCK = re.compile(
    r"<!-- (?:keys: [^>]+?|verdict: [^>]+?|commands|architectures|from the record|quickstart figures) -->.*?"
    r"<!-- (?:/keys|/verdict|/commands|/architectures|end of [^>]+?) -->",
    re.DOTALL,
)


def written_words() -> dict[str, int]:
    """Page, as a path from docs/, and its words without generated blocks."""
    words = {}
    for page in sorted(DOCS.rglob("*.md")):
        name = page.relative_to(DOCS).as_posix()
        if name.startswith("log/") or name in GENERATED:
            continue
        text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
        words[name] = len(text.split())
    return words


if __name__ == "__main__":
    counts = written_words()
    for name, count in sorted(counts.items(), key=lambda item: item[1]):
        print(f"{count:7,}  {name}")
    print(f"{sum(counts.values()):7,}  in {len(counts)} pages")
