"""Writes the folders beside this file: a small model, adapters that PEFT made for it, and the scores that it
computes with each.

    python spec/reference/peft/generate.py      (with torch, transformers, peft, safetensors, bitsandbytes)
"""
import os

import bitsandbytes
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = os.path.dirname(os.path.abspath(__file__))
ADAPTERS = {
    "lora": dict(r=2, lora_alpha=8, target_modules=["c_attn", "c_proj"], lora_dropout=0.1),
    "dora": dict(r=2, use_dora=True, use_rslora=True, target_modules="all-linear"),
    "saved": dict(r=2, bias="all", modules_to_save=["ln_f"], target_modules=r".*\.(c_attn|c_fc)"),
}

torch.manual_seed(0)
base, ids, out = os.path.join(HERE, "base"), torch.arange(8).reshape(2, 4), {}
GPT2LMHeadModel(GPT2Config(vocab_size=12, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0,
                           eos_token_id=0)).save_pretrained(base)
for name, settings in ADAPTERS.items():
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(task_type="CAUSAL_LM", **settings))
    for _, p in model.named_parameters():
        if p.requires_grad:
            with torch.no_grad(): p.add_(torch.randn_like(p) * 0.2)
    model.eval()
    with torch.no_grad(): out[name] = model(ids).logits.contiguous()
    model.peft_config["default"].base_model_name_or_path = None
    model.save_pretrained(os.path.join(HERE, name))
    os.remove(os.path.join(HERE, name, "README.md"))
save_file(out, os.path.join(HERE, "scores.safetensors"))


# DoRA over a layer in nf4, in training mode: in evaluation on a processor with AVX512-BF16 bitsandbytes packs codes
# anew, and PEFT takes them for codes in their former order.
class Net(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.fc = layer

    def forward(self, x): return self.fc(x)


torch.manual_seed(2)
plain, x = torch.nn.Linear(64, 32), torch.randn(3, 64, requires_grad=True)
layer = bitsandbytes.nn.Linear4bit(64, 32, compute_dtype=torch.float32, quant_type="nf4")
layer.load_state_dict(plain.state_dict())
model = get_peft_model(Net(layer.to("cpu")), LoraConfig(r=4, target_modules=["fc"], use_dora=True,
                                                        init_lora_weights=False)).train()
adapter = model.base_model.model.fc
made = adapter.lora_magnitude_vector["default"].weight.detach().clone()
with torch.no_grad(): adapter.lora_magnitude_vector["default"].weight.mul_(torch.linspace(0.5, 1.5, 32))
y = model(x)
y.square().sum().backward()
all = {"weight": plain.weight, "bias": plain.bias, "x": x, "y": y, "x_grad": x.grad, "made": made}
for key, p in {"A": adapter.lora_A.default.weight, "B": adapter.lora_B.default.weight,
               "m": adapter.lora_magnitude_vector["default"].weight}.items():
    all[key], all[key + "_grad"] = p, p.grad
save_file({key: t.detach().contiguous() for key, t in all.items()}, os.path.join(HERE, "dora_nf4.safetensors"))

# Ranks by pattern, some blocks alone, a head with an adapter, and modules that are trained as a whole by the ends of
# their paths.
torch.manual_seed(3)
llama, folder = os.path.join(HERE, "llama"), os.path.join(HERE, "patterns")
LlamaForCausalLM(LlamaConfig(vocab_size=12, hidden_size=16, intermediate_size=24, num_hidden_layers=3,
                             num_attention_heads=2, max_position_embeddings=8)).save_pretrained(llama)
model = get_peft_model(AutoModelForCausalLM.from_pretrained(llama), LoraConfig(
    task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj", "down_proj", "lm_head"],
    layers_to_transform=[0, 2], layers_pattern="layers", rank_pattern={"v_proj": 3, "layers.2.mlp.down_proj": 1},
    alpha_pattern={r"layers\.\d+\.self_attn\.q_proj": 20}, modules_to_save=["norm"]))
for _, p in model.named_parameters():
    if p.requires_grad:
        with torch.no_grad(): p.add_(torch.randn_like(p) * 0.2)
with torch.no_grad(): save_file({"scores": model.eval()(ids).logits.contiguous()},
                                os.path.join(HERE, "patterns_scores.safetensors"))
model.base_model.model.name_or_path = model.peft_config["default"].base_model_name_or_path = None
model.save_pretrained(folder)
os.remove(os.path.join(folder, "README.md"))
