"""Retention methods inside any `transformers.Trainer`: a mixin over its hooks.

```python
class MyTrainer(RetentionMixin, Trainer): ...
retain = [LabelAnnealing(weight=1.0), SequentialAveraging(p=0.25)]
trainer = MyTrainer(model=model, args=args, train_dataset=rows, retain=retain)
```

What acts when (one optimiser step, G micro-batches):

0. once, before the first step: a cached teacher's states are found, checked, and computed where they are missing
(`prepare_teacher`); then
   `prepare` of each method, with the trainer as its `Services`;
1. every micro-batch: teacher's hidden states, then backbone, head and loss inside the wrapped module's forward (so that
DDP and FSDP hooks fire);
   cross-entropy and KL are sums over tokens divided by the token count of the WHOLE step, over
   accumulation and ranks;
2. after the last micro-batch's backward, with gradients reduced and before clipping: `gradient` of each method;
3. clipping, the optimiser, the schedule;
4. `weights` of each method, before anything logs, evaluates or saves.

Under DeepSpeed, whose backward already steps the engine, step 2 happens inside the engine's step
(`training.zero`).

A loss or gradient that is not finite stops training before it reaches the weights
(`training.diverged`). A checkpoint is whole or passed over (`training.whole_checkpoints`).
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from holdfast.data.mixing import ORIGIN
from holdfast.errors import ConfigError, TrainingDiverged
from holdfast.ops.annealing import IGNORE, AnnealedLoss, NonFiniteLogits
from holdfast.ops.four_bits import keep_unpacked
from holdfast.ops.heads import causal_lm
from holdfast.retention.anchor import Anchors
from holdfast.retention.protocol import (
    LOSS_TERM,
    OPTIMIZER_STATE,
    STEP_FIGURES,
    TOKEN_WEIGHTS,
    ActiveMethod,
    RetentionMethod,
    StepInfo,
    TeacherSettings,
    TokenLoss,
    check_declared,
    in_turn,
    marks_origins,
)
from holdfast.retention.services import LossBatch, StepFigures, rates_by_name, trainable_parameters
from holdfast.retention.teacher.teacher import OnlineTeacher, Teacher, freeze_copy
from holdfast.support.secrets import withheld
from holdfast.training import frozen
from holdfast.training.adapters import complete_osf
from holdfast.training.diverged import describe_samples, diverged
from holdfast.training.forward import LossRequest, Sealed, install_forward, successor_mask
from holdfast.training.fused_layers import use_fused_layers
from holdfast.training.image_batches import ROW, reading_images
from holdfast.training.learning_rates import factors_of, scale_rates
from holdfast.training.method_checks import (
    check_first_batch,
    length_problems,
    refuse_combinations,
    refuse_misfits,
    refuse_unsupported,
    token_losses,
    total_steps,
)
from holdfast.training.method_services import TrainerServices
from holdfast.training.method_state import load_states, save_states, whole_states
from holdfast.training.optimizer_state import state_by_name
from holdfast.training.origins import weights_by_origin
from holdfast.training.teacher_cache import TeacherCache
from holdfast.training.teachers import make_teacher, shard_teacher, wants_copy
from holdfast.training.token_sums import TokenSums, TokenTotals
from holdfast.training.unsloth import refuse_unsloth
from holdfast.training.weighed_tokens import WeighedTokens
from holdfast.training.whole_checkpoints import WholeCheckpoints, take_stored_names
from holdfast.training.zero import ZeroParts, engine_dtype

logger = logging.getLogger(__name__)


class RetentionMixin(WholeCheckpoints):
    """Adds retention methods to a `transformers.Trainer` subclass. Put it first among the bases.

    Args:
        retain: the retention methods. Those that are off (coefficient 0) are left out, which is
            direct fine-tuning bit for bit.
        learning_rate_multipliers: factors of the learning rate by pattern, see
            `training.learning_rates`.
        train_only: patterns of the parameters to train, see `training.frozen`. Without patterns,
            the whole model (or its adapter) is trained.
        fused_layers: whether to compute small layers in one pass each on CPUs, see
            `training.fused_layers`.
        *args, **kwargs: the arguments of the trainer.

    Raises:
        ConfigError: the methods do not fit together, or do not fit the model or the kind of
            training.
        ModelError: the model's head is not supported, its 4-bit layers were repacked (see
            `keep_unpacked`), or Unsloth loaded it (see `training.unsloth`).
    """

    loss_is_scaled_for_ga = True
    prepares_data = False
    """Whether the trainer applies the methods' `training_data` to its training data."""
    own_loss = False
    """Whether the trainer has its own loss, to which the methods add theirs
    (`training.preferences`)."""
    loss_types: tuple[str, ...] = ("nll", "chunked_nll")
    """The values of TRL's setting `loss_type` that the trainer accepts. A trainer with its own loss
    accepts all."""
    tokens_seen: int = 0
    """Number of trained tokens, prompts included, over all ranks and sessions, up to the last
    log."""
    _prepared: bool = False
    _kl_items: Tensor | None = None
    _named: dict[str, Tensor] | None = None
    _last_batch: dict[str, Any] | None = None
    _zero: ZeroParts | None = None

    def __init__(
        self,
        *args: Any,
        retain: Sequence[RetentionMethod] = (),
        learning_rate_multipliers: Mapping[str, float] | None = None,
        train_only: Sequence[str] = (),
        fused_layers: bool = False,
        **kwargs: Any,
    ) -> None:
        self.learning_rate_multipliers = dict(learning_rate_multipliers or {})
        self.retain: tuple[RetentionMethod, ...] = tuple(m for m in retain if not m.off)
        refuse_combinations(self.retain, type(self))
        terms = token_losses(self.retain)
        self._token_loss: TokenLoss | None = terms[0] if terms else None
        self._ce_by_origin: dict[str, float] = {}
        for method in self.retain:
            self._ce_by_origin |= method.ce_by_origin()
        self.marks_origins = marks_origins(self.retain)
        """Whether the loss weighs new, replayed and generated tokens differently, so that rows say
        which they are."""
        self.sums = TokenSums(
            self._sum_over_ranks, by_step=any(STEP_FIGURES in m.needs for m in self.retain)
        )
        """What is logged over tokens."""
        self._heads_checked: set[bool] = set()
        self._rates: dict[str, float] = {}
        self._published: list[int] = []

        model = kwargs.get("model", args[0] if args else None)
        copied = None
        if self._token_loss is not None and wants_copy(
            self._token_loss.teacher, model, kwargs.get("peft_config")
        ):
            # Before the trainer wraps or changes anything: the teacher is the bare start model.
            # A model that DeepSpeed casts meets a teacher of the same dtype, or the student would
            # not begin at KL 0.
            cast = engine_dtype(kwargs.get("args", args[1] if len(args) > 1 else None))
            copied = self._frozen_copy(model, self._token_loss.teacher, cast)
        refuse_unsloth(type(self), model)
        if train_only:
            if not isinstance(model, nn.Module) or kwargs.get("peft_config") is not None:
                raise ConfigError(
                    "train_only: expected a model without an adapter, because an adapter decides "
                    "which weights are trained."
                )
            frozen.train_only(model, train_only)
        super().__init__(*args, **kwargs)
        # every checkpoint and every push pickles them
        self.args.__dict__.update(withheld(self.args.__dict__))
        self._complete_data()
        keep_unpacked(self.model)
        if not self.own_loss:
            # Makes Trainer count the step's trained tokens for compute_loss, with labels shifted as
            # the loss shifts them.
            self.model_accepts_loss_kwargs = True
            self._loss_shifts_labels = True
        refuse_unsupported(self)
        if self.is_deepspeed_enabled and self.zero_stage() < 3:
            # the engine would later; teachers and methods look at the start model before
            self.model.to(self.args.device)
        self.fused_layers = 0
        """Layers that are computed in one pass each."""
        if fused_layers:
            self.fused_layers = use_fused_layers(self.model)
            if copied is not None:
                use_fused_layers(copied)  # or the student would not begin at KL 0
        install_forward(causal_lm(self.model))
        take_stored_names(causal_lm(self.model))
        self._teacher: Teacher | None = None
        self._cache: TeacherCache | None = None
        self.teacher_info: dict[str, Any] = {}
        """What a run records of its teacher: its name, and what a cached one was made of."""
        self.loss_backend: str | None = None
        """One line on how the loss is computed; known from the first training step on, whose hidden
        states decide it."""
        self.on_loss_backend: Callable[[str], None] = lambda line: logger.info("Loss: %s", line)
        """Gets `loss_backend` once, on the first process."""
        if self._token_loss is not None:
            self._make_teacher(copied, self._token_loss.teacher)
        self.active: list[ActiveMethod] = []
        self._weighed: WeighedTokens | None = None
        self._losses: list[Callable[[LossBatch], Tensor | None]] = []
        self._project_osf: Callable[[], None] | None = None
        self._start_methods()
        self.callback_handler.callbacks.insert(0, _AfterStep(self))

    def _start_methods(self) -> None:
        """Looks at what the methods were given, and begins them on the parameters as they are.

        Raises:
            ConfigError, ModelError: files of other models, periods longer than the run, a hook that
                is not declared.
        """
        trained = trainable_parameters(self.model)
        adapters = [config.to_dict() for config in getattr(self.model, "peft_config", {}).values()]
        anchors = Anchors(trained, adapters[0] if len(adapters) == 1 else None)
        factors_of(trained, self.learning_rate_multipliers)
        refuse_misfits(self, trained)
        self._project_osf = complete_osf(
            self.model, sharded=self.is_fsdp_enabled or self.is_deepspeed_enabled
        )
        self.active = [m.start(anchors) for m in self.retain]
        for method, active in zip(self.retain, self.active, strict=True):
            check_declared(method, active)
            if method.needs & {TOKEN_WEIGHTS, LOSS_TERM}:
                self._losses.append(active.loss)
            if TOKEN_WEIGHTS in method.needs:
                self._weighed = WeighedTokens(active, method.label())

    def _sum_over_ranks(self, row: Tensor) -> Tensor:
        summed: Tensor = self.accelerator.reduce(row, "sum")
        return summed

    def _complete_data(self) -> None:
        """Called once the trainer has its data, before methods look at it."""

    # ---------------------------------------------------------------------------------- the teacher

    def _frozen_copy(
        self, model: nn.Module, asked: TeacherSettings, cast: torch.dtype | None
    ) -> nn.Module:
        """What an online teacher computes with.

        Args:
            model: the start model, before the trainer has it.
            asked: of the teacher.
            cast: dtype that the training engine casts the model to; None: it does not.
        """
        return freeze_copy(
            model, dtype=getattr(torch, asked.dtype) if asked.dtype else cast, weights=asked.model
        )

    def _make_teacher(self, copied: nn.Module | None, settings: TeacherSettings) -> None:
        if settings.kind == "cached":
            self._cache = TeacherCache(self, settings)  # the teacher comes with `prepare_teacher`
        else:
            self._teacher, self.teacher_info = make_teacher(
                self.model, copied, settings, self.args.device
            )

    def prepare_teacher(self, say: Callable[[str], None] = logger.info) -> None:
        """Prepares the states of a cached teacher: it finds and checks them, and computes the
        missing ones. It does nothing for other teachers, or on a second call.

        `train` and `evaluate` call it. Call it yourself if they should not spend time on it. The
        model must still be the initial model.

        Args:
            say: called with a few lines about the progress, on the first process.

        Raises:
            HoldfastError: see `TeacherCache.prepare`.
        """
        if (
            self._token_loss is not None
            and self._token_loss.teacher.sharded
            and not self.teacher_info.get("sharded")
        ):
            assert isinstance(self._teacher, OnlineTeacher)
            shard_teacher(self._teacher, self.accelerator, self.args)
            self.teacher_info["sharded"] = True
        if self._cache is None or self._teacher is not None:
            return
        evaluated = self.eval_dataset
        more = list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]
        self._teacher = self._cache.prepare([self.train_dataset, *more], at_start=True, say=say)
        self.teacher_info = self._cache.info

    def prepare_methods(self, say: Callable[[str], None] = logger.info) -> None:
        """Prepares the methods that read the initial model or other data. `train` calls it; a
        second call does nothing.

        Args:
            say: called with a line about the progress, on the first process.

        Raises:
            HoldfastError: see the methods.
        """
        if self._prepared:
            return
        self._prepared = True
        services = TrainerServices(self, say)
        for method in self.active:
            method.prepare(services)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Trains as `Trainer.train` does, but refuses to resume from an incomplete checkpoint.
        `resume_from_checkpoint=True` means the newest complete one.

        Raises:
            RunFolderError: there is no complete checkpoint to resume from.
        """
        self._resumed = self._checkpoint_to_resume(resume_from_checkpoint)
        self.prepare_teacher()  # before a checkpoint is loaded: the teacher is the start model
        self.prepare_methods()
        self._begun = True
        result = super().train(self._resumed, *args, **kwargs)
        self._refuse_broken_weights()  # after the last step nothing has been computed with them yet
        return result

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        self._prepare_more(eval_dataset)
        return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        self._prepare_more(test_dataset)
        return super().get_test_dataloader(test_dataset)

    def _prepare_more(self, dataset: Any) -> None:
        """Data given to `evaluate` or `predict` that the cached teacher has not seen."""
        self.prepare_teacher()
        known = (
            list(self.eval_dataset.values())
            if isinstance(self.eval_dataset, dict)
            else [self.eval_dataset]
        )
        if (
            self._cache is not None
            and dataset is not None
            and not isinstance(dataset, str)
            and not any(dataset is d for d in known)
        ):
            self._cache.prepare(
                [dataset], at_start=not getattr(self, "_begun", False), say=logger.info
            )
            self.teacher_info = self._cache.info

    # ------------------------------------------------------------------------------------- the loss

    @property
    def mode(self) -> str:
        """The mode of the model: "train" or "eval"."""
        return "train" if self.model.training else "eval"

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns cross-entropy (+ weight * KL). Each part is divided by its own global token count
        of the step."""
        inputs = dict(inputs)
        labels = inputs.pop("labels")
        inputs.pop("num_items_in_batch", None)
        origin = inputs.get(ORIGIN)
        batch = dict(inputs)
        inputs.pop(ROW, None)
        try:
            with reading_images(batch):
                request = self._request(inputs, labels, num_items_in_batch)
                outputs = model(**inputs, use_cache=False, holdfast=Sealed(request))
        except NonFiniteLogits as error:
            raise self._diverged(
                f"the model's logits are not finite ({error})", inputs, error.rows
            ) from error
        result: AnnealedLoss = outputs["result"].value
        loss = result.loss
        mask = inputs.get("attention_mask")
        tokens = labels.new_tensor(labels.numel()) if mask is None else mask.sum()
        self.sums.add(self.mode, result, tokens)
        if self._weighed is not None and self.model.training:
            by_origin = weights_by_origin(origin, self._ce_by_origin, labels)
            self._weighed.after_loss(inputs, labels, by_origin, result)
        if num_items_in_batch is not None and self.args.average_tokens_across_devices:
            # DDP averages gradients; the token count was global already
            loss = loss * self.accelerator.num_processes
        if return_outputs:
            return loss, {"loss": loss}
        return loss

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> Any:
        """Returns the loss only, without logits, unless the user set `compute_metrics`."""
        if self.compute_metrics is not None and not prediction_loss_only:
            return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys)
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad(), self.compute_loss_context_manager():
            return self.compute_loss(model, inputs).detach(), None, None

    def _request(self, inputs: dict[str, Any], labels: Tensor, num_items: Any) -> LossRequest:
        origin = inputs.pop(ORIGIN, None)  # nothing of the model's
        by_origin = weights_by_origin(origin, self._ce_by_origin, labels)
        trained = labels[:, 1:] != IGNORE
        ce_items = trained.sum().clamp(min=1) if num_items is None else num_items
        # The load-balancing loss is a mean per micro-batch, so it is averaged over the accumulation
        # steps.
        router_scale = self._router_coefficient()
        if router_scale and num_items is not None:
            router_scale /= self.current_gradient_accumulation_steps
        request = LossRequest(
            labels_BT=labels,
            ce_scale=1.0 / ce_items,
            ce_weights_BS=by_origin,
            router_scale=router_scale,
            losses=self._losses if self.model.training else (),
            step=self.state.global_step + 1,
        )
        if self._token_loss is None:
            return request
        mask = trained if self._token_loss.tokens == "trained" else successor_mask(inputs)
        kl_items: Any = self._kl_items
        if kl_items is None and self._token_loss.tokens == "trained":
            kl_items = ce_items
        if num_items is None or kl_items is None:
            kl_items = mask.sum().clamp(min=1)
        if self._teacher is None:
            self.prepare_teacher()
        assert self._teacher is not None
        with self.accelerator.autocast():
            hidden, head = self._teacher.hidden(inputs)
        return dataclasses.replace(
            request,
            kl_scale=self._strength() / kl_items,
            kl_mask_BS=mask,
            kl_weights_BS=weights_by_origin(origin, self._token_loss.by_origin, labels),
            teacher_hidden_BTK=hidden,
            teacher_head=head,
            token_loss=self._token_loss,
        )

    def _strength(self) -> float:
        """The KL term's weight in force."""
        active = next(
            a for m, a in zip(self.retain, self.active, strict=True) if m.token_loss() is not None
        )
        return float(active.strength or 0.0)

    def _router_coefficient(self) -> float:
        """Weight of the experts' load-balancing loss: TRL's setting where the host has one, else
        the model's own."""
        config = causal_lm(self.model).config.get_text_config()
        if not getattr(config, "output_router_logits", False):
            return 0.0
        of_model = getattr(config, "router_aux_loss_coef", 0.0)
        return float(getattr(self, "router_aux_loss_coef", of_model) or 0.0) / max(
            self.accelerator.num_processes, 1
        )

    def _get_num_items_in_batch(
        self, batch_samples: list[dict[str, Any]], device: torch.device
    ) -> Any:
        """Trainer's global count of trained tokens; beside it, the KL's own count where its tokens
        differ."""
        items = super()._get_num_items_in_batch(batch_samples, device)
        self._kl_items = None
        if self._token_loss is not None and self._token_loss.tokens == "all" and batch_samples:
            count = torch.stack([successor_mask(b).sum() for b in batch_samples]).sum().to(device)
            if self.args.average_tokens_across_devices and self.args.world_size > 1:
                count = self.accelerator.gather(count).sum()
            self._kl_items = count.clamp(min=1)
        return items.clamp(min=1) if torch.is_tensor(items) else items

    # ------------------------------------------------------------------------------------- the step

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Tensor:
        if "pixel_values" in inputs or (self.state.global_step == 0 and self._named is None):
            check_first_batch(self, inputs, self._heads_checked)
        self._last_batch = (
            inputs  # named when the gradient or the weights turn out not to be finite
        )
        loss = super().training_step(model, inputs, *args, **kwargs)
        if not bool(torch.isfinite(loss)):
            raise self._diverged(f"the loss is {float(loss)}", inputs, None)
        if self.loss_backend is None:
            self._note_backend()
        if self.accelerator.sync_gradients:
            if self._weighed is not None:
                step = self.state.global_step + 1
                self._weighed.refuse_no_weight(
                    self._sum_over_ranks, step=step, total=total_steps(self)
                )
            if self._zero is None:
                self._add_gradients()
        return loss

    def _add_gradients(self) -> None:
        if not self.active:
            return
        self._rates = self._learning_rates()
        step = self._step_info(self.state.global_step + 1)
        for method in in_turn(self.retain, self.active):
            method.gradient(self.named_trainable(), step)

    def _note_backend(self) -> None:
        self.loss_backend = getattr(
            causal_lm(self.accelerator.unwrap_model(self.model)), "loss_backend", None
        )
        if self.loss_backend is not None and self.is_world_process_zero():
            self.on_loss_backend(self.loss_backend)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        # Under fp16 the scaler meets infinite gradients on purpose and skips the step itself.
        if norm is not None and self.accelerator.scaler is None and not math.isfinite(float(norm)):
            raise self._diverged(
                f"the gradient norm is {float(norm)} although the loss is finite",
                self._last_batch,
                None,
            )
        return norm

    def _run_epoch(self, *args: Any, **kwargs: Any) -> Any:
        # Trainer looks at these after a step only: continued from a checkpoint of the last one, it
        # would take one more.
        if self.control.should_training_stop or self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return None
        return super()._run_epoch(*args, **kwargs)

    def named_trainable(self) -> dict[str, Tensor]:
        """Trainable parameters by name. They are looked up once training has begun, because
        parallel wrappers may replace them before. Under ZeRO 1 and 2 they are this rank's parts."""
        if self._zero is not None:
            return self._zero.named
        if self._named is None:
            self._named = trainable_parameters(self.model)
        return self._named

    def _step_info(self, step: int, figures: StepFigures | None = None) -> StepInfo:
        scaler = self.accelerator.scaler
        return StepInfo(
            step=step,
            total_steps=self.state.max_steps,
            grad_scale=float(scaler.get_scale())
            if scaler is not None
            else 1.0
            if self._zero is None
            else self._zero.loss_scale(),
            reset_optimizer=self._reset_optimizer,
            optimizer_state=state_by_name(self.optimizer, self.named_trainable())
            if self._zero is None and any(OPTIMIZER_STATE in m.needs for m in self.retain)
            else None,
            learning_rates=self._rates,
            figures=figures,
        )

    def _learning_rates(self) -> dict[str, float]:
        if self._zero is not None:
            return self._zero.learning_rates()
        groups = () if self.optimizer is None else self.optimizer.param_groups
        return rates_by_name(groups, self.named_trainable())

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """Creates the optimiser of transformers, with a learning rate for each group of
        parameters."""
        is_given = self.optimizer is not None
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.learning_rate_multipliers and not is_given:
            scale_rates(
                optimizer,
                args[0] if args else kwargs.get("model") or self.model,
                self.learning_rate_multipliers,
            )
        return optimizer

    def _reset_optimizer(self) -> None:
        if self._zero is not None:
            self._zero.reset_optimizer()
            return
        optimizer: Any = getattr(self.optimizer, "optimizer", self.optimizer)
        optimizer.state.clear()

    def after_optimizer_step(self) -> None:
        """Runs the methods' `weights`. The first `on_step_end` callback calls it. An adapter's
        constraint on the weights is restored both before and after the methods change them."""
        self.confine()
        if not self.active:
            return
        totals = self.sums.take_step()
        step = self._step_info(
            self.state.global_step, None if totals is None else self.figures_of(totals)
        )
        self._published = [] if self._zero is None else self._zero.versions()
        for method in in_turn(self.retain, self.active):
            method.weights(self.named_trainable(), step)
        self.confine()
        self.publish_weights()

    def confine(self) -> None:
        """Moves the weights back to where the adapter confines them. This is for OSF, whose factors
        leave their constraint in an optimiser step."""
        if self._project_osf is not None:
            self._project_osf()

    def publish_weights(self) -> None:
        """Copies the methods' changes into the model's own weights under ZeRO 1 and 2; elsewhere
        there is only one copy. All ranks must call it."""
        if self._zero is not None:
            self._zero.publish(self._published)
            self._published = self._zero.versions()

    def _meet_engine(self) -> None:
        """Called when training begins: DeepSpeed has made its engine, if it trains the model."""
        if self.is_deepspeed_enabled and self.zero_stage() < 3:
            self._zero = ZeroParts(self.accelerator.deepspeed_engine_wrapped.engine)
            self._zero.before_step(self._add_gradients)

    def zero_stage(self) -> int:
        """Stage of ZeRO, 0 to 3; above 0 only under DeepSpeed."""
        return int(self.accelerator.state.deepspeed_plugin.zero_stage)

    def figures_of(self, totals: TokenTotals) -> StepFigures:
        """Returns the means over the trained tokens, and the means over the KL tokens."""
        kl = None if self._token_loss is None else totals.per_token("kl_sum")
        return StepFigures(ce=totals.per_token("ce_sum"), kl=kl)

    # ---------------------------------------------------------------------------------- the figures

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Logs with cross-entropy, KL, the student's entropy, token accuracy and the methods'
        figures added. The first three are in nats per token, over all tokens since the last log and
        all ranks."""
        mode = "eval" if any(k.startswith("eval_") for k in logs) else "train"
        for name, value in logs.items():
            if mode == "eval" and name.endswith("loss") and not math.isfinite(value):
                # compared with a NaN no later loss is better: it would stay the best for good
                raise self._diverged(f"{name} is {value}", None, None, updated=True)
        totals = self.sums.take(mode)
        if totals is not None:
            logs.update(self._token_figures(mode, totals))
        super().log(logs, *args, **kwargs)

    def _token_figures(self, mode: str, totals: TokenTotals) -> dict[str, float]:
        figures: dict[str, float] = {}
        if not self.own_loss:  # whose host logs what it is made of
            figures["ce"] = totals.per_token("ce_sum")
        if self._token_loss is not None:
            figures["kl"] = totals.per_token("kl_sum")
        if not self.own_loss:
            figures["token_accuracy"] = totals.per_token("correct")
            figures["entropy"] = totals.per_token("entropy_sum")
        if mode == "eval":
            return {f"eval_{name}": value for name, value in figures.items()}
        if self._weighed is not None:
            figures["ce_weight"] = totals.per_token("weight_sum")
        self.tokens_seen += int(totals.tokens)
        figures["tokens"] = self.tokens_seen
        for method in self.active:
            figures.update(method.metrics(self.named_trainable()))
        return figures

    # ---------------------------------------------------------------------------------- checkpoints

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self._refuse_broken_weights()  # every checkpoint on disk can be continued from
        super()._save_checkpoint(model, trial)

    def _refuse_broken_weights(self) -> None:
        """
        Raises:
            TrainingDiverged: a trained parameter is not finite.
        """
        broken = []
        for name, parameter in self.named_trainable().items():
            if not bool(torch.isfinite(parameter).all()):
                broken.append(name)
        if broken:
            raise self._diverged(
                f"{len(broken)} parameters are no longer finite ({', '.join(broken[:3])})",
                self._last_batch,
                None,
                updated=True,
            )

    def _save_retention_state(self, folder: Path) -> None:
        pending, states = self.sums.pending(), whole_states(self.active)
        if self.is_world_process_zero():
            save_states(
                folder, self.retain, states, tokens_seen=self.tokens_seen, pending_sums=pending
            )

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_retention_state(resume_from_checkpoint)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if (
            self.is_deepspeed_enabled and checkpoint is not None
        ):  # whose engine loads its own checkpoint instead
            self._load_retention_state(checkpoint)

    def _load_retention_state(self, checkpoint: str) -> None:
        saved = load_states(Path(checkpoint), self.retain, self.active)
        if saved is not None:
            self.tokens_seen = saved.get("tokens_seen", 0)
            holds = self.is_world_process_zero()
            self.sums.restore(saved.get("pending_sums"), device=self.args.device, holds=holds)

    # --------------------------------------------------------------------------------------- checks

    def _diverged(
        self,
        what: str,
        inputs: dict[str, Any] | None,
        rows: list[int] | None,
        *,
        updated: bool = False,
    ) -> TrainingDiverged:
        samples = [] if inputs is None else self.describe_samples(inputs, rows)
        step = self.state.global_step + (0 if updated else 1)
        return diverged(
            what, samples, step=step, updated=updated, folder=Path(self.args.output_dir)
        )

    def describe_samples(
        self, inputs: dict[str, Any], rows: list[int] | None = None, *, limit: int = 4
    ) -> list[str]:
        """Returns the beginnings of a batch's samples, with their row numbers in the training data
        if these can be found.

        Args:
            inputs: one micro-batch as the collator made it.
            rows: the rows of the flattened, shifted `[B * (T-1)]` positions that the message is
                about; None: the whole batch.
            limit: the largest number of samples.
        """
        return describe_samples(
            inputs, rows, data=self.train_dataset, tokenizer=self.processing_class, limit=limit
        )


class _AfterStep(TrainerCallback):
    """Runs the methods' `weights` first among all callbacks of the step's end."""

    def __init__(self, trainer: RetentionMixin) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # by Trainer's own count, which a data set without a length has only now
        if problems := length_problems(self.trainer.retain, state.max_steps):
            raise ConfigError(problems)
        self.trainer._meet_engine()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.after_optimizer_step()
