"""The model as lm-evaluation-harness asks it: the harness's own `HFLM`, with log-likelihoods from
`shared_prefix`.

Texts are tokenised as `HFLM` does it (border between context and option, BOS, empty contexts), but
each once and many at a time. Where a model cannot share prefixes, log-likelihoods are `HFLM`'s.
Generation is always `HFLM`'s, in groups of requests of similar length.

Every finished row and group is kept on disk (`partial`). Rows and groups follow from the requests
only, so that an evaluation that was interrupted computes the same batches, and the same last
digits, as one that was not.

Importing this module imports the harness and torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from lm_eval.api.model import TemplateLM
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from transformers import LogitsProcessorList

from holdfast.evaluation.measures import Report, no_report
from holdfast.evaluation.remarks import remarks_on_cut
from holdfast.evaluation.resume import Partial
from holdfast.evaluation.served import in_groups
from holdfast.evaluation.text.replies import unmark_broken
from holdfast.evaluation.text.shared_prefix import paths_of, scorer_for
from holdfast.evaluation.text.thoughts import open_thought, reply_text, without_thought
from holdfast.generation import BROKEN, Watch, generate_padded

_GROUP = 4
"""Batches a group of generation: what an interruption costs."""


class SharedPrefixLM(HFLM):
    """`HFLM` over a model in memory.

    Args:
        model: a Hugging Face causal LM.
        tokenizer: its tokenizer.
        batch_size: texts a forward pass, for generation and for models that cannot share prefixes.
        length: the most tokens of a text.
        seed: of sampled generation.
        progress: called with (requests done, requests in all).
        partial: where results are kept as they come.
        chat: whether prompts are conversations, of whose replies thoughts are cut off.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        batch_size: int,
        length: int,
        seed: int = 0,
        progress: Report = no_report,
        partial: Partial | None = None,
        chat: bool = False,
    ) -> None:
        self._chat, self._opened = chat, open_thought(tokenizer) if chat else None
        self._take(model, tokenizer, batch_size=batch_size, length=length)
        self.progress = progress
        self.partial = partial or Partial(None)
        self.seed = seed
        self._calls = 0
        self._watch = Watch()
        self._cut: dict[str, int] = {}
        self.shared = False
        """Whether the last log-likelihoods were computed with shared prefixes."""
        self.shortened: int | None = None
        """Tokens that answers were allowed of those that the task asked for, where these do not fit
        into the context."""
        self.broken = ""
        """What of all that was asked is NaN or infinite; empty where nothing is. Tasks need not
        show it: an accuracy of NaN log-likelihoods is a number."""

    def _take(self, model: Any, tokenizer: Any, *, batch_size: int, length: int) -> None:
        super().__init__(
            pretrained=model,
            tokenizer=tokenizer,
            backend="causal",
            batch_size=batch_size,
            max_length=length,
        )

    @property
    def notes(self) -> list[str]:
        """What is to be said of the prompts that were asked: how many did not fit, and where
        answers had to end."""
        cut = [room for room in self._cut.values() if room]
        notes = remarks_on_cut(len(cut), len(self._cut), max(cut, default=0))
        if self.shortened is not None:
            notes.append(
                f"The model's context has {self.max_length} tokens, so answers were cut after "
                f"{self.shortened} tokens, although the task allows longer ones."
            )
        return notes

    def _fit(self, prompt: str, tokens: int, room: int) -> None:
        """Notes whether a prompt has more tokens than there is room for."""
        self._cut[prompt] = max(room if tokens > room else 0, self._cut.get(prompt, 0))

    def _name(self, what: str) -> str:
        """What values of this call are kept as: the harness asks for rolling log-likelihoods by
        many calls."""
        self._calls += 1
        return what if self._calls == 1 else f"{what} of call {self._calls}"

    def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """As `HFLM.loglikelihood`, every distinct text tokenised once."""
        return self._loglikelihood_tokens(
            self.encode_pairs([request.args for request in requests]), disable_tqdm=disable_tqdm
        )

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]]
    ) -> list[tuple[tuple[str, str], list[int], list[int]]]:
        """(pair, context ids, continuation ids) of (context, continuation) texts, as
        `TemplateLM.loglikelihood` would have them."""
        moved = []
        for context, continuation in pairs:
            # spaces at the border belong to the continuation, whose token they are part of
            text = context.rstrip()
            moved.append((text, context[len(text) :] + continuation))
        texts: dict[str, None] = {}
        for pair, (context, continuation) in zip(pairs, moved, strict=True):
            if pair[0]:
                texts |= {context: None, context + continuation: None}
        known = self._encode_all(texts)
        encoded = []
        for pair, (context, continuation) in zip(pairs, moved, strict=True):
            if pair[0]:
                before = known[context]
                encoded.append((pair, before, known[context + continuation][len(before) :]))
                continue
            ids = self.tok_encode(pair[1], add_special_tokens=False)
            if ids and ids[0] == self.prefix_token_id:
                encoded.append((pair, ids[:1], ids[1:]))
            else:
                encoded.append((pair, [self.prefix_token_id], ids))
        return encoded

    def _encode_all(self, texts: Iterable[str]) -> dict[str, list[int]]:
        """`tok_encode` of every text; in one call of the tokenizer, unless some begin with the BOS
        token already."""
        ordered = list(texts)
        bos = self.tokenizer.decode(self.prefix_token_id)
        if not ordered:
            return {}
        if not getattr(self.tokenizer, "is_fast", False) or (
            bos and any(text.startswith(bos) for text in ordered)
        ):
            return {text: self.tok_encode(text) for text in ordered}
        special = {} if self.add_bos_token is None else {"add_special_tokens": self.add_bos_token}
        return dict(
            zip(
                ordered, self.tokenizer(ordered, verbose=False, **special)["input_ids"], strict=True
            )
        )

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        for texts, context, continuation in requests:
            if texts is not None:  # a window of a rolling log-likelihood always fits
                self._fit(texts[0], len(context) + len(continuation) - 1, self.max_length)
        paths = paths_of(
            [(context, continuation) for _, context, continuation in requests],
            length=self.max_length,
        )
        scorer = scorer_for(self.model, paths)
        self.shared = scorer is not None and scorer.shares
        if scorer is None or not scorer.shares:
            answers = self._one_by_one(requests)
        else:
            name = self._name("loglikelihood")
            answers = scorer.answers(paths, name=name, partial=self.partial, report=self.progress)
        broken = sum(not math.isfinite(nats) for nats, _ in answers)
        if broken:
            self.broken = f"{broken} of {len(answers)} log-likelihoods are NaN or infinite."
        return [(float(nats), bool(best)) for nats, best in answers]

    def _one_by_one(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]]
    ) -> list[Any]:
        """As `HFLM._loglikelihood_tokens`, a few of its batches at a time."""

        def longest_first(i: int) -> tuple[Any, ...]:
            _, context, continuation = requests[i]
            return -len(context) - len(continuation), (context, continuation), i

        order = sorted(range(len(requests)), key=longest_first)
        size = _GROUP * int(self.batch_size)
        groups = list(in_groups(order, size))

        def of_group(group: list[int]) -> list[Any]:
            return super(SharedPrefixLM, self)._loglikelihood_tokens(
                [requests[i] for i in group], disable_tqdm=True
            )

        return self.partial.resumed(
            self._name("loglikelihood"),
            zip(groups, groups, strict=True),
            of_group,
            total=len(order),
            report=self.progress,
        )

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """As `HFLM.generate_until`, a few batches at a time. Answers that may be as long as the
        model's context, where `HFLM` gives up, end after half of it, so that the other half is left
        for the question; `shortened` says so."""
        requests = [self._that_fit(request) for request in requests]
        encoded = self._encode_all({request.args[0] for request in requests})
        for request in requests:
            longest = normalize_gen_kwargs(request.args[1], self.max_gen_toks)["max_gen_toks"]
            self._fit(request.args[0], len(encoded[request.args[0]]), self.max_length - longest)
        # long contexts first, so that the first batch is the largest and the remaining time is
        # never too low
        order = sorted(
            range(len(requests)), key=lambda index: (-len(requests[index].args[0]), index)
        )
        size = self._group()

        def texts_of(start: int) -> list[Any]:
            # a group's samples are its own, whatever was computed before it
            torch.manual_seed(self.seed * 1_000_003 + start)
            group = [requests[index] for index in order[start : start + size]]
            self._watch = Watch()
            texts = self._written(group, seed=self.seed * 1_000_003 + start)
            return [{"broken": text} for text in texts] if self._watch.broken else texts

        groups = ((order[start : start + size], start) for start in range(0, len(order), size))
        answers = self.partial.resumed(
            self._name("generate"), groups, texts_of, total=len(order), report=self.progress
        )
        texts, broken = unmark_broken(answers)
        if broken:
            self.broken = BROKEN
        return texts

    def _group(self) -> int:
        """Requests that are generated before what came is kept."""
        return _GROUP * int(self.batch_size)

    def _written(self, group: list[Any], *, seed: int) -> list[str]:
        """Texts of a group of requests; torch is seeded."""
        return list(super().generate_until(group, disable_tqdm=True))

    def _model_generate(
        self,
        context: torch.Tensor,
        max_length: int,
        stop: list[str],
        attention_mask: torch.Tensor,
        **how: Any,
    ) -> torch.Tensor:
        how["logits_processor"] = LogitsProcessorList([self._watch])
        write = super()._model_generate

        def generate(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            most = max_length - (context.shape[1] - input_ids.shape[1])
            return write(
                context=input_ids, max_length=most, stop=stop, attention_mask=attention_mask, **how
            )

        padding = self.tokenizer.pad_token_id
        return generate_padded(self.model, generate, context, attention_mask, padding=padding)

    def tok_decode(self, tokens: Any, skip_special_tokens: bool = True) -> str:
        """As the harness has it; of a reply in a conversation without its thought."""
        if self._chat and skip_special_tokens and not isinstance(tokens, int):
            return reply_text(self.tokenizer, torch.as_tensor(tokens).tolist(), self._opened)
        return str(super().tok_decode(tokens, skip_special_tokens=skip_special_tokens))

    def _that_fit(self, request: Any) -> Any:
        context, how = request.args
        if normalize_gen_kwargs(how, self.max_gen_toks)["max_gen_toks"] < self.max_length:
            return request
        self.shortened = max(1, self.max_length // 2)
        how = dict(how)
        for name in ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"):
            how.pop(name, None)
        how["max_gen_toks"] = self.shortened
        return SimpleNamespace(args=(context, how))


class ServedLM(SharedPrefixLM):
    """A served model in place of one in memory; arguments as of `SharedPrefixLM`."""

    def _take(self, model: Any, tokenizer: Any, *, batch_size: int, length: int) -> None:
        # what of HFLM is used here: tokenising, templates, windows of rolling log-likelihoods
        TemplateLM.__init__(self)
        self._model, self.tokenizer, self.backend = model, tokenizer, "causal"
        self._device, self._max_length, self.batch_size_per_gpu = (
            model.device,
            length,
            model.at_once,
        )
        self.add_bos_token, self.custom_prefix_token_id = None, None
        self.chat_template_args: dict[str, Any] = {}
        self.vocab_size, self.revision, self.pretrained = len(tokenizer), "main", model.name

    @property
    def model(self) -> Any:
        """The served model."""
        return self._model

    def _group(self) -> int:
        return int(self.model.at_once)

    def _written(self, group: list[Any], *, seed: int) -> list[str]:
        prompts, how, stops_of = [], [], []
        for number, request in enumerate(group):
            settings = normalize_gen_kwargs(dict(request.args[1]), self.max_gen_toks)
            stops = handle_stop_sequences(settings.get("until"), eos=None)
            parameters = {"max_tokens": settings["max_gen_toks"]}
            if stops:
                parameters["stop"] = stops[:4]
            if settings.get("do_sample"):
                parameters |= {
                    "temperature": settings.get("temperature", 1.0),
                    "seed": (seed + number) % 2**31,
                }
                if "top_p" in settings:
                    parameters["top_p"] = settings["top_p"]
            room = self.max_length - parameters["max_tokens"]
            prompts.append(self.tok_encode(request.args[0], left_truncate_len=room))
            how.append(parameters)
            stops_of.append(stops)
        texts = []
        for text, stops in zip(self.model.completions(prompts, how), stops_of, strict=True):
            texts.append(
                _before(without_thought(text, self._opened) if self._chat else text, stops)
            )
        return texts


def _before(text: str, stops: Sequence[str]) -> str:
    """A text up to the first of the stops, of which a server takes four at most."""
    beginnings = [text.partition(stop)[0] for stop in stops if stop]
    return min(beginnings, key=len, default=text)
