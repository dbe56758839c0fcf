"""What of the gallery's output has to stay, read from the files on disk.

Records, fingerprints, weights, and the figures of pages. What a page's plots draw counts apart from what is read.
"""

from __future__ import annotations

import hashlib
import html.parser
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import figures
from gallery import WITHIN

REPRODUCTIONS: list[tuple[str, list[str]]] = [
    (f"reproduce-{paper}", ["reproduce", paper, "--quick", *WITHIN, "--output_dir", f"reproduced/{paper}"])
    for paper in ("label-annealing", "residual")
]

ASIDE = re.compile(
    r"(config|generation_config|tokenizer.*|special_tokens_map|trainer_state|adapter_config"
    r"|.*\.safetensors\.index)\.json"
)
"""Files of other packages."""
_VARYING = re.compile(
    r"(.*_)?(seconds|created|finished|started|updated|began|ended|time|times|date_made|versions|libraries|hardware|host"
    r"|pid|machine|holdfast|runtime)"
    r"|.*(_per_second|_seconds|_memory|memory_gb|_ns|_at|_bytes_per_s)|peak(_.*)?|memory|seconds_.*|speed|worker|processor"
    r"|threads|cores|overhead"
)
"""Keys whose values differ between two equal runs, or between versions and machines."""
HEX = re.compile(r"(?<![0-9a-zA-Z])(?=[0-9a-f]*[0-9])[0-9a-f]{10,64}(?![0-9a-zA-Z])")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.]*(Z|[+-]\d\d:\d\d)?")


def outputs(folder: Path, pattern: str) -> list[Path]:
    """Files that commands wrote, in order; the material, the cache and hidden files are none."""
    given = {"base", "instruct", "math", "code", "base-b", "instruct-b", "adapter", "cache"}
    found = (p.relative_to(folder) for p in folder.rglob(pattern) if p.is_file())
    least = 1 if pattern == "*.json" else 2
    return sorted(
        p
        for p in found
        if p.parts[0] not in given and len(p.parts) >= least and not any(part.startswith(".") for part in p.parts)
    )


def normalised(value: Any, root: str) -> Any:
    """A JSON value without what differs from run to run (of a run's stages their names are left); the working directory
    becomes `WORK`."""
    if isinstance(value, dict):
        kept = {
            k: list(v) if k == "stages" and isinstance(v, dict) else v
            for k, v in value.items()
            if not _VARYING.fullmatch(k)
        }
        return {normalised(k, root): normalised(v, root) for k, v in kept.items()}
    if isinstance(value, list):
        return [normalised(v, root) for v in value]
    if isinstance(value, str):
        return _TIME.sub("TIME", value.replace(root, "WORK"))
    return value


def without_hashes(value: Any) -> Any:
    """The value with every long hexadecimal number as `HEX`: fingerprints are compared in a part of their own."""
    if isinstance(value, dict):
        return {HEX.sub("HEX", k): without_hashes(v) for k, v in value.items()}
    if isinstance(value, list):
        return [without_hashes(v) for v in value]
    return HEX.sub("HEX", value) if isinstance(value, str) else value


def hashes(value: Any, path: str = "") -> dict[str, str]:
    """Every text of a JSON value that holds a fingerprint, by where it stands."""
    if isinstance(value, dict):
        return {p: t for k, v in value.items() for p, t in hashes(v, f"{path}.{k}" if path else k).items()}
    if isinstance(value, list):
        return {p: t for i, v in enumerate(value) for p, t in hashes(v, f"{path}.{i}").items()}
    return {path: value} if isinstance(value, str) and HEX.search(value) else {}


def read_records(folder: Path) -> dict[str, Any]:
    """Every JSON file that a command wrote, normalised; of rows the logged metrics, and of others a hash."""
    found: dict[str, Any] = {}
    for path in outputs(folder, "*.json"):
        if not ASIDE.fullmatch(path.name):
            found[str(path)] = normalised(json.loads((folder / path).read_text()), str(folder))
    for path in outputs(folder, "*.jsonl"):
        rows = [normalised(json.loads(line), str(folder)) for line in (folder / path).read_text().splitlines()]
        whole = path.name == "metrics.jsonl" and path.parts[0] == "runs"
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        found[str(path)] = rows if whole else {"rows": len(rows), "sha256": f"sha256:{digest[:16]}"}
    return found


