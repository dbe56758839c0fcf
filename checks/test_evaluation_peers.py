"""What is measured, beside other libraries: curvlinops, bitsandbytes, and the harness's own
client of a server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import test_evaluation_served
from completions_server import CompletionsServer
from evaluation import test_curvature
from evaluation.test_curvature import flat
from evaluation.test_probe_changes import weight
from holdfast.evaluation.probe.changes import NF4_BLOCK, quantized
from holdfast.evaluation.probe.curvature import Curvature
from tiny import build_model

small = test_curvature.small
desk, served = test_evaluation_served.desk, test_evaluation_served.served


def test_curvlinops_agrees(small) -> None:
    """The peer, where it is at hand (it brings torchvision, so that it is no requirement of the tests)."""
    curvlinops = pytest.importorskip("curvlinops")
    documents = small[1]
    # its products are forward over reverse, which torch has not for SiLU
    model = build_model(small[0].config.vocab_size, layers=1, width=4, hidden_act="tanh").eval()
    curvature = Curvature(model, documents)
    ids = [torch.tensor([d.ids]) for d in documents]
    targets = [torch.tensor([d.ids[1:]]) for d in documents]

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=x).logits[:, :-1].flatten(0, 1)

    wrapped = Logits()
    vector = curvature.signs(2)
    with sdpa_kernel(SDPBackend.MATH):
        operator = curvlinops.HessianLinearOperator(
            wrapped,
            torch.nn.CrossEntropyLoss(reduction="sum"),
            list(wrapped.parameters()),
            [(x, y.flatten()) for x, y in zip(ids, targets, strict=True)],
        )
        theirs = operator @ flat(vector).float() / curvature.tokens
    assert torch.allclose(flat(curvature.product(vector)[2]).float(), theirs, atol=1e-4 * float(theirs.abs().max()))


def test_nf4_is_that_of_bitsandbytes() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    w = weight(48, 256, seed=3)
    packed, state = functional.quantize_4bit(w, blocksize=NF4_BLOCK, quant_type="nf4")
    theirs = functional.dequantize_4bit(packed, state)
    assert torch.allclose(quantized(w, "nf4"), theirs, atol=1e-6)


def test_log_likelihoods_are_those_of_the_harness_own_client(desk: Path, served: CompletionsServer) -> None:
    """lm-evaluation-harness asks the same server by its `local-completions`."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from holdfast.evaluation.loading import ServerSettings
    from holdfast.evaluation.served import connect
    from holdfast.evaluation.text.shared_prefix import paths_of, scorer_for

    pairs = [("The quick brown", " fox"), ("The quick brown", " dog"), ("Seven ships sailed", " south; none")]
    theirs = LocalCompletionsAPI(
        base_url=f"{served.url}/completions", tokenizer_backend="huggingface", tokenizer=str(desk / "tuned"),
        model="tiny", max_length=128, add_bos_token=True,
    )  # fmt: skip
    asked = [Instance(request_type="loglikelihood", doc={}, arguments=pair, idx=i) for i, pair in enumerate(pairs)]
    expected = theirs.loglikelihood(asked)
    found = connect(served.url, ServerSettings())
    words = found.tokenizer
    requests = []
    for context, continuation in pairs:
        before, whole = words(context)["input_ids"], words(context + continuation)["input_ids"]
        requests.append((before, whole[len(before) :]))
    paths = paths_of(requests, length=128)
    mine = scorer_for(found.model, paths).answers(paths, name="x")
    assert [best for _, best in mine] == [best for _, best in expected]
    assert [value for value, _ in mine] == pytest.approx([value for value, _ in expected], abs=1e-6)
