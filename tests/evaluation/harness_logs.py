"""Logs that lm-evaluation-harness itself writes, of two tiny models on local tasks."""

from __future__ import annotations

from pathlib import Path

from data_files import jsonl
from evaluation.conftest import make_model, make_tokenizer

TASKS = ("colours", "sums", "prose")

_QUESTIONS = """\
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{q}}}}\\nAnswer:"
doc_to_choice: options
doc_to_target: right
num_fewshot: {shots}
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: {version}
"""
_GROUP = """\
group: colours
task: [warm, cold]
aggregate_metric_list:
  - metric: acc
    aggregation: mean
    weight_by_size: false
metadata:
  version: 1.0
"""
_SUMS = """\
task: sums
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
generation_kwargs:
  until: ["\\n"]
  max_gen_toks: 4
  do_sample: false
filter_list:
  - name: strict-match
    filter:
      - function: regex
        regex_pattern: '^(\\d+)$'
      - function: take_first
  - name: anything
    filter:
      - function: regex
        regex_pattern: '[\\s\\S]'
        fallback: '2'
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
  - metric: bleu
    aggregation: bleu
    higher_is_better: true
"""
_PROSE = """\
task: prose
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{q}}}}"
metric_list:
  - metric: word_perplexity
  - metric: bits_per_byte
"""


def write_tasks(folder: Path, *, version: str = "1.0", shots: int = 0) -> Path:
    """A group of two multiple-choice tasks of unequal size, a generated one with two filters, and a text."""
    for name, count in (("warm", 40), ("cold", 20)):
        rows = []
        for number in range(count):
            question = f"Is {name} thing {number} red or blue?"
            rows.append({"q": question, "options": ["red", "blue"], "right": (number * 7 + count) % 3 % 2})
        data = jsonl(folder / f"{name}.jsonl", rows)
        text = _QUESTIONS.format(name=name, data=data, version=version, shots=shots)
        (folder / f"{name}.yaml").write_text(text)
    (folder / "colours.yaml").write_text(_GROUP)
    sums = jsonl(folder / "sums.jsonl", [{"q": f"{i} + 1 =", "a": str(i + 1)} for i in range(6)])
    (folder / "sums.yaml").write_text(_SUMS.format(data=sums))
    (folder / "prose.yaml").write_text(_PROSE.format(data=folder / "cold.jsonl"))
    return folder


def run_harness(output: Path, seed: int, tasks: Path, names: tuple[str, ...] = TASKS) -> Path:
    """What `lm_eval run --log_samples --output_path OUTPUT` writes for a tiny model; returns the model's folder."""
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.models.huggingface import HFLM
    from lm_eval.tasks import TaskManager

    lm = HFLM(pretrained=make_model(seed=seed, positions=256), tokenizer=make_tokenizer(), batch_size=16)
    tracker = EvaluationTracker(output_path=str(output))
    results = simple_evaluate(
        model=lm,
        model_args={"pretrained": f"/models/tiny-{seed}"},
        tasks=list(names),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        log_samples=True,
        evaluation_tracker=tracker,
        bootstrap_iters=0,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    return output / f"__models__tiny-{seed}"
