"""Fine-tunes one BERT with the same batches here and in Transformers, and compares the losses of all steps.

    ACCEL_RUN=build/accel-run python3 spec/support/check_finetuning.py

Both start from one folder, without dropout, with AdamW, clipping and a linear schedule.  Ends with an error where a
loss differs by more than 1 %.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
import transformers

STEPS, BATCH, LENGTH, WORDS = 150, 16, 24, 60
SCRIPT = """
local accelerate = require "accelerate"
local models, optim, tensor = accelerate.models, accelerate.optim, accelerate.tensor
local folder, steps = arg[1], tonumber(arg[2])
local set = accelerate.load_safetensors(folder .. "/batches.safetensors")
local accelerator = accelerate.Accelerator { cpu = true }
local model = models.BertForSequenceClassification.from_pretrained(folder, { num_labels = 2 })
local optimizer = optim.AdamW(model:parameters(), { lr = 2e-3, weight_decay = 0.01 })
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


def theirs(folder, data):
    model = transformers.BertForSequenceClassification.from_pretrained(folder, num_labels=2).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 6, STEPS)
    losses = []
    for i in range(STEPS):
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
    config = transformers.BertConfig(vocab_size=WORDS, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    data = batches()
    with tempfile.TemporaryDirectory() as folder:
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
        save_file(data, os.path.join(folder, "batches.safetensors"))
        script = os.path.join(folder, "script.lua")
        with open(script, "w") as f:
            f.write(SCRIPT)
        out = subprocess.run([os.environ["ACCEL_RUN"], "--num_cpu_threads_per_process", "1", script, folder,
            str(STEPS)], check=True, stdout=subprocess.PIPE, text=True).stdout
        ours = [float(line) for line in out.split()]
        wanted = theirs(folder, data)
    if len(ours) != STEPS:
        sys.exit(f"{len(ours)} losses, expected {STEPS}")
    worst = max(abs(a - b) / b for a, b in zip(ours, wanted))
    print(json.dumps({"steps": STEPS, "first": [ours[0], wanted[0]], "last": [ours[-1], wanted[-1]], "worst": worst}))
    if worst > 0.01:
        sys.exit(f"a loss differs by {worst:.2%}")


main()
