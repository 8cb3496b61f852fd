"""Writes metrics_reference.lua: what scikit-learn says about a few small sets of labels.

    python3 gen_metrics_reference.py > metrics_reference.lua        (needs scikit-learn)
"""
import warnings

import numpy as np
from sklearn import metrics as m

warnings.simplefilter("ignore")


def lua(v):
    if isinstance(v, (list, tuple, np.ndarray)):
        return "{ " + ", ".join(lua(x) for x in v) + " }"
    return repr(round(float(v), 12)).removesuffix(".0")


def main():
    rng = np.random.default_rng(7)
    print("-- Written by gen_metrics_reference.py with scikit-learn.")
    print("return {")
    for name, classes, n in [("binary", 2, 25), ("three", 3, 40), ("five", 5, 30), ("never_predicted", 4, 20),
        ("all_wrong", 2, 6)]:
        y = rng.integers(0, classes, n)
        p = np.where(rng.random(n) < 0.6, y, rng.integers(0, classes, n))
        if name == "never_predicted":
            p[p == 3] = 0
        if name == "all_wrong":
            p = 1 - y
        print(f"  {{ name = \"{name}\", references = {lua(y)}, predictions = {lua(p)},")
        print(f"    accuracy = {lua(m.accuracy_score(y, p))}, right = {lua(m.accuracy_score(y, p, normalize=False))},")
        print(f"    matthews_correlation = {lua(m.matthews_corrcoef(y, p))},")
        for metric, fn in [("f1", m.f1_score), ("precision", m.precision_score), ("recall", m.recall_score)]:
            parts = [f"{a} = {lua(fn(y, p, average=a, zero_division=0))}" for a in ["micro", "macro", "weighted"]]
            parts.append(f"none = {lua(fn(y, p, average=None, zero_division=0))}")
            parts.append(f"macro_some = {lua(fn(y, p, average='macro', labels=[1, 0], zero_division=0))}")
            parts.append(f"micro_some = {lua(fn(y, p, average='micro', labels=[1], zero_division=1))}")
            if classes == 2:
                parts.append(f"binary = {lua(fn(y, p, zero_division=0))}, "
                    f"binary_0 = {lua(fn(y, p, pos_label=0, zero_division=0))}")
            print(f"    {metric} = {{ {', '.join(parts)} }},")
        norms = {k: m.confusion_matrix(y, p, normalize=k) for k in ["true", "pred", "all"]}
        print(f"    confusion_matrix = {lua(m.confusion_matrix(y, p))},")
        print("    normalized = { " + ", ".join(f'["{k}"] = {lua(v)}' for k, v in norms.items()) + " } },")
    x, y = rng.standard_normal(12).round(3), rng.standard_normal(12).round(3)
    print(f"  numbers = {{ references = {lua(y)}, predictions = {lua(x)}, mse = {lua(m.mean_squared_error(y, x))},")
    print(f"    mae = {lua(m.mean_absolute_error(y, x))}, pearsonr = {lua(np.corrcoef(x, y)[0, 1])} }},")
    print("}")


main()
