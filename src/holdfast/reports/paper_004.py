"""What the residual paper (004) prints in its tables 2, 3 and 4, figure by figure, for the page to put ours beside.

"Balancing Continuous Pre-Training and Instruction Fine-Tuning: Optimizing Instruction-Following in LLMs" (Jindal et
al., Samsung Research). All figures are percentages, printed with two decimals and without intervals. Sub-average 1 is
the mean of the first eight, sub-average 2 of the next seven, the average of all sixteen. `disagreements` recomputes
them: printed figures are rounded, so a mean of them may be off by 0.005 twice.

What the paper leaves open: whether table 3's "+ residual" columns add the residual to the base as it was (so section
4.3: "merged with the LLaMa 3 base model") or to one that was continued ("continuously pre-trained base model", same
section). They are taken as the first here. Qwen models of 0.5B and 7B are said to have been run; no figure of them is
printed.
"""

from __future__ import annotations

import dataclasses
import functools
import re

TITLE = "Balancing Continuous Pre-Training and Instruction Fine-Tuning (paper 004)"
MILLION = 1_000_000
TOLERANCE = 0.05
"""A token count within this share of the paper's budget is taken for it: packing and whole documents move it a
little."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperRow:
    """One of the sixteen figures, in the order of the tables."""

    benchmark: str
    metric: str
    """As printed."""
    entry: str
    """The entry of the suite `instruction_residual`."""
    key: str
    """The metric's name there."""
    words: str
    """What it is, for readers."""


ROWS: tuple[PaperRow, ...] = (
    PaperRow(
        benchmark="IFEval",
        metric="ILL_acc",
        entry="ifeval",
        key="inst_level_loose_acc",
        words="instructions followed, loose",
    ),
    PaperRow(
        benchmark="IFEval",
        metric="ILS_acc",
        entry="ifeval",
        key="inst_level_strict_acc",
        words="instructions followed, strict",
    ),
    PaperRow(
        benchmark="IFEval",
        metric="PLL_acc",
        entry="ifeval",
        key="prompt_level_loose_acc",
        words="prompts followed, loose",
    ),
    PaperRow(
        benchmark="IFEval",
        metric="PLS_acc",
        entry="ifeval",
        key="prompt_level_strict_acc",
        words="prompts followed, strict",
    ),
    PaperRow(benchmark="MMLU", metric="acc", entry="mmlu", key="acc", words="accuracy, 5-shot"),
    PaperRow(benchmark="MMLU-Pro", metric="EM", entry="mmlu_pro", key="exact_match", words="exact match, 5-shot"),
    PaperRow(
        benchmark="GSM8K",
        metric="EM",
        entry="gsm8k",
        key="exact_match,flexible-extract",
        words="exact match, flexible, 5-shot",
    ),
    PaperRow(
        benchmark="GSM8K",
        metric="strict-EM",
        entry="gsm8k",
        key="exact_match,strict-match",
        words="exact match, strict, 5-shot",
    ),
    PaperRow(benchmark="WinoGrande", metric="acc", entry="winogrande", key="acc", words="accuracy"),
    PaperRow(benchmark="HellaSwag", metric="acc", entry="hellaswag", key="acc", words="accuracy"),
    PaperRow(
        benchmark="HellaSwag", metric="acc_n", entry="hellaswag", key="acc_norm", words="accuracy, length-normalised"
    ),
    PaperRow(benchmark="ARC-easy", metric="acc", entry="arc_easy", key="acc", words="accuracy"),
    PaperRow(
        benchmark="ARC-easy", metric="acc_n", entry="arc_easy", key="acc_norm", words="accuracy, length-normalised"
    ),
    PaperRow(benchmark="PIQA", metric="acc", entry="piqa", key="acc", words="accuracy"),
    PaperRow(benchmark="PIQA", metric="acc_n", entry="piqa", key="acc_norm", words="accuracy, length-normalised"),
    PaperRow(
        benchmark="TruthfulQA mc2",
        metric="acc",
        entry="truthfulqa_mc2",
        key="acc",
        words="probability of the true answers",
    ),
)
FIRST, SECOND = slice(0, 8), slice(8, 15)
"""The rows of sub-average 1 (instruction following) and of sub-average 2 (reasoning)."""

