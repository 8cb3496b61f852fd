"""Writes lua/accelerate/tokenizers/chat/cases.lua: the case of letters, as Python's texts have it.

  python3 host/tools/cases.py > lua/accelerate/tokenizers/chat/cases.lua
"""
import unicodedata

HEAD = '''--- The case of letters beyond ASCII, of Unicode %s; written by host/tools/cases.py.
---
--- A run is { first, last, step, difference }: code points that differ alike from those they become.
--- The other letters become several characters, or are alone: pairs of texts.
return {''' % unicodedata.unidata_version


def runs_and_pairs(change):
    runs, pairs = [], []
    for code in range(0x80, 0x110000):
        if 0xD800 <= code < 0xE000:
            continue
        to = change(chr(code))
        if to == chr(code):
            continue
        if len(to) > 1:
            pairs.append((chr(code), to))
            continue
        difference = ord(to) - code
        last = runs[-1] if runs else None
        if last and last[3] == difference and (last[2] == 0 and code - last[1] in (1, 2) or code - last[1] == last[2]):
            last[2], last[1] = code - last[1], code
        else:
            runs.append([code, code, 0, difference])
    return [(a, b, step or 1, d) for a, b, step, d in runs], pairs


def wrapped(words):
    lines, line = [], "     "
    for word in words:
        if len(line) + len(word) > 98:
            lines.append(line)
            line = "     "
        line += " " + word + ","
    return "\n".join(lines + [line])


print(HEAD)
for name, change in (("lower", str.lower), ("upper", str.upper), ("title", str.title)):
    runs, pairs = runs_and_pairs(change)
    print("  %s = {\n    runs = {" % name)
    print(wrapped("{ %d, %d, %d, %d }" % run for run in runs))
    print("    },\n    pairs = {")
    print(wrapped('["%s"] = "%s"' % pair for pair in pairs))
    print("    },\n  },")
print("}")
