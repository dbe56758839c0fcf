"""The paper of `holdfast reproduce sfa`."""

from holdfast.papers.claims.registry import Paper

PAPER = Paper(
    name="sfa",
    title="Soup to Go: Mitigating Forgetting During Continual Learning with Model Averaging",
    short="Soup to Go",
    about="Soup to Go: sequential fine-tuning with averaging, against rehearsal, penalties and merges",
    recipes={
        "tasks": "tasks one after another",
        "digits": "small networks on two halves of the digits (figure 1)",
    },
    durations={
        "quick": "two minutes",
        "small": "10 minutes and, the first time, 20 for its base",
        "medium": "half an hour by estimate and, the first time, 20 minutes for its base",
    },
    function="holdfast.papers.sfa.reproduction:reproduce",
)