MODELS = {
    "L3b": ("meta-llama/Meta-Llama-3-8B", "meta-llama/Llama-3-8B"),
    "L3i": ("meta-llama/Meta-Llama-3-8B-Instruct", "meta-llama/Llama-3-8B-Instruct"),
    "L3.1b": ("meta-llama/Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-8B"),
    "L3.1i": ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B-Instruct"),
    "Q2b": ("Qwen/Qwen2-1.5B",),
    "Q2i": ("Qwen/Qwen2-1.5B-Instruct",),
    "Q2.5b": ("Qwen/Qwen2.5-1.5B",),
    "Q2.5i": ("Qwen/Qwen2.5-1.5B-Instruct",),
    "DocChat": ("cerebras/Llama3-DocChat-1.0-8B",),
}
"""The paper's names for its models -> names they have on the hub. The paper gives no hashes, so a model is known by its
name alone."""

INSTRUCTION_TUNING_FLOPS = 6 * 8e9 * 204_800e6 * 5
"""Appendix A: 6 x 8B parameters x 204,800M tokens (25M samples of 8,192) x 5 epochs, an estimate of theirs for Llama 3
8B."""
CONTINUED_FLOPS = 6 * 8e9 * 100e6 * 5
"""Appendix A: the same for 100M new tokens; the ratio of the two is 2048."""

_COLUMNS = {
    2: (
        ("L3b", 0, None),
        ("L3b", 100, None),
        ("L3b", 500, None),
        ("L3b", 1000, None),
        ("L3i", 0, None),
        ("L3i", 100, None),
        ("L3i", 500, None),
        ("L3i", 1000, None),
        ("L3b", 100, "L3i"),
        ("L3b", 500, "L3i"),
        ("L3b", 1000, "L3i"),
    ),
    3: (
        ("L3b", 0, None),
        ("L3i", 0, None),
        ("L3b", 0, "L3.1i"),
        ("L3.1b", 0, None),
        ("L3.1i", 0, None),
        ("L3.1b", 0, "L3i"),
        ("Q2b", 0, None),
        ("Q2i", 0, None),
        ("Q2b", 0, "Q2.5i"),
        ("Q2.5b", 0, None),
        ("Q2.5i", 0, None),
        ("Q2.5b", 0, "Q2i"),
    ),
    4: (("DocChat", 0, None), ("DocChat", 0, "L3i"), ("DocChat", 0, "L3.1i")),
}
"""Table -> (start, millions of new tokens, the instruct model whose residual was added) a column."""

# Rows as printed: eight figures, their mean, seven figures, their mean, TruthfulQA, the average. Table 4 prints no
# sub-averages.
_TABLE_2 = """
19.06 17.75 19.30 20.14 53.36 45.68 45.32 41.01 57.67 56.47 57.79
17.87 16.31 17.87 17.87 47.84 40.41 38.61 35.25 51.68 51.44 51.68
09.98 09.61 10.54 11.09 41.77 34.20 33.64 28.10 44.18 42.88 44.36
09.06 08.69 09.61 09.80 35.30 29.21 26.80 22.55 37.52 36.78 37.52
62.14 63.76 63.77 63.62 63.83 66.04 65.38 65.52 67.69 67.16 67.51
34.51 34.92 34.70 35.49 39.70 36.39 35.76 35.52 40.72 40.84 40.27
49.58 48.14 47.54 47.08 75.06 69.22 68.08 68.01 74.83 73.92 73.16
49.20 34.04 36.62 39.04 74.98 65.35 59.74 55.42 46.93 55.27 49.51
31.43 29.15 29.99 30.52 53.98 48.31 46.67 43.92 52.65 53.10 52.73
73.16 72.14 71.59 71.27 71.74 72.22 71.74 71.74 71.43 72.06 71.19
60.12 60.17 60.27 60.23 57.70 58.69 58.73 59.00 59.30 59.16 59.39
79.22 78.62 78.20 78.36 75.76 77.84 77.68 77.80 79.01 79.14 79.00
80.39 81.14 80.60 80.60 81.52 79.71 79.63 79.46 82.20 82.32 82.03
77.78 80.30 79.67 79.38 79.63 77.53 77.65 77.44 79.00 79.25 79.08
79.54 80.09 80.30 80.20 78.56 79.87 79.49 79.49 80.25 80.20 80.41
80.74 81.56 81.34 80.96 78.62 80.41 79.98 79.98 80.63 80.74 80.90
75.85 76.29 76.00 75.86 74.79 75.18 74.99 74.99 75.97 76.12 76.00
43.94 47.64 47.29 47.41 51.67 51.80 51.55 51.68 56.13 55.73 56.17
51.64 50.93 51.20 51.41 62.94 60.28 59.36 58.00 63.07 63.34 63.12
"""

