"""Paper 000, as `holdfast reproduce` lists it."""

from holdfast.studies.engine.papers import Paper

PAPER = Paper(
    name="label-annealing",
    title="Memory Retaining Finetuning via Distillation (label annealing)",
    about="Memory Retaining Finetuning via Distillation: mathematics, code, alignment tax, niche knowledge",
    recipes={
        "math": "mathematics",
        "code": "code",
        "alignment_tax": "alignment tax",
        "niche_knowledge": "niche knowledge",
    },
    durations={"quick": "two minutes", "look": "10 minutes", "thorough": "80 minutes"},
    function="holdfast.studies.reproduce:reproduce",
)
