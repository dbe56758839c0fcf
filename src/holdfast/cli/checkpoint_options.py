"""What the checkpoint commands share: requests from YAML and command line, common options, and how a plan and its outcome are shown.

A request is read in one place: every option of a command is a key of its YAML too, the command line wins, and all mistakes show at once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.cli.options import OptionParser, nearest, with_underscores
from holdfast.errors import ConfigError, HoldfastError, Interrupted, ModelError, RunFolderError, StorageError, did_you_mean

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.checkpoints.build import Built
    from holdfast.checkpoints.merge import Prepared
    from holdfast.checkpoints.plan import Plan, Policies
    from holdfast.checkpoints.sources import Source
    from holdfast.results import LayerDistance

T = TypeVar("T")

_NEGATIVE = re.compile(r"-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|-inf$")


# ------------------------------------------------------------------------------------------------------------- requests


class RequestParser(OptionParser):
    """Options of a command that may also come from a YAML file. Values are kept as text; `Request` turns them into numbers.

    Args:
        prog, description, epilog: as of `OptionParser`.
        usage: the line after "usage:".
        yaml: whether there is `--config FILE.yaml`.
    """

    def __init__(self, *, prog: str, description: str, epilog: str, usage: str, yaml: bool = True) -> None:
        super().__init__(prog=prog, description=description, epilog=epilog)
        self.usage = f"{prog} {usage}"
        self._negative_number_matcher = _NEGATIVE  # argparse takes -1e-3 for an option
        self.values: dict[str, str] = {}
        """Option: "one", "many" or "switch"."""
        self.yaml = yaml
        if yaml:
            self.one("config", "FILE.yaml", "options from a file, keys as below without the dashes; the command line wins")

    def one(self, name: str, metavar: str, text: str, *, group: Any = None) -> None:
        """An option with one value."""
        self.values[name] = "one"
        (group or self).add_argument(f"--{name}", metavar=metavar, default=argparse.SUPPRESS, help=text)

    def many(self, name: str, metavar: str, text: str, *, group: Any = None) -> None:
        """An option with one or more values."""
        self.values[name] = "many"
        (group or self).add_argument(f"--{name}", metavar=metavar, nargs="+", default=argparse.SUPPRESS, help=text)

    def switch(self, name: str, text: str, *, group: Any = None) -> None:
        """An option that is on or off: `--name`, `--name false`, `--no_name`."""
        self.values[name] = "switch"
        for option, value, said in ((name, "true", text), (f"no_{name}", "false", argparse.SUPPRESS)):
            (group or self).add_argument(f"--{option}", dest=name, action="store_const", const=value, default=argparse.SUPPRESS, help=said)

    def words(self, name: str, metavar: str, text: str) -> None:
        """What stands without a dash, any number of words."""
        self.values[name] = "many"
        self.add_argument(name, metavar=metavar, nargs="*", default=argparse.SUPPRESS, help=text)

    def given(self, argv: list[str]) -> tuple[dict[str, Any], list[str]]:
        """What the words say by option, and a sentence for each unknown option."""
        found, rest = self.parse_known_intermixed_args(list(self._switches(with_underscores(argv))))
        shown = [o for a in self._actions for o in a.option_strings if o.startswith("--") and a.help != argparse.SUPPRESS]
        all_options = [*shown, *(f"--{name}" for name in self.values if f"--{name}" not in shown)]
        known = f" Known: {', '.join(sorted(shown))}."
        problems = [f"unknown option '{w}'.{did_you_mean(w.partition('=')[0], all_options) or known}" for w in rest if w.startswith("-")]
        problems = problems or [f"unexpected '{w}': expected options, as in 'holdfast {self.prog.split()[-1]} --help'" for w in rest]
        return vars(found), problems

    def _switches(self, words: list[str]) -> Iterator[str]:
        """The words with `--name true`, `--name false` and `--name=false` of switches in the form that needs no value."""
        rest = iter(range(len(words)))
        for i in rest:
            name, _, value = words[i].partition("=")
            following = words[i + 1].lower() if i + 1 < len(words) else ""
            if self.values.get(name.removeprefix("--")) != "switch" or not name.startswith("--"):
                yield words[i]
            elif value or following in ("true", "false"):
                if not value:
                    next(rest)
                said = (value or following).lower()
                yield name if said == "true" else name.replace("--", "--no_", 1) if said == "false" else words[i]
            else:
                yield name


class Request:
    """The options of one command: the YAML's, and over them the command line's. Mistakes are collected in `problems`.

    Args:
        parser: the command's options.
        argv: its words.
        translate: turns a YAML of another kind into this command's keys; gets the mapping and the list of problems.

    Raises:
        ConfigError: the YAML file is missing or no YAML.
    """

    def __init__(
        self, parser: RequestParser, argv: list[str], *, translate: Callable[[dict[str, Any], list[str]], dict[str, Any] | None] | None = None
    ) -> None:
        self.parser = parser
        self.given, self.problems = parser.given(argv)
        self.unknown = bool(self.problems)
        """Whether there were options that nobody knows; the words after them may be anything then."""
        self.from_yaml: dict[str, Any] = {}
        self.notes: list[str] = []
        if "config" in self.given:
            self._read_yaml(Path(self.given.pop("config")), translate)

    def _read_yaml(self, path: Path, translate: Callable[[dict[str, Any], list[str]], dict[str, Any] | None] | None) -> None:
        found: list[str] = []
        mapping = read_yaml(path)
        translated = translate(mapping, found) if translate is not None else None
        if translated is not None:
            self.notes += translated.pop("notes", [])
            self.from_yaml = translated
        else:
            known = [name for name in self.parser.values if name != "config"]
            for key, value in mapping.items():
                name = str(key).replace("-", "_")
                if name not in known:
                    found.append(f"unknown key '{key}'.{did_you_mean(name, known) or ' Known: ' + ', '.join(known) + '.'}")
                elif value is not None:
                    self.from_yaml[name] = value
        self.problems += [f"{path}: {p}" for p in found]

    def has(self, name: str) -> bool:
        """Whether an option was given anywhere."""
        return name in self.given or name in self.from_yaml

    def raw(self, name: str) -> Any:
        """An option as it was written; None: not given."""
        return self.given[name] if name in self.given else self.from_yaml.get(name)

    def text(self, name: str, default: T) -> str | T:
        """An option as text; numbers of a YAML too, lists and mappings not."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, (list, dict, bool)):
            return self._refuse(name, "text", value, default)
        return str(value)

    def texts(self, name: str) -> list[str]:
        """An option as a list of texts; a single one counts as a list."""
        value = self.raw(name)
        items = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, (list, dict, bool)) or item is None for item in items):
            return self._refuse(name, "a list of names", value, [])
        return [str(item) for item in items]

    def number(self, name: str, default: T) -> float | T:
        """An option as a number; text such as "1e-4" counts."""
        value = self.raw(name)
        if value is None:
            return default
        try:
            if isinstance(value, bool):
                raise TypeError
            return float(value)
        except (TypeError, ValueError):
            return self._refuse(name, "a number", value, default)

    def whole(self, name: str, default: T, *, least: int | None = None) -> int | T:
        """An option as a whole number."""
        value = self.raw(name)
        if value is None:
            return default
        expected = "a whole number" + (f" of at least {least}" if least is not None else "")
        try:
            number = float(value) if not isinstance(value, (bool, str)) else int(value)
            if isinstance(value, bool) or not float(number).is_integer() or (least is not None and number < least):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            return self._refuse(name, expected, value, default)
        return int(number)

    def on(self, name: str) -> bool:
        """Whether a switch is on."""
        value = self.raw(name)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if value is None or isinstance(value, bool):
            return bool(value)
        return self._refuse(name, "true or false", value, False)

    def choice(self, name: str, known: Sequence[str], default: str) -> str:
        """An option that is one of a few words."""
        value = self.text(name, default)
        if value not in known:
            self.problems.append(f"{self.named(name)}: expected one of {', '.join(known)}, got '{value}'.{did_you_mean(value, known)}")
            return default
        return value

    def required(self, name: str, what: str) -> str:
        """An option that has to be there, as text; empty with a problem noted where it is not."""
        if self.raw(name) is None:
            self.problems.append(f"--{name} is missing: {what}")
        return self.text(name, "")

    def named(self, name: str) -> str:
        """How messages call an option: as it was written, dashes or a YAML's key."""
        return f"--{name}" if name in self.given or name not in self.from_yaml else name

    def check(self) -> None:
        """Raises all problems together.

        Raises:
            ConfigError: there are any.
        """
        if self.problems:
            raise ConfigError(list(dict.fromkeys(self.problems)))

    def _refuse(self, name: str, expected: str, value: Any, default: T) -> T:
        said = " ".join(value) if isinstance(value, list) and all(isinstance(v, str) for v in value) else value
        self.problems.append(f"{self.named(name)}: expected {expected}, got {said!r}")
        return default


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        ConfigError: no such file (with the nearest name), no YAML, or no mapping.
    """
    import yaml

    try:
        found = yaml.safe_load(path.expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        beside = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        near = [str(path.parent / n) for n in nearest(path.name, beside)]
        raise ConfigError(f"--config: no such file: {path}.{' Did you mean ' + ' or '.join(near) + '?' if near else ''}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config: {path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"--config: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"--config: expected keys and values in {path}, got {type(found).__name__}")
    return found


def missing_folders(names: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences on folders that are named like folders and are not there, with the nearest names. Asks no network.

    Args:
        names: `(option, folder)` pairs. What could be a model of the hub is left for later.
    """
    from holdfast.checkpoints.locate import local_folder

    found = []
    for option, name in names:
        path = Path(name).expanduser()
        if not path.is_dir() and (path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1):
            try:
                local_folder(name)
            except ModelError as error:
                found.append(f"{option}: {error}")
    return found