_TABLE_3 = """
19.06 53.36 57.19 15.59 54.80 48.32 25.84 29.02 27.22 28.15 39.09 26.50
17.87 47.84 51.92 14.63 49.88 43.76 23.62 26.74 23.86 25.72 35.21 25.06
09.98 41.77 43.81 07.76 41.59 34.38 16.08 17.93 17.19 20.01 25.67 20.33
09.06 35.30 37.52 07.02 35.49 29.39 14.05 15.71 14.23 17.65 22.04 18.85
62.14 63.83 66.02 63.40 68.03 64.89 55.10 55.80 55.16 59.75 59.75 59.75
34.51 39.70 38.53 35.32 40.97 40.40 21.21 21.70 21.10 27.13 29.89 27.00
49.58 75.06 75.13 50.11 76.19 73.84 54.51 58.30 57.01 57.39 56.86 58.76
49.20 74.98 74.98 49.81 75.36 73.84 54.44 57.39 56.79 57.16 53.37 58.30
31.43 53.98 55.64 30.46 55.29 51.10 33.11 35.32 34.07 36.62 40.24 36.82
73.16 71.74 72.77 73.64 73.40 73.01 66.38 65.19 65.82 63.22 65.19 63.22
60.12 57.70 59.00 60.02 59.10 58.25 48.61 49.30 48.58 50.16 50.94 50.08
79.22 75.76 78.88 78.90 79.19 76.68 65.43 66.07 65.42 67.81 68.34 67.76
80.39 81.52 81.57 81.40 81.94 82.91 66.25 69.99 66.37 75.42 76.56 75.67
77.78 79.63 78.83 81.14 79.76 81.86 60.86 66.54 60.14 71.84 76.26 72.26
79.54 78.56 79.00 80.09 80.03 79.16 75.41 76.17 75.95 75.68 76.39 75.84
80.74 78.62 80.14 81.07 81.12 79.22 75.41 75.90 75.79 76.06 76.12 75.79
75.85 74.79 75.74 76.61 76.36 75.87 65.48 67.02 65.48 68.60 69.97 68.66
43.94 51.67 52.73 45.17 53.92 52.20 45.95 43.36 45.95 46.64 46.65 46.45
51.64 62.94 64.25 51.57 64.42 62.01 48.07 49.69 48.54 51.24 53.65 51.35
"""

_TABLE_4 = """
38.25 49.64 56.71
34.65 46.04 53.12
24.95 37.34 44.36
20.89 32.90 39.74
62.96 62.31 65.35
36.36 39.66 39.36
57.09 78.54 74.53
56.94 77.48 69.90
74.27 71.27 73.32
61.68 57.57 59.51
80.36 75.79 78.39
82.11 81.02 80.22
81.52 79.00 77.99
80.47 78.13 78.78
81.61 77.97 78.62
45.35 49.54 50.82
57.47 62.14 63.80
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperColumn:
    """One column of one table."""

    table: int
    start: str
    """The paper's name of the model that it began with, a key of `MODELS`."""
    tokens: int
    """New tokens it was continued on; 0: none."""
    residual: str | None
    """The instruct model whose residual was added; None: none was."""
    values: tuple[float, ...]
    """The sixteen figures, in percent."""
    sub_average_1: float | None
    """As printed; table 4 prints none."""
    sub_average_2: float | None
    average: float

    @property
    def name(self) -> str:
        """Such as "L3b +100M + L3i residual"."""
        millions = self.tokens // MILLION
        tokens = "" if not millions else f" +{millions}M" if millions < 1000 else f" +{millions // 1000}B"
        return f"{self.start}{tokens}" + (f" + {self.residual} residual" if self.residual else "")

    def recomputed(self) -> tuple[float, float, float]:
        """Sub-average 1, sub-average 2 and average from the sixteen printed figures."""
        return tuple(sum(v) / len(v) for v in (self.values[FIRST], self.values[SECOND], self.values))  # type: ignore[return-value]


