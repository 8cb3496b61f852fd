"""What it takes to start: `import torch`, and a first training step; wall time of the whole process."""
import statistics
import subprocess
import sys
import time

import peer

STEP = """
import torch
torch.set_num_threads(1)
nn = torch.nn
model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(64, 784), torch.randint(0, 10, (64,))
nn.CrossEntropyLoss()(model(x), y).backward()
optimizer.step()
"""


def median_ms(code):
    times = []
    for i in range(4):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)
        if i:
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


args = peer.arguments(__doc__)
peer.emit(args, empty_ms=median_ms("import torch"), step_ms=median_ms(STEP))
