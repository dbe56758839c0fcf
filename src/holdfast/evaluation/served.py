"""A model that an OpenAI-compatible server answers for (vLLM, SGLang, llama-cpp-python, ...), in
place of weights in memory: `http://localhost:8000/v1`, or `http://localhost:8000/v1#NAME` where it
serves several.

Asked for is what `/completions` gives: continuations of token ids, and the log-probabilities of a
prompt's own tokens (`echo` with `logprobs`), so that texts are tokenised, cut and scored here as
those of any other model. Entries that need the probabilities of all tokens (answers at the answer
position, memorisation) are refused.

Which weights a server has cannot be seen. A model is known by the log-probabilities of a text
(`PROBE`): what was measured is found again while they are the same to four digits, and measured
again where anything has changed.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from holdfast.errors import ConfigError, ModelError, NotFinite, Problem
from holdfast.evaluation.loading import ServerSettings
from holdfast.evaluation.measures import Report, no_report
from holdfast.evaluation.resume import Partial
from holdfast.models import Loaded, load_tokenizer
from holdfast.support.completions import SCORED, Request, ask, choice, completed, prompt_scores
from holdfast.support.endpoint import (
    PROBE,
    Endpoint,
    OptionNames,
    chosen_model,
    find_key,
    missing_package,
)
from holdfast.support.files import fingerprint

if TYPE_CHECKING:
    from holdfast.evaluation.entries import EvaluationPlan
    from holdfast.evaluation.text.shared_prefix import Path

_TURNS = 4
"""Requests that a worker is given before what came is kept: what an interruption costs."""
_OPTIONS = OptionNames(model="MODEL (behind '#')", base_url="the address", key="--api_key_env")


def is_address(name: str) -> bool:
    """Whether a model's name is a server's address."""
    return name.startswith(("http://", "https://"))


class ServedModel:
    """A served model, where others are modules.

    Args:
        endpoint: where it is.
        name: what it is called there.
        context: tokens that it reads at once, prompt and reply together.
    """

    dtype = None
    training = False

    def __init__(self, endpoint: Endpoint, name: str, *, context: int) -> None:
        self.endpoint, self.name = endpoint, name
        self.scores_prompts = True
        """Whether it gives log-probabilities of prompts."""
        self.config = SimpleNamespace(max_position_embeddings=context)

    @property
    def device(self) -> Any:
        """This machine's CPU, which computes nothing here."""
        import torch

        return torch.device("cpu")

    def eval(self) -> ServedModel:
        """As of modules; nothing to change."""
        return self

    def modules(self) -> Iterable[Any]:
        """As of modules; none."""
        return ()

    @property
    def at_once(self) -> int:
        """Requests a batch."""
        return _TURNS * self.endpoint.workers

    def scores(self, texts: Sequence[Sequence[int]]) -> list[list[tuple[float, bool]]]:
        """Of every text and each of its tokens but the first: log-probability in nats, and whether
        the token was the most likely one.

        Args:
            texts: token ids, at least two each.

        Raises:
            ModelError: the server does not give them.
            HoldfastError: it does not answer, or fails for good.
        """
        return self._ask([(ids, SCORED, functools.partial(_scored, ids=ids)) for ids in texts])

    def count(self, text: str) -> int:
        """The tokens of a text, as the server has them.

        Raises:
            see `scores`.
        """
        [count] = self._ask([(text, SCORED, _counted)])
        return int(count)

    def completions(
        self,
        prompts: Sequence[Sequence[int]],
        how: Sequence[Mapping[str, Any]],
        read: Callable[[Any], Any] = completed,
    ) -> list[Any]:
        """Continuations, as texts or as `read` reads them.

        Args:
            prompts: token ids, none empty.
            how: of every prompt `max_tokens` and whatever else `/completions` takes (`stop`,
                `temperature`, `seed`).
            read: of an answer's body.

        Raises:
            HoldfastError: see `scores`.
        """
        requests: list[Request] = []
        for ids, parameters in zip(prompts, how, strict=True):
            requests.append((ids, {"temperature": 0.0, **parameters}, read))
        return self._ask(requests)

    def _ask(self, requests: Sequence[Request]) -> list[Any]:
        return ask(self.endpoint, self.name, requests, options=_OPTIONS)