@functools.cache
def columns() -> tuple[PaperColumn, ...]:
    """Every column of tables 2, 3 and 4, in the order of print; two of table 3 are in table 2 as well."""
    found = []
    for table, text in ((2, _TABLE_2), (3, _TABLE_3), (4, _TABLE_4)):
        printed = [[float(v) for v in line.split()] for line in text.strip().splitlines()]
        whole = len(printed) == len(ROWS) + 3
        for place, (start, millions, residual) in enumerate(_COLUMNS[table]):
            figures = [row[place] for row in printed]
            values = (*figures[:8], *figures[9:16], figures[17]) if whole else tuple(figures[:16])
            found.append(
                PaperColumn(
                    table=table,
                    start=start,
                    tokens=millions * MILLION,
                    residual=residual,
                    values=values,
                    sub_average_1=figures[8] if whole else None,
                    sub_average_2=figures[16] if whole else None,
                    average=figures[-1],
                )
            )
    return tuple(found)


def recognise(name: str) -> str | None:
    """The paper's name of a model, by its name or the last part of its folder's; None where it is none of the paper's.

    Args:
        name: "meta-llama/Meta-Llama-3-8B", a folder of that name, or one of the hub's cache
            ("models--meta-llama--Meta-Llama-3-8B/snapshots/...").
    """
    cached = re.search(r"models--[\w.-]+?--([\w.-]+)", name)
    last = cached[1] if cached else re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return _BY_LAST.get(last.lower())


_BY_LAST = {hub.rsplit("/", 1)[-1].lower(): key for key, hubs in MODELS.items() for hub in hubs}


def find_column(start: str | None, tokens: int, residual: str | None) -> PaperColumn | None:
    """The printed column of a model that was made the same way; None where the paper has none.

    Args:
        start: the paper's name of the model it began with; None: not one of the paper's.
        tokens: new tokens it was continued on.
        residual: the paper's name of the instruct model whose residual was added at scale 1; None: none was.
    """
    for column in columns():
        near = abs(tokens - column.tokens) <= TOLERANCE * column.tokens
        if column.start == start and column.residual == residual and near:
            return column
    return None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Disagreement:
    """A printed mean that is not the mean of the printed figures."""

    table: int
    column: str
    what: str
    printed: float
    recomputed: float


def disagreements() -> list[Disagreement]:
    """Where a table's own averages cannot be had from its own figures, by more than rounding (0.005 of the figures and
    0.005 of their mean)."""
    found = []
    for column in columns():
        printed = (column.sub_average_1, column.sub_average_2, column.average)
        for what, value, mean in zip(
            ("sub-average 1", "sub-average 2", "average"), printed, column.recomputed(), strict=True
        ):
            if value is not None and abs(value - mean) > 0.01 + 1e-9:
                found.append(
                    Disagreement(
                        table=column.table, column=column.name, what=what, printed=value, recomputed=round(mean, 4)
                    )
                )
    return found


AGAINST_ITS_TEXT = (
    "Section 4.1 gives the average loss of the instruct model after 1B new tokens as 3 points; table 2 has 62.94 and "
    "58.00, a loss of 4.94.",
    "Section 4.3 says that Llama 3.1's residual on the Llama 3 base beats Llama 3's own instruct model by about 11 "
    "points; table 3 has 64.25 and "
    "62.94, 1.31 points (12.61 above the base, 51.64).",
)
"""Sentences of the paper that its tables do not bear out."""

SMALL_MODELS = (
    "At 1.5B the paper's own gain is small: the sibling's residual adds 0.47 points to Qwen 2's base (48.07 to 48.54) "
    "and 0.11 to Qwen 2.5's (51.24 "
    "to 51.35), where it adds 12.61 and 10.44 to the bases of Llama 3 and 3.1 8B. The paper calls models below 1.5B "
    "an open question."
)
SMALL = 3_000_000_000
"""Below this many parameters the page says what `SMALL_MODELS` says."""