def all_here(names: Iterable[str]) -> bool:
    """Whether all are local folders, so that opening them downloads nothing."""
    return all(name and Path(name).expanduser().is_dir() for name in names)


# ------------------------------------------------------------------------------------------------------- common options

POLICY_HELP = """\
Checkpoints that differ are refused with a list of all differences, unless an option says what to do."""


def add_policies(parser: RequestParser) -> None:
    """Options for checkpoints that differ."""
    import dataclasses

    from holdfast.checkpoints.plan import CHOICES, Policies

    group = parser.add_argument_group("where the checkpoints differ", POLICY_HELP)
    for field in dataclasses.fields(Policies):
        parser.one(field.name, "|".join(CHOICES[field.name]), str(field.metadata["help"]), group=group)


def policies_of(request: Request) -> Policies:
    """The policies of a request; mistakes are added to its problems."""
    from holdfast.checkpoints.plan import CHOICES, Policies

    return Policies(**{name: request.choice(name, known, known[0]) for name, known in CHOICES.items()})


def add_output(parser: RequestParser) -> None:
    """Options on what is written, and how."""
    group = parser.add_argument_group("output")
    parser.one("output_dir", "FOLDER", "the folder to write; it is complete or absent, whatever happens meanwhile", group=group)
    parser.switch("overwrite", "replace the folder if it is there and holdfast wrote it", group=group)
    parser.switch("dry_run", "check everything, show the plan, write nothing", group=group)
    parser.switch("json", "the plan (with --dry_run) or the outcome as JSON on stdout", group=group)
    parser.one("workers", "N", "threads (all cores)", group=group)
    parser.switch("no_sync", "do not wait until the disk has it all: quicker, but a power cut may lose it", group=group)


