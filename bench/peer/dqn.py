"""PyTorch: a loop of tiny ops, as in deep Q-learning: an action, a batch out of a memory, the loss, Adam."""
import copy

import peer

STATES, ACTIONS, WIDTH, BATCH, MEMORY, GAMMA = 4, 2, 64, 32, 1000, 0.99


def main():
    args = peer.arguments(__doc__, steps=500, warmup=50)
    import torch
    from torch import nn
    before = peer.resident()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(STATES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(),
                          nn.Linear(WIDTH, ACTIONS))
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **({"fused": True} if args.fused else {}))
    states, followers = torch.randn(MEMORY, STATES), torch.randn(MEMORY, STATES)
    actions = torch.randint(0, ACTIONS, (MEMORY, 1))
    rewards, ends = torch.randn(MEMORY), (torch.rand(MEMORY) < 0.05).float()
    at = [0]

    def step():
        at[0] = (at[0] + 1) % MEMORY
        pick = torch.randint(0, MEMORY, (BATCH,))
        with torch.no_grad():
            actions[at[0]] = model(states[at[0]:at[0] + 1]).argmax(1)
            best = rewards[pick] + (1 - ends[pick]) * target(followers[pick]).amax(1) * GAMMA
        chosen = model(states[pick]).gather(1, actions[pick]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(chosen, best)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    peer.train(args, step, before)


if __name__ == "__main__":
    main()
