"""Transformers: a fine-tuning step of BertForSequenceClassification on padded batches, as ../finetune.lua."""
import peer

#          layers width heads ffn vocab
PRESETS = {"base": (12, 768, 12, 3072, 30522), "mini": (4, 256, 4, 1024, 30522)}
BATCH, SEQ = 8, 128


def main():
    args = peer.arguments(__doc__, preset="mini", steps=20, warmup=3)
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    before = peer.resident()
    layers, width, heads, ffn, vocab = PRESETS[args.preset]
    net = BertForSequenceClassification(BertConfig(num_hidden_layers=layers, hidden_size=width,
        num_attention_heads=heads, intermediate_size=ffn, vocab_size=vocab)).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-5, **({"fused": True} if args.fused else {}))
    generator = torch.Generator().manual_seed(peer.rank())

    def step():
        ids = torch.randint(vocab, (BATCH, SEQ), generator=generator)
        mask = torch.arange(SEQ) < torch.randint(SEQ // 4, SEQ + 1, (BATCH, 1), generator=generator)
        loss = net(input_ids=ids, attention_mask=mask.long(), labels=ids[:, 0] % 2).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    peer.train(args, step, before, preset=args.preset, batch=BATCH)


if __name__ == "__main__":
    main()
