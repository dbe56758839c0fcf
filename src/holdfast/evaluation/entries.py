"""What a plan is made of: one value an entry, one a plan. Nothing is loaded here, and nothing is checked: see
`holdfast.evaluation.suite`."""

from __future__ import annotations

from dataclasses import dataclass

TASK_SUFFIXES = (".yaml", ".yml")

CODE_FAMILIES = {"humaneval": "humaneval", "humaneval_instruct": "humaneval", "mbpp": "mbpp", "mbpp_instruct": "mbpp"}
"""Tasks whose answers are programs, by the form of their rows. They run in the sandbox, and only where the user allows
it."""


@dataclass(frozen=True, kw_only=True)
class _DataEntry:
    """What entries over rows of a file have in common."""

    suite: str
    """"source", "target" or a name of the user's."""
    name: str
    """Unique within its suite; the stem of the data file unless given."""
    data: str
    """Absolute path of a local file or folder, or a hub id."""
    split: str = "train"
    """Split of the data; a single local file is the split "train"."""
    config: str | None = None
    """Configuration name of a hub data set."""
    max_documents: int | None = None
    """Only the first so many rows; None: all."""


@dataclass(frozen=True, kw_only=True)
class PerplexityEntry(_DataEntry):
    """Held-out text, or completions given prompts, to be scored token by token."""

    window: int | None = None
    """Longest context in tokens; None: the model's maximum."""
    stride: int | None = None
    """New tokens per window in documents longer than `window`; None: half of it. Cost grows with window / stride."""
    text: str | None = None
    """`str.format` template over the columns for plain text."""
    prompt: str | None = None
    """Template of what is given; comes with `completion`."""
    completion: str | None = None
    """Template of what is scored."""
    memorisation: bool = False
    """Also counts the tokens that were the model's most likely one, and the entropy of its distributions."""

    @property
    def kind(self) -> str:
        """ "perplexity" or "memorisation"."""
        return "memorisation" if self.memorisation else "perplexity"


@dataclass(frozen=True, kw_only=True)
class ClassesEntry(_DataEntry):
    """Texts to be classified by the likelihood of each class's name."""

    prompt: str
    """`str.format` template over the columns: what is given."""
    options: tuple[str, ...]
    """What the classes are called, as the model would continue the prompt, in the order of the labels."""
    labels: tuple[str, ...] = ()
    """The label column's values in the order of `options`; empty: whole numbers from 0."""
    label: str = "label"
    """Column with the right class."""

    @property
    def kind(self) -> str:
        """ "classes"."""
        return "classes"


@dataclass(frozen=True, kw_only=True)
class ChoicesEntry(_DataEntry):
    """Questions with options of their own, answered by the likelihood of each option; rows of prompt, options and
    answer (the right option's index from 0)."""

    length_normalised: bool = True
    """Divides an option's log-likelihood by its tokens; False takes the sum."""
    apply_chat_template: bool = False
    """The prompt becomes a user's message in the tokenizer's chat template, and an option begins the reply."""
    group: str | None = None
    """Column whose values the report draws apart, such as the subject."""

    @property
    def kind(self) -> str:
        """ "choices"."""
        return "choices"


@dataclass(frozen=True, kw_only=True)
class InstructionsEntry(_DataEntry):
    """Prompts with instructions whose following a program checks; rows of prompt (or messages), instruction_id_list and
    kwargs, as IFEval has them."""

    max_new_tokens: int = 256
    """The longest reply; greedy, it ends earlier where the model ends it."""
    apply_chat_template: bool = False
    """Puts a prompt in the tokenizer's chat template; messages always are."""

    @property
    def kind(self) -> str:
        """ "instructions"."""
        return "instructions"


@dataclass(frozen=True, kw_only=True)
class TaskEntry:
    """One lm-evaluation-harness task or group of tasks."""

    suite: str
    """"source", "target" or a name of the user's."""
    name: str
    """Unique within its suite; the task's name (or the YAML file's stem) unless given."""
    task: str
    """Built-in task or group, or the absolute path of a task YAML."""
    data: str | None = None
    """Absolute path of a local file that replaces the task's data set; prompts, choices and metrics stay the task's
    own."""
    fewshot_data: str | None = None
    """Absolute path of the examples shown before each question; None with `data`: drawn from `data` itself, never the
    question asked."""
    num_fewshot: int | None = None
    """Examples shown before each question; None: what the task says."""
    limit: int | None = None
    """Only the first so many questions (of each subtask of a group); None: all."""
    apply_chat_template: bool = False
    """Puts the questions in the tokenizer's chat template."""
    metric: str | None = None
    """The metric to lead with; None: accuracy where there is one, else exact match, else the task's first."""
    answers: bool = False
    """Looks at the distribution at the answer position in place of the task's own metrics."""
    samples: int | None = None
    """Programs a problem, of tasks whose answers are programs; None: 1."""
    temperature: float | None = None
    """Of sampling where there are several programs a problem; None: 0.8 (Chen et al. 2021 take 0.8 for pass@100 and 0.2
    for pass@1)."""

    @property
    def kind(self) -> str:
        """ "task", "answers" or "code"."""
        return "answers" if self.answers else "code" if self.task in CODE_FAMILIES else "task"

    @property
    def is_file(self) -> bool:
        """True where `task` is the path of a task YAML."""
        return self.task.endswith(TASK_SUFFIXES)


Entry = PerplexityEntry | ClassesEntry | ChoicesEntry | InstructionsEntry | TaskEntry


@dataclass(frozen=True, kw_only=True)
class Average:
    """The mean of several figures, each counting once."""

    name: str
    members: tuple[tuple[str, str, str | None], ...]
    """(suite, entry, metric) of the plan; None is the entry's leading metric."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPlan:
    """All entries, source first, then target, then the others, each in the order of the config."""

    entries: tuple[Entry, ...] = ()
    batch_size: int = 8
    """Questions per forward pass of tasks. Fixed, never "auto": results depend on it, and a comparison must not."""
    before: bool = True
    """Evaluates the bare starting model too, which comparisons need."""
    confidence: float = 0.95
    """Level of all intervals."""
    seed: int = 0
    """Of resampling, of the choice of few-shot examples, and of sampled generation."""
    averages: tuple[Average, ...] = ()
    """Made of the entries' figures; compared as such, too."""
    allow_code_execution: bool = False
    """Runs programs that the model wrote, in a sandbox. Without it tasks with programs for answers are refused."""

    @property
    def suites(self) -> tuple[str, ...]:
        """Names of the suites in order."""
        return tuple(dict.fromkeys(e.suite for e in self.entries))

    @property
    def tasks(self) -> dict[str, TaskEntry]:
        """The tasks by name, and by "suite/name" where two suites have one of the same name."""
        tasks = [e for e in self.entries if isinstance(e, TaskEntry)]
        names = [t.name for t in tasks]
        return {t.name if names.count(t.name) == 1 else f"{t.suite}/{t.name}": t for t in tasks}
