"""`holdfast fisher`: the diagonal Fisher information of a model on old data, for EWC and for Fisher merging."""

from __future__ import annotations

from typing import Any

from holdfast.cli.checkpoint_options import missing_folders, seconds_text, stdout_console, stoppable
from holdfast.cli.request import Request, RequestParser

DESCRIPTION = """\
How much does each weight matter to what the model says about some data? Computes the diagonal of the Fisher information,
the squared gradients of the log-likelihood, sample by sample and averaged over trained tokens, and writes it to a folder
of its own; the model's is not touched. EWC (retention method 'ewc') and 'holdfast merge --method fisher' take the folder.
"""
EPILOG = """\
examples
  holdfast fisher base --data old_task.jsonl                                 # writes base-fisher beside base
  holdfast fisher base --data old_task.jsonl --samples 1024 --estimator sampled --output_dir old-fisher

  # then keep what the old task needs while learning the new one
  holdfast train --model_name_or_path base --dataset_name train.jsonl --retention ewc:fisher=base-fisher,coefficient=10

  # or average two models, each weight by how much each needs it
  holdfast merge math code --method fisher --fisher math-fisher code-fisher --output_dir both

--estimator
  empirical   gradients for the data's own labels (the default)
  sampled     gradients for labels drawn from the model: the Fisher information proper, one forward pass more a sample
"""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast fisher --help`."""
    import time

    request = Request(build_parser(), argv)
    settings = read_request(request)
    if not request.unknown:
        request.problems += missing_folders([("model", settings["model"])])
    if request.problems:
        request.check()

    from holdfast.runs.fisher import compute_fisher

    began, target = time.monotonic(), stdout_console()

    def say(line: str) -> None:
        target.print(line, soft_wrap=True, markup=False, highlight=False)

    with stoppable():
        found = compute_fisher(**settings, say=say)
    size = sum(entry.size for entry in found.reader.entries.values())
    say(
        f"{found.folder}: {size:,} parameters, {found.record['tokens']:,} trained tokens, "
        f"{seconds_text(time.monotonic() - began)}"
    )
    return 0


def read_request(request: Request) -> dict[str, Any]:
    """The arguments of `compute_fisher`; mistakes are added to the request's problems."""
    models = request.texts("model")
    if len(models) != 1:
        request.problems.append(f"expected one model, got {len(models)}{': ' + ', '.join(models) if models else ''}")
    from holdfast.retention.fisher import ESTIMATORS

    return {
        "model": models[0] if models else "",
        "data": request.required("data", "the old task's data, as in --data old_task.jsonl"),
        "samples": request.whole("samples", 256, least=1),
        "estimator": request.choice("estimator", ESTIMATORS, ESTIMATORS[0]),
        "seed": request.whole("seed", 0),
        "output_dir": request.text("output_dir", None),
        "overwrite": request.on("overwrite"),
        "max_length": request.whole("max_length", None, least=2),
        "dtype": request.choice("dtype", ("float32", "bfloat16", "auto"), "float32"),
        "device": request.choice("device", ("auto", "cpu", "cuda"), "auto"),
    }


def build_parser() -> RequestParser:
    """The options."""
    parser = RequestParser(
        prog="holdfast fisher", description=DESCRIPTION, epilog=EPILOG, usage="MODEL --data FILE [options]", yaml=False
    )
    parser.words("model", "MODEL", "folder or hub id")
    parser.one("data", "FILE", "file, folder or hub id, in any format that 'holdfast train' reads")
    parser.one("samples", "N", "samples of it, at most (256)")
    parser.one("estimator", "empirical|sampled", "whose labels; see below (empirical)")
    parser.one("seed", "N", "which samples are taken, and the drawn labels (0)")
    parser.one("max_length", "N", "tokens that samples are cut to (1024, at most the model's context)")
    parser.one("dtype", "float32|bfloat16|auto", "of weights and gradients; sums are in float32 (float32)")
    parser.one("device", "auto|cpu|cuda", "where to compute (auto)")
    parser.one("output_dir", "FOLDER", "the folder to write (MODEL-fisher beside MODEL); complete or absent")
    parser.switch("overwrite", "replace another Fisher diagonal that is there")
    return parser
