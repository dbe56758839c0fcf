"""Label annealing (paper 000): a KL term to the frozen start model at every trained token.

    loss = CE + weight * KL(softmax(w / T) || softmax(z / T))          w: teacher logits, z: student logits, nats per token

The teacher is the start model: a second frozen copy (`online`), or, for LoRA students, the same model with its adapters
switched off (`adapter_off`), which needs no second copy. The op in `ops.annealing` computes both terms and their gradient in one pass.

Cost: the teacher's forward pass and one more vocabulary product a token: about 1.33 times direct fine-tuning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from holdfast.retention.method import RetentionMethod, TokenLoss


@dataclass(frozen=True, kw_only=True)
class LabelAnnealing(RetentionMethod):
    """KL to the start model at every trained token; memory kept in the loss.

    Raises nothing itself; `problems()` lists parameters out of range.

    References: paper 000, Eq. 2; gradient and direction as in its appendix A.3.
    """

    name: ClassVar[str] = "label_annealing"
    summary: ClassVar[str] = "KL to the frozen start model at every trained token; needs no old data"
    source: ClassVar[str] = "Memory Retaining Finetuning via Distillation, section 2.2 and appendix A.3"

    weight: float = field(default=1.0, metadata={"help": "lambda, factor of the KL term (nats per token); 0 is direct fine-tuning"})
    temperature: float = field(default=1.0, metadata={"help": "T > 0 of both softmaxes in the KL term (no T^2 factor)"})
    direction: str = field(
        default="forward", metadata={"help": "forward: KL(teacher || student), the paper's implementation; reverse: KL(student || teacher)"}
    )
    tokens: str = field(default="trained", metadata={"help": "trained: tokens with a label; all: prompt tokens too"})
    teacher: str = field(
        default="auto",
        metadata={"help": "online: a frozen second copy; adapter_off: LoRA's base with adapters off; auto: adapter_off under LoRA, else online"},
    )
    teacher_dtype: str | None = field(
        default=None, metadata={"help": "dtype of an online teacher (float32, bfloat16, float16); empty: the start model's"}
    )

    @property
    def off(self) -> bool:
        return self.weight == 0

    def problems(self) -> list[str]:
        found = []
        if not self.weight >= 0:
            found.append(f"label_annealing.weight: expected 0 or more, got {self.weight}")
        if not self.temperature > 0:
            found.append(f"label_annealing.temperature: expected more than 0, got {self.temperature}")
        for key, allowed in (("direction", ("forward", "reverse")), ("tokens", ("trained", "all")), ("teacher", ("auto", "online", "adapter_off"))):
            if getattr(self, key) not in allowed:
                found.append(f"label_annealing.{key}: expected one of {', '.join(allowed)}, got {getattr(self, key)!r}")
        if self.teacher_dtype not in (None, "float32", "bfloat16", "float16"):
            found.append(f"label_annealing.teacher_dtype: expected float32, bfloat16 or float16, got {self.teacher_dtype!r}")
        return found

    def token_loss(self) -> TokenLoss:
        return TokenLoss(
            weight=self.weight,
            temperature=self.temperature,
            direction=self.direction,
            tokens=self.tokens,
            teacher=self.teacher,
            teacher_dtype=self.teacher_dtype,
        )
