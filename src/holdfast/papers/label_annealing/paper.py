"""The paper of `holdfast reproduce label-annealing`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="label-annealing",
    title="Memory Retaining Finetuning via Distillation (label annealing)",
    short="Memory Retaining Finetuning",
    about="Memory Retaining Finetuning via Distillation: mathematics, code, alignment tax, niche knowledge",
    recipes={
        "math": "mathematics",
        "code": "code",
        "alignment_tax": "alignment tax",
        "niche_knowledge": "niche knowledge",
        "math_variants": "mathematics, variants of the KL (ours)",
        "code_variants": "code, variants of the KL (ours)",
    },
    durations={"quick": "two minutes", "small": "15 minutes", "medium": "four hours"},
    function="holdfast.papers.label_annealing.reproduction:reproduce",
    rules=1,  # at equal target throughout; each claim on the benchmarks that its sentence names
)
