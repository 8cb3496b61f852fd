"""PyTorch's twin of examples/char_gpt.lua: the same text, rows, model, optimizer and schedule;
prints the validation loss to compare.

    python3 bench/peer/char_gpt.py [--steps 600] [--seed 0]
"""
import math

import gpt
import peer

LICENCES = ("Apache-2.0 Artistic BSD CC0-1.0 GFDL-1.2 GFDL-1.3 GPL-1 GPL-2 GPL-3 "
    "LGPL-2 LGPL-2.1 LGPL-3 MPL-1.1 MPL-2.0").split()
PIECE, CONTEXT, BATCH, WIDTH, LAYERS, HEADS = 4096, 128, 16, 128, 4, 4


def main():
    args = peer.arguments(__doc__, steps=600, seed=0)
    import torch
    import torch.nn.functional as F
    torch.manual_seed(args.seed)
    text = b"".join(open("/usr/share/common-licenses/" + name, "rb").read() for name in LICENCES)
    pieces = [text[i:i + PIECE] for i in range(0, len(text), PIECE)]

    def rows(parts, step):
        ids = torch.tensor([95 if c == 10 else c - 32 if 32 <= c < 127 else 31 for c in b"".join(parts)])
        return ids.unfold(0, CONTEXT + 1, step)

    train = rows([p for i, p in enumerate(pieces) if i % 10 != 9], CONTEXT // 2)
    held = rows([p for i, p in enumerate(pieces) if i % 10 == 9], CONTEXT)
    net = gpt.model(LAYERS, WIDTH, HEADS, CONTEXT, 96, False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95))
    warm = max(1, args.steps // 20)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (s + 1) / warm if s < warm else
                                                  0.1 + 0.45 * (1 + math.cos(
                                                      math.pi * min(1, (s - warm) / (args.steps - warm)))))

    def loss_of(batch):
        return F.cross_entropy(net(batch[:, :-1]).reshape(-1, 96), batch[:, 1:].reshape(-1))

    done, losses = 0, {}
    while done < args.steps:
        order = torch.randperm(len(train))
        for i in range(0, len(train) - BATCH + 1, BATCH):
            loss = loss_of(train[order[i:i + BATCH]])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            done += 1
            losses[done] = loss.item()
            if done == args.steps:
                break
    with torch.no_grad():
        batches = held.split(32)
        validation = float(sum(loss_of(b) for b in batches) / len(batches))
    peer.emit(args, first_loss=losses[1], last_loss=losses[args.steps], validation_loss=validation)


if __name__ == "__main__":
    main()
