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
    },
    durations={"quick": "two minutes", "small": "10 minutes", "medium": "80 minutes"},
    function="holdfast.papers.label_annealing.reproduction:reproduce",
)