def dtype_of(request: Request, default: str | None = None) -> str | None:
    """The option `dtype`, checked; mistakes are added to the request's problems."""
    from holdfast.checkpoints.dtypes import dtype as dtype_named

    value = request.text("dtype", default)
    if value is not None:
        try:
            dtype_named(value)
        except ConfigError as error:
            request.problems += [f"{request.named('dtype')}: {p.removeprefix('dtype: ')}" for p in error.problems]
            return default
    return value


def plan_request(request: Request, prepare: Callable[[], Prepared], folders: Sequence[tuple[str, str]]) -> Prepared:
    """Plans a request, or raises all that is wrong with it together.

    Args:
        request: with the problems found so far; what had mistakes has its default meanwhile.
        prepare: plans it.
        folders: `(option, folder)` of all inputs.

    Raises:
        HoldfastError: see `prepare_merge`; one `ConfigError` with everything where the options have mistakes.
    """
    if not request.unknown:
        request.problems += missing_folders(folders)
    if request.problems:
        if all_here(name for _, name in folders):
            try:
                prepare()
            except ConfigError as error:
                request.problems += error.problems
            except HoldfastError:
                pass  # what is wrong with the checkpoints may change when the options do
        request.check()
    return prepare()


# --------------------------------------------------------------------------------------------------- the plan, the work


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Says what Ctrl-C leaves behind, outside of the writing itself, which says so on its own.

    Raises:
        Interrupted: Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("Stopped. Nothing was left half written.") from None


