"""The table at the end of check.py, and what fails."""
import os

HERE = os.path.dirname(os.path.abspath(__file__))
VERBOSE = os.environ.get("VERBOSE") == "1"


def listed(name):
    """{ entry: reason } of a file with lines `entry: reason`."""
    out = {}
    with open(os.path.join(HERE, name)) as f:
        for line in f:
            line = line.strip()
            if line and not line.startswith("#"):
                entry, _, reason = line.partition(": ")
                if not reason:
                    raise SystemExit(f"{name}: {line!r}: expected `entry: reason`")
                out[entry] = reason
    return out


def show_list(title, items):
    kinds = {}
    for message, call, _ in items:
        kinds.setdefault(message, []).append(call)
    for message, list_of in sorted(kinds.items(), key=lambda pair: -len(pair[1]))[:None if VERBOSE else 2]:
        print(f"      {title} {len(list_of)}: {message[:220]}")
        for call in list_of[:8 if VERBOSE else 1]:
            print(f"        {call[:200]}")


def show(found, complete):
    missing, differences = listed("missing.txt"), listed("differences.txt")
    print(f"{'entry':48}{'samples':>8}{'agree':>8}{'refused':>8}{'wrong':>7}{'skipped':>9}")
    failures, total = [], [0, 0, 0, 0, 0]
    absent = [entry for entry in found if entry.missing]
    for entry in found:
        if entry.missing:
            if entry.name not in missing:
                failures.append(f"{entry.name} is missing and not in missing.txt")
            continue
        if entry.name in missing:
            failures.append(f"{entry.name} is in missing.txt and there")
        skipped = sum(entry.skipped.values())
        row = [entry.drawn, entry.agree, len(entry.refused), len(entry.wrong), skipped]
        total = [a + b for a, b in zip(total, row)]
        if entry.wrong and entry.name not in differences:
            failures.append(f"{entry.name}: {len(entry.wrong)} wrong")
        if entry.drawn > 0 and entry.drawn - skipped == len(entry.refused) > 0 and entry.name not in differences:
            failures.append(f"{entry.name}: every sample is refused")
        if row[1] == row[0] and not VERBOSE:
            continue
        print(f"  {entry.name:46}{row[0]:8}{row[1]:8}{row[2]:8}{row[3]:7}{row[4]:9}")
        show_list("wrong", entry.wrong)
        show_list("refused", entry.refused)
        if VERBOSE:
            for why, count in entry.skipped.items():
                print(f"      skipped {count}: {why}")
    print(f"  {'total':46}{total[0]:8}{total[1]:8}{total[2]:8}{total[3]:7}{total[4]:9}")
    names = {entry.name for entry in found}
    if complete:
        for name in list(missing) + list(differences):
            if name not in names:
                failures.append(f"{name} is listed, and no entry of this PyTorch")
        print(f"{len(found)} entries, {len(absent)} missing:")
        for entry in absent:
            print(f"  {entry.name}: {missing.get(entry.name, '(no reason)')}")
    for failure in failures:
        print("FAILED:", failure)
    return 1 if failures else 0
