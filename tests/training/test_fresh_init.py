"""The spread of freshly initialised tensors, found tensor by tensor, against models that are really initialised."""

from __future__ import annotations

import math
import resource
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen2Config,
)

from holdfast.checkpoints.reader import CheckpointReader
from holdfast.errors import ModelError
from holdfast.training.fresh_init import init_stds

SIZES = dict(
    hidden_size=64,
    num_hidden_layers=3,
    vocab_size=200,
    intermediate_size=128,
    num_attention_heads=4,
    initializer_range=0.03,
)
GROUPED = dict(SIZES, num_key_value_heads=2)

CONFIGS = {
    "llama": LlamaConfig(**GROUPED, pad_token_id=1),
    "llama, tied": LlamaConfig(**GROUPED, tie_word_embeddings=True, attention_bias=True),
    "qwen2": Qwen2Config(**GROUPED),
    "gpt2": GPT2Config(n_layer=3, n_embd=64, n_head=4, vocab_size=200),
    "gpt_neox": GPTNeoXConfig(**SIZES),
    "mistral": MistralConfig(**GROUPED),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_stds_are_those_of_a_fresh_model(name):
    config = CONFIGS[name]
    state = torch.get_rng_state()
    stds = init_stds(config)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(11)
    fresh = AutoModelForCausalLM.from_config(config)
    weights = dict(fresh.named_parameters(remove_duplicate=False))
    assert list(stds) == list(weights)
    for parameter, weight in weights.items():
        wanted = float(weight.detach().double().std(correction=0))
        assert stds[parameter] == pytest.approx(wanted, rel=5 / math.sqrt(weight.numel()), abs=1e-12), parameter
        if "norm" in parameter or ".ln_" in parameter or parameter.endswith("bias"):
            assert stds[parameter] == 0
    assert sum(std > 0 for std in stds.values()) >= 10


def test_gpt2_scales_its_residual_projections():
    """The attention initialises the projection inside it once more: 0.02 / sqrt(2 layers)."""
    stds = init_stds(CONFIGS["gpt2"])
    for layer in range(3):
        assert stds[f"transformer.h.{layer}.attn.c_proj.weight"] == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
        assert stds[f"transformer.h.{layer}.mlp.c_proj.weight"] == pytest.approx(0.02 / math.sqrt(6), rel=0.05)
        assert stds[f"transformer.h.{layer}.attn.c_attn.weight"] == pytest.approx(0.02, rel=0.05)


def test_what_is_fixed_has_no_spread_however_it_looks():
    """Mamba's A is the same ramp in every fresh model, its step sizes are drawn, and its output projection is scaled
    after drawing."""
    config = MambaConfig(hidden_size=64, num_hidden_layers=2, vocab_size=200, rescale_prenorm_residual=True)
    stds = init_stds(config)
    models = []
    for seed in range(64):
        torch.manual_seed(seed)
        models.append(dict(AutoModelForCausalLM.from_config(config).named_parameters()))
    for name in ("A_log", "D", "dt_proj.bias", "out_proj.weight", "conv1d.weight"):
        name = f"backbone.layers.0.mixer.{name}"
        across = torch.stack([m[name].detach() for m in models]).double().var(dim=0).mean().sqrt()
        assert stds[name] == pytest.approx(float(across), rel=0.06, abs=1e-12)
    assert stds["backbone.layers.0.mixer.A_log"] == 0 < stds["backbone.layers.0.mixer.dt_proj.bias"]


def test_a_small_tensor_is_drawn_often():
    """Four numbers alone would leave an error of 35 %."""
    from transformers import GptOssConfig

    stds = init_stds(GptOssConfig(**GROUPED, head_dim=16, num_local_experts=4))
    for name in ("mlp.router.bias", "self_attn.sinks"):
        assert stds[f"model.layers.1.{name}"] == pytest.approx(0.03, rel=0.2)


def test_models_configs_and_folders_say_the_same(tmp_path):
    from peft import LoraConfig, get_peft_model

    model = LlamaForCausalLM(CONFIGS["llama, tied"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    config = model.config.to_dict()
    wanted = init_stds(CONFIGS["llama, tied"])
    assert init_stds(model) == wanted == init_stds(tmp_path) == init_stds(str(tmp_path))
    assert wanted["lm_head.weight"] == wanted["model.embed_tokens.weight"]
    assert model.config.to_dict() == config
    assert init_stds(get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj"]))) == wanted


def test_seeds_decide():
    one, two, three = (init_stds(CONFIGS["qwen2"], seed=s) for s in (0, 1, 0))
    assert one == three and one.keys() == two.keys()
    assert all((one[n] == two[n]) == (one[n] == 0) for n in one)


def test_names_as_folders_have_them(tmp_path):
    """Experts lie in one tensor in memory and in many on disk."""
    AutoModelForCausalLM.from_config(CONFIGS["mixtral"]).save_pretrained(tmp_path)
    stored, held = init_stds(tmp_path, stored=True), init_stds(tmp_path)
    assert sorted(stored) == CheckpointReader(tmp_path).names()
    assert sorted(stored) != sorted(held)
    assert stored["model.layers.1.block_sparse_moe.experts.2.w2.weight"] == held["model.layers.1.mlp.experts.down_proj"]


def test_stds_fit_what_perturbs_models():
    from holdfast.checkpoints.live import perturbed

    model = AutoModelForCausalLM.from_config(CONFIGS["mixtral"])
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    with perturbed(model, seed=0, scale=0.1, stds=init_stds(model)):
        moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {n for n, p in before.items() if p.dim() > 1}
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


class _ByConstructor(nn.Module):
    """A gate that no `_init_weights` knows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.gate = nn.Parameter(torch.full((3,), 0.5))
        self.noise = nn.Parameter(torch.linspace(0, 1, 5))

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class _Odd(LlamaForCausalLM):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.model.norm = _ByConstructor(self.model.norm)


def test_tensors_that_only_a_constructor_sets_are_found_too():
    stds = init_stds(_Odd(CONFIGS["llama"]))
    assert stds["model.norm.gate"] == 0
    assert stds["model.norm.noise"] == pytest.approx(float(torch.linspace(0, 1, 5).std(correction=0)))
    assert stds["model.layers.0.mlp.up_proj.weight"] == pytest.approx(0.03, rel=0.05)


class _Partly(LlamaForCausalLM):
    def _init_weights(self, module: nn.Module) -> None:
        if module is self.lm_head:
            with torch.no_grad():
                module.weight[1:].normal_()
        else:
            super()._init_weights(module)


def test_a_tensor_left_half_initialised_is_named():
    with pytest.raises(ModelError, match=r"leaves parts of lm_head\.weight"):
        init_stds(_Partly(CONFIGS["llama"]))


def test_what_is_no_language_model_is_refused(tmp_path):
    from transformers import BertConfig, ViTConfig

    with pytest.raises(ModelError, match="Expected a transformers model"):
        init_stds(nn.Linear(2, 2))
    with pytest.raises(ModelError, match="can be built from its config"):
        init_stds(ViTConfig())
    BertConfig(architectures=["BertForMaskedLM"]).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="causal language model"):
        init_stds(tmp_path)


@pytest.mark.slow
def test_no_whole_model_is_ever_held():
    """Four layers of 67 MB: what is held at a time is one matrix, whatever the depth."""
    code = (
        "import resource\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "from holdfast.training.fresh_init import init_stds\n"
        "sizes = dict(hidden_size=1024, num_attention_heads=8, vocab_size=500)\n"
        "init_stds(LlamaConfig(**sizes, intermediate_size=4096, num_hidden_layers=1))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "init_stds(LlamaConfig(**sizes, intermediate_size=4096, num_hidden_layers=4))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    assert resource.RUSAGE_SELF == 0
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 60_000  # KB; the model would take 270 MB