def carry_out(prepared: Prepared, request: Request) -> int:
    """Shows the plan; with `--dry_run` that is all, else does the work and says what came of it.

    Raises:
        HoldfastError: see `Prepared.write`.
    """
    as_json, folder = request.on("json"), Path(request.text("output_dir", ""))
    overwrite, workers = request.on("overwrite"), request.whole("workers", None, least=1)
    check_output(prepared.plan, folder, overwrite=overwrite)
    if request.on("dry_run"):
        return _dry_run(prepared, folder, request.notes, as_json=as_json)
    for line in announcement(prepared, folder, request.notes):
        print(line, file=sys.stderr)
    sys.stderr.flush()
    built = prepared.write(folder, overwrite=overwrite, sync=not request.on("no_sync"), workers=workers)
    for line in outcome(prepared, built):
        print(line, file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print_json(outcome_record(prepared, built))
    return 0


def check_output(plan: Plan, folder: Path, *, overwrite: bool) -> None:
    """Refuses a destination that is taken, or is one of the inputs, before any work begins.

    Raises:
        RunFolderError: it is.
    """
    import os

    from holdfast.checkpoints.sources import folders_of
    from holdfast.checkpoints.writer import check_destination

    real = Path(os.path.realpath(folder.expanduser()))
    for source in plan.sources:
        for held in folders_of(source):
            if Path(os.path.realpath(held)) in (real, *real.parents):
                raise RunFolderError(f"{folder} is (or lies in) the input {held}, which is never modified. Choose another output folder.")
    check_destination(folder.expanduser(), overwrite=overwrite)


def _dry_run(prepared: Prepared, folder: Path, notes: Sequence[str], *, as_json: bool) -> int:
    target = stderr_console() if as_json else stdout_console()
    estimate = prepared.estimate()
    target.print("Dry run: the request is sound; nothing was written.\n")
    for key, value in plan_rows(prepared, folder, notes, estimate):
        target.print(f"  {key:<12}{value}", soft_wrap=True, markup=False, highlight=False)
    if prepared.plan.ancestry:
        print_ancestry(prepared.plan.ancestry, target)
    if as_json:
        print_json(plan_record(prepared, folder, notes, estimate))
    needed, free = prepared.plan.bytes_written, free_bytes(folder)
    if free < needed:
        raise StorageError(f"{folder} needs {size_text(needed)} and the disk has {size_text(free)} left. Free some space or choose another folder.")
    return 0


def announcement(prepared: Prepared, folder: Path, notes: Sequence[str]) -> list[str]:
    """A few lines before the work: what is made of what, how much, how long, and what is worth knowing."""
    plan = prepared.plan
    inputs = ", ".join(f"{role} {source.label}" for role, source in zip(plan.roles, plan.sources, strict=True))
    lines = [
        f"{prepared.command}: {method_text(prepared.recipe.identity())} of {inputs}",
        f"  {contents(plan)}; reads {size_text(plan.bytes_read)}{_passes(plan)}; about {seconds_text(prepared.estimate())}",
    ]
    return lines + [f"  {_note(n)}" for n in (*notes, *plan.notes)]


def outcome(prepared: Prepared, built: Built) -> list[str]:
    """What came of it, in one line, and what is worth knowing."""
    written, seconds = prepared.plan.bytes_written, built.seconds["total"]
    speed = f" ({written / seconds / 1e9:.2f} GB/s)" if seconds > 0 else ""
    lines = [f"Wrote {built.folder}: {size_text(written)} in {seconds_text(seconds)}{speed}, fingerprint {built.record['fingerprint']}"]
    if built.resumed:
        lines.append(f"  went on from an earlier, interrupted run: {len(built.resumed)} of {len(prepared.plan.files)} files were there already")
    inexact = (built.record.get("audit") or {}).get("inexact")
    if inexact == 0:
        lines.append("  exact: put back on its base with scale 1, it gives the tuned model bit for bit")
    elif inexact:
        total = prepared.plan.summary()["parameters"]
        lines.append(f"  {inexact:,} of {total:,} values do not come back bit for bit when it is put back on its base; --dtype float64 is exact")
    return lines


def plan_rows(prepared: Prepared, folder: Path, notes: Sequence[str], estimate: float) -> list[tuple[str, str]]:
    """What will be done, as keys and values for people."""
    plan, summary = prepared.plan, prepared.plan.summary()
    needed, free = plan.bytes_written, free_bytes(folder)
    rows = [(prepared.command.split()[-1], method_text(prepared.recipe.identity()))]
    rows += [(role, f"{source.label}: {source_text(source)}") for role, source in zip(plan.roles, plan.sources, strict=True)]
    rows.append(("output", f"{folder}: {contents(plan)}"))
    rows.append(("layout", f"{plan.roles[plan.layout]} (names, dtypes, shards, configuration){_tokenizer(prepared)}"))
    matched = f"{summary['combined']} of {summary['tensors']} tensors are combined"
    rows.append(("matching", matched + (f", {summary['copied']} copied" if summary["copied"] else "")))
    rows.append(("policies", _policies(prepared)))
    rows += [("note" if i == 0 else "", _note(note)) for i, note in enumerate((*notes, *plan.notes))]
    rows.append(("reads", f"{size_text(plan.bytes_read)}{_passes(plan)}"))
    rows.append(("disk", f"needs {size_text(needed)}, {size_text(free)} free" + ("" if needed <= free else ": NOT ENOUGH")))
    rows.append(("time", f"about {seconds_text(estimate)}"))
    return [row for row in rows if row[1]]


def plan_record(prepared: Prepared, folder: Path, notes: Sequence[str], estimate: float) -> dict[str, Any]:
    """What will be done, for programs."""
    plan = prepared.plan
    return {
        "command": prepared.command,
        "dry_run": True,
        "method": prepared.recipe.identity(),
        "request": dict(prepared.request),
        "inputs": [{"role": role, "name": source.label, **source_record(source)} for role, source in zip(plan.roles, plan.sources, strict=True)],
        "layout": plan.roles[plan.layout],
        "output_dir": folder,
        "plan": {**plan.summary(), "notes": [*notes, *plan.notes]},
        "ancestry": plan.ancestry,
        "estimated_seconds": estimate,
        "free_bytes": free_bytes(folder),
    }


def outcome_record(prepared: Prepared, built: Built) -> dict[str, Any]:
    """What came of it, for programs: the provenance record without its list of tensors, and the timing."""
    record = {key: value for key, value in built.record.items() if key != "tensors"}
    seconds = built.seconds["total"]
    rate = prepared.plan.bytes_written / seconds / 1e9 if seconds > 0 else None
    return {**record, "folder": built.folder, "seconds": built.seconds, "gigabytes_per_second": rate, "resumed": built.resumed}


def print_ancestry(found: Sequence[LayerDistance], target: Console) -> None:
    """The distances between a model and its base, from a sample, as a table."""
    from rich.table import Table

    target.print("\n  Is it a fine-tune of that base? A sample of every layer:")
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("  layer", "relative norm", "cosine"):
        table.add_column(name, justify="left" if name == "  layer" else "right")
    for layer in found:
        table.add_row(f"  {layer.layer}", number_text(layer.relative), f"{layer.cosine:.6f}")
    target.print(table)


# -------------------------------------------------------------------------------------------------------------- wording


def method_text(identity: Mapping[str, Any]) -> str:
    """A method with its parameters, as `ties(density=0.5, scale=1)`."""
    shown = [f"{k}={_value_text(v)}" for k, v in identity.items() if k != "method" and v is not None]
    return f"{identity.get('method')}({', '.join(shown)})" if shown else str(identity.get("method"))


def contents(plan: Plan) -> str:
    """What the output will hold: tensors, parameters, dtypes, bytes, files."""
    summary = plan.summary()
    files = len(summary["files"])
    dtypes = ", ".join(summary["dtypes"])
    amount = f"{summary['tensors']} tensors, {summary['parameters']:,} parameters"
    return f"{amount} ({dtypes}), {size_text(summary['bytes_written'])} in {files} file{'s' if files != 1 else ''}"


def source_record(source: Source) -> dict[str, Any]:
    """Counts of one input as the engine sees it."""
    entries = source.entries.values()
    return {
        "tensors": len(source.entries),
        "parameters": sum(e.size for e in entries),
        "bytes": sum(e.nbytes for e in entries),
        "dtypes": sorted({e.dtype.name for e in entries}),
        "files": len({e.file for e in entries}),
    }


def source_text(source: Source) -> str:
    """Counts of one input, for people."""
    found = source_record(source)
    return f"{found['tensors']} tensors, {found['parameters']:,} parameters ({', '.join(found['dtypes'])}), {size_text(found['bytes'])}"


def free_bytes(folder: Path) -> int:
    """Free space where a folder is to be."""
    place = folder.expanduser().absolute()
    while not place.exists():
        place = place.parent
    return shutil.disk_usage(place).free


def size_text(count: float) -> str:
    """Bytes in decimal units: 1.48 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.2f} TB"


def seconds_text(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 1:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number_text(value: float) -> str:
    """A figure of any size in a few characters."""
    return f"{value:.4g}" if math.isfinite(value) else "-" if math.isnan(value) else "inf"


def stdout_console() -> Console:
    """Where results go."""
    from holdfast.cli.options import console

    found: Console = console()
    return found


def stderr_console() -> Console:
    """Where everything else goes when results are JSON."""
    from rich.console import Console

    return Console(stderr=True) if sys.stderr.isatty() else Console(stderr=True, width=120)


def print_json(value: Any) -> None:
    """A value as JSON on stdout."""
    import json

    from holdfast.results import to_jsonable

    print(json.dumps(to_jsonable(value), indent=2, ensure_ascii=False, allow_nan=False))


def _value_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_value_text(v) for v in value)}]"
    return str(value)


def _passes(plan: Plan) -> str:
    return f" in {plan.passes} passes" if plan.passes > 1 else ""


def _note(text: str) -> str:
    return text if text.startswith("WARNING") else f"note: {text}"


def _tokenizer(prepared: Prepared) -> str:
    found = prepared.request.get("tokenizer")
    return f"; tokenizer, chat template and generation settings of {found}" if found else ""


def _policies(prepared: Prepared) -> str:
    found = prepared.request.get("policies")
    return ", ".join(f"{name}: {value}" for name, value in vars(found).items()) if found is not None else ""
