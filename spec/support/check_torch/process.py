"""The accel-run process that check.py talks to; serve.lua says how."""
import json
import os
import subprocess
import tempfile

import numpy
import torch

from texts import TYPES

HERE = os.path.dirname(os.path.abspath(__file__))
BY_NAME = {name: dtype for dtype, name in TYPES.items()}


class Accel:
    """One process, which answers one batch of samples after the other."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        names = os.path.join(self.folder.name, "names")
        from torch.testing._internal.common_methods_invocations import op_db
        from torch.testing._internal.common_optimizers import optim_db
        with open(names, "w") as f:
            wanted = {op.name for op in op_db} | {"optim." + info.optim_cls.__name__ for info in optim_db}
            f.write("\n".join(sorted(wanted)) + "\n")
        self.process = subprocess.Popen([program, os.path.join(HERE, "serve.lua")], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, env={**os.environ, "CHECK_NAMES": names, "ACCEL_NUM_THREADS": "1"})
        self.has = json.loads(self.line())

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"accel-run ended with {self.process.wait()}")
        return line

    def ask(self, requests):
        """Sends samples: [(tensors, text of the call, text of what is to be differentiated)]."""
        rows, counts, lines = {}, {}, []
        for tensors, call, wanted in requests:
            parts = []
            for x in tensors:
                kind, count = TYPES[x.dtype], x.numel()
                at = counts.get(kind, 0)
                shape = ", ".join(map(str, x.shape))
                parts.append(f"{{ '{kind}', {at}, {{ {shape} }}, {'true' if x.requires_grad else 'false'} }}")
                values = x.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
                rows.setdefault(kind, []).append(values)
                counts[kind] = at + count
            lines.append(f"return {{ {', '.join(parts)} }}, function(T) {call} end, {wanted}\n")
        whole = {}
        for kind, list_of in rows.items():
            joined = torch.cat(list_of)
            whole[kind] = (joined.float() if kind == "bfloat16" else joined).numpy()
        numpy.savez(os.path.join(self.folder.name, "data.npz"), none=numpy.zeros(1), **whole)
        with open(os.path.join(self.folder.name, "samples"), "w") as f:
            f.writelines(lines)
        self.process.stdin.write(self.folder.name + "\n")
        self.process.stdin.flush()

    def answers(self):
        """What the samples gave: [{ error } or { results, gradients, gradient_error }]."""
        line = self.line().strip()
        if line != "done":
            raise RuntimeError(line)
        rows = numpy.load(os.path.join(self.folder.name, "results.npz"))
        rows = {name: torch.from_numpy(rows[name]) for name in rows.files}

        def value(entry):
            if len(entry) == 1:
                return entry[0]
            dtype, shape, kind, at = entry
            count = 1
            for size in shape:
                count *= size
            return rows[kind][at:at + count].reshape(shape).to(BY_NAME[dtype])

        out = []
        with open(os.path.join(self.folder.name, "results")) as f:
            for line in f:
                answer = json.loads(line)
                for key in ("results", "gradients"):
                    answer[key] = [value(entry) for entry in answer.get(key, [])]
                out.append(answer)
        return out

    def close(self):
        self.process.stdin.close()
        self.process.wait()
