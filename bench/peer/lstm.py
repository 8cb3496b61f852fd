"""PyTorch: an LSTM of two layers over token sequences that predicts the next token, AdamW at its defaults."""
import peer

BATCH, LENGTH, WIDTH, WORDS = 16, 64, 256, 1000


def main():
    args = peer.arguments(__doc__, steps=20, warmup=3)
    import torch
    from torch import nn
    before = peer.resident()
    torch.manual_seed(1)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, WIDTH)
            self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
            self.head = nn.Linear(WIDTH, WORDS)

        def forward(self, x): return self.head(self.lstm(self.words(x))[0])

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **({"fused": True} if args.fused else {}))
    tokens = torch.randint(0, WORDS, (BATCH, LENGTH + 1))
    x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].reshape(-1)

    def step():
        loss = nn.functional.cross_entropy(model(x).view(-1, WORDS), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    peer.train(args, step, before)


if __name__ == "__main__":
    main()
