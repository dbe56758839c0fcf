"""The paper of `holdfast reproduce sfa`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="sfa",
    title="Soup to Go: Mitigating Forgetting During Continual Learning with Model Averaging",
    short="Soup to Go",
    about="Soup to Go: sequential fine-tuning with averaging, against rehearsal, penalties and merges",
    recipes={
        "tasks": "tasks one after another",
        "three_tasks": "three tasks in a row (figures 4, 8 and 9)",
        "figure_1": "small networks on even and odd digits, five outputs for both (figure 1)",
        "class_incremental": "small networks with an output for every digit (class-incremental, "
        "ours)",
    },
    durations={
        "quick": "two minutes",
        "small": "20 minutes (40 minutes the first time, with its base)",
        "medium": "an estimated three hours (20 minutes more the first time, for its base)",
    },
    function="holdfast.papers.sfa.reproduction:reproduce",
    rules=2,
)