def _scored(body: Any, *, ids: Sequence[int]) -> list[tuple[float, bool]]:
    logprobs = prompt_scores(body, len(ids))
    if logprobs is None:
        raise _NotGiven(
            f"expected one log-probability for each of the {len(ids)} prompt tokens, got none or "
            "another number of them"
        )
    scores = []
    for value, top in itertools.zip_longest(*logprobs):
        if not isinstance(value, (int, float)) or not isinstance(top, Mapping) or not top:
            raise _NotGiven(
                "expected for every prompt token its log-probability and those of the most likely "
                f"tokens in its place, got {value!r} with {top!r:.80}"
            )
        scores.append((float(value), value >= max(top.values())))
    return scores


def _counted(body: Any) -> int:
    logprobs = choice(body).get("logprobs")
    of_tokens = logprobs.get("token_logprobs") if isinstance(logprobs, Mapping) else None
    if not isinstance(of_tokens, list):
        raise _NotGiven("expected the log-probabilities of a prompt's tokens, got none")
    return len(of_tokens) - 1  # with the one that had to be asked for


class _NotGiven(ModelError):
    """A server that does not give log-probabilities of a prompt's own tokens."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"{text}. Benchmarks that score options or text need a server whose /completions "
            "accepts `echo` with `logprobs` (vLLM, SGLang, llama-cpp-python). Benchmarks with "
            "generated answers do not."
        )


# --------------------------------------------------------------------------------------- connecting


def connect(name: str, server: ServerSettings) -> Loaded:
    """Finds a served model and what it is known by.

    Args:
        name: the address, with `#NAME` where there are several models.
        server: how it is asked.

    Raises:
        ConfigError: no address, a key that is not there, no such model, a package that is not
            installed.
        ModelError: no tokenizer, or one that is not the server's; no context length.
        HoldfastError: nobody answers.
    """
    url, _, model_name = name.partition("#")
    variable, key, problem = find_key(url, server.api_key_env)
    endpoint = Endpoint(
        base_url=url,
        api_key=key,
        key_variable=variable,
        workers=server.workers,
        timeout=600.0,
        longest_body=2**26,
    )
    problems = [*missing_package("a served model"), *endpoint.problems()]
    if problem:
        problems.append(problem)
    if "@" in url or "?" in url:
        problems.append("an address without user, password or query is expected")
    if problems:
        raise ConfigError(problems)
    served, card = chosen_model(endpoint, model_name, _OPTIONS)
    tokenizer = _tokenizer(served, card, server)
    context = (
        server.context_length or card.get("max_model_len") or (card.get("meta") or {}).get("n_ctx")
    )
    if not isinstance(context, int) or context < 2:
        raise ModelError(
            f"{endpoint.shown} does not report the context length of '{served}'. Give it: "
            "--context_length N."
        )
    model = ServedModel(endpoint, served, context=context)
    about = _recognised(model, tokenizer)
    identity = {
        "name": f"{endpoint.shown}#{served}",
        "hash": fingerprint(["served", served, context, about]),
        "weights": None,  # cannot be seen
        "architecture": "served",
        "origin": f"as served by {urlsplit(url).netloc}",
    }
    return Loaded(model=model, tokenizer=tokenizer, identity=identity)


def _tokenizer(served: str, card: Mapping[str, Any], server: ServerSettings) -> Any:
    if server.tokenizer:
        return load_tokenizer(server.tokenizer)
    for folder in (card.get("root"), served):
        if folder and os.path.isdir(str(folder)):
            return load_tokenizer(str(folder))
    raise ModelError(
        f"Expected the tokenizer of '{served}', but the server does not report its folder. Give "
        "it: --tokenizer FOLDER (or a hub id)."
    )


def _recognised(model: ServedModel, tokenizer: Any) -> list[Any]:
    """What a served model is known by. Without log-probabilities of prompts, which the model is
    told that it does not have, nothing: what is measured is not found again.

    Raises:
        ModelError: the tokenizer is not the server's. NotFinite: the log-probabilities are none.
    """
    text = PROBE
    while len(ids := tokenizer(text)["input_ids"]) >= model.config.max_position_embeddings:
        text = text[: len(text) // 2]
    [reply] = model.completions([ids], [{"max_tokens": 1, "echo": True}])
    problem = f"The tokenizer is not that of '{model.name}':"
    advice = "Give the right tokenizer: --tokenizer MODEL."
    if "".join(text.split()) not in "".join(reply.split()):
        raise ModelError(
            f"{problem} the server reads {reply[:60]!r} instead of {text[:60]!r}. {advice}"
        )
    try:
        if (count := model.count(text)) != len(ids):
            raise ModelError(
                f"{problem} for the same text, the server counts {count} tokens and the tokenizer "
                f"{len(ids)}. {advice}"
            )
        [scores] = model.scores([ids])
    except _NotGiven:
        from holdfast.support.environment import now

        model.scores_prompts = False
        return [now()]
    values = [round(value, 4) for value, _ in scores]
    if not all(map(math.isfinite, values)):
        raise NotFinite(
            f"'{model.name}' gives log-probabilities that are not finite. Check its weights and "
            "dtype."
        )
    return values


def refused_entries(
    plan: EvaluationPlan, name: str, tokenizer: Any, *, scores_prompts: bool = True
) -> list[Problem]:
    """The entries that a served model cannot be measured on, a sentence each.

    Args:
        plan: what is to be measured.
        name: of the model.
        tokenizer: its tokenizer.
        scores_prompts: whether its server gives log-probabilities of prompts.
    """
    problems = []
    for entry in plan.entries:
        if not entry.served:
            problems.append(
                Problem(
                    entry.path,
                    f"{entry.kind} needs the model in memory, but '{name}' runs behind a server. "
                    "Give the model's folder, or leave the entry out.",
                )
            )
        elif not scores_prompts and entry.needs_scores(tokenizer):
            problems.append(
                Problem(
                    entry.path,
                    f"needs log-probabilities of prompts, which the server of '{name}' does not "
                    "give. Use a server whose /completions accepts `echo` with `logprobs` (vLLM, "
                    "SGLang, llama-cpp-python).",
                )
            )
    return problems


# ------------------------------------------------------------------------------------------ scoring


@dataclass(frozen=True, kw_only=True)
class ServedScorer:
    """Log-likelihoods of continuations, as `shared_prefix.Scorer` gives them. Shared beginnings are
    the server's to find: texts that begin alike are asked one after another."""

    model: ServedModel
    shares = True

    def answers(
        self,
        paths: Sequence[Path],
        *,
        name: str,
        find: Any = None,
        partial: Partial | None = None,
        report: Report = no_report,
    ) -> list[Any]:
        """See `Scorer.answers`; `find` is None.

        Raises:
            ModelError: the server gives no log-probabilities.
        """
        assert find is None, (
            "a server does not give the probabilities of all tokens: entries that need them must "
            "be refused before this call"
        )
        order = sorted(paths, key=lambda path: path.ids)
        batches = (
            ([path.index for path in batch], batch)
            for batch in in_groups(order, self.model.at_once)
        )
        return (partial or Partial(None)).resumed(
            name, batches, self._scores, total=len(paths), report=report
        )

    def _scores(self, batch: Sequence[Path]) -> list[tuple[float, bool]]:
        texts = [[*path.ids, path.targets[-1]] for path in batch]
        answers = []
        for path, scores in zip(batch, self.model.scores(texts), strict=True):
            values, are_best = zip(*scores[-len(path.targets) :], strict=True)
            answers.append((sum(values), all(are_best)))
        return answers


def in_groups(items: Iterable[Any], size: int) -> Iterable[list[Any]]:
    """Items in order, so many at a time."""
    waiting = iter(items)
    while group := list(itertools.islice(waiting, size)):
        yield group