def records(folder: Path) -> dict[str, Any]:
    """The JSON records without fingerprints."""
    return {HEX.sub("HEX", path): without_hashes(value) for path, value in read_records(folder).items()}


def fingerprints(folder: Path) -> dict[str, Any]:
    """Fingerprints in the records, and the names of folders and files that carry one: by them finished work is found
    again.

    Those made of absolute paths or of the times of files say nothing here; the part `folders` shows that they are found
    again."""
    found: dict[str, Any] = {}
    for path, value in read_records(folder).items():
        if "corpus" not in Path(path).parts:
            found[HEX.sub("HEX", path)] = {
                where: text for where, text in hashes(value).items() if where != "training.evaluated"
            }
    named = sorted(
        str(p.relative_to(folder)) for p in folder.rglob("*") if HEX.search(p.name) and "harness" not in p.parts
    )
    return {**{path: value for path, value in found.items() if value}, "names": named}


def weights(folder: Path) -> dict[str, str]:
    """A hash over the tensors of every safetensors file, whatever its metadata and their order."""
    return {str(path): tensors_hash(folder / path) for path in outputs(folder, "*.safetensors")}


def tensors_hash(path: Path) -> str:
    """SHA-256 over names, dtypes, shapes and bytes of a safetensors file."""
    from safetensors import deserialize

    digest = hashlib.sha256()
    for name, tensor in sorted(deserialize(path.read_bytes())):
        digest.update(f"{name} {tensor['dtype']} {tensor['shape']} ".encode() + tensor["data"])
    return digest.hexdigest()


def pages(folder: Path) -> dict[str, Any]:
    """The figures of every page."""
    return {HEX.sub("HEX", str(path)): of_page(folder / path) for path in outputs(folder, "*.html")}


def reproductions(folder: Path) -> dict[str, Any]:
    """The records of reproductions, without those of their runs, and the figures that are read on their pages."""
    names = ("claims.json", "study.json", "update.json")
    found = {path: value for path, value in records(folder).items() if path.endswith(names)}
    return {
        "records": found,
        "pages": {path: value["read"] for path, value in pages(folder).items() if "/runs/" not in path},
    }


# ------------------------------------------------------------------------------------------------- figures of pages

_WORKER = re.compile(r"[\w.-]+:\d+")
_UNSEEN = {"script", "style", "head", "noscript", "template"}


class _Reader(html.parser.HTMLParser):
    """Visible text, and the JSON that scripts draw from."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.data: list[str] = []
        self.json = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _UNSEEN:
            self.open.append(tag)
        self.json = tag == "script" and dict(attrs).get("type") == "application/json"
        self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()
        self.json = False
        self.text.append("\n")

    def handle_data(self, data: str) -> None:
        if self.json:
            self.data.append(data)
        elif not self.open:
            self.text.append(data)


def of_page(path: Path) -> dict[str, dict[str, int]]:
    """Figures of a page: what is read, and what is drawn (numbers inside arrays, six digits)."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    drawn: Counter[str] = Counter()
    for text in reader.data:
        _numbers(json.loads(text), drawn, inside=False)
    return {"read": figures.of_text("".join(reader.text)), "drawn": dict(sorted(drawn.items()))}


def _numbers(value: Any, found: Counter[str], *, inside: bool) -> None:
    """Counts the numbers that stand in arrays below `value`."""
    if isinstance(value, dict):
        if any(isinstance(v, list) and v and isinstance(v[0], str) and _WORKER.fullmatch(v[0]) for v in value.values()):
            return  # the time of workers
        for item in (v for k, v in value.items() if k not in ("layout", "marker", "line")):
            _numbers(item, found, inside=False)
    elif isinstance(value, list):
        for item in value:
            _numbers(item, found, inside=True)
    elif inside and isinstance(value, (int, float)) and not isinstance(value, bool):
        found[f"{value:.6g}"] += 1
