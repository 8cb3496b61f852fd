"""Writes yaml_reference.lua: what PyYAML's safe loader makes of texts, as JSON; false where it refuses them.

    python3 spec/generators/gen_yaml_reference.py > spec/reference/yaml_reference.lua
"""
import datetime
import itertools
import json
import sys

import yaml

WORDS = """
yes Yes YES yEs no No NO true True TRUE tRue false False FALSE on On ON oN off Off OFF y Y n N
null Null NULL nULL ~ ~~ none None
0 1 -1 +1 007 010 -010 08 09 0_7 0_ 00 1_000 _1 1__0 -_1 0b101 0b 0b_ 0b12 0x1F 0xfg 0x 0x_a -0x10 0o17 1:30
1:60 01:30 10:20:30 -1:30 1:2:
1.0 1. .5 -.5 +.5 -0.5 1e5 1.0e5 1.0e+5 1.5E-3 1.e+1 1.0e+ 1e+5 1_0.5 1._5 . .. -. 1.2.3 1:30.5 1:30.
10:20:30.25 190:20:30.15
.inf -.inf +.inf .Inf .INF .iNf .nan .NaN .NAN -.nan inf nan Infinity 1.0f 0x1p3
12345678901234567 3.141592653589793 0.1 1.7976931348623157e+308
2001-12-14 2001-12-14T21:59:43.10-05:00 12:30 << = a-b a:b a#b MULTI_GPU FSDP bf16 -- - --- ... '' "" 'no'
"10" 'it''s' "a\\tb\\u00e9\\x41" "\\/"
!!str 5 | !!int 5 | !!int "5" | !!float 1 | !!float "1.5" | !!bool "yes" | !!null "" | !!str | ! 5 | !!map {}
!!python/object:x 1 | !foo 1
"""
DOCUMENTS = [
    "", "# nothing\n", "---\n...\n", "a: 1\n---\nb: 2\n", "a:\nb:\n", "- 1\n- [a, {b: c}]\n- - x\n  - y\n",
    "a: |\n  one\n  two\nb: >\n  one\n  two\n", "a: 'one\n  two'\n", "? a\n: b\n", "{a: 1, b: [yes, no,], }\n",
    "a: &x {p: 1, q: 2}\nb: *x\nc:\n  <<: *x\n  q: 3\n",
    "a: &x {p: 1}\nb: &y {p: 2, q: 3}\nc: {<<: [*x, *y], r: 4}\n",
    "a: &x 5\nb: *x\n", "a: *x\n", "a: [1\n", "a: b: c\n", "\ta: 1\n", "a:\t1\n",
    "7: a\nyes: b\n2.5: c\n", "a: @b\n", "a: %b\n",
    "fsdp_config:\n  fsdp_offload_params: false\ngpu_ids: 0,1\nmain_process_ip: 10.0.0.1\nmixed_precision: no\n",
    '{"a": "\\u00e9", "b": [1, 2.5, true, null]}\n', "\ufeffa: 1\n", "a: \u00e9\n", "a: 1\r\nb: 2\r\n",
]


def plain(value):
    """The value as JSON has it; numbers that JSON lacks and dates are marked."""
    if isinstance(value, dict):
        return {"map": [[plain(k), plain(v)] for k, v in value.items()]}
    if isinstance(value, list):
        return {"list": [plain(v) for v in value]}
    if isinstance(value, bool) or isinstance(value, str):
        return value
    if value is None:
        return {"null": True}
    if isinstance(value, (datetime.date, datetime.datetime)):
        return {"date": True}
    return {"number": repr(float(value))}


def reading(text):
    try:
        return plain(yaml.safe_load(text))
    except Exception:
        return {"refused": True}


def quote(text):
    letters = [chr(b) if 32 <= b < 127 and chr(b) not in '"\\' else "\\%03d" % b for b in text.encode()]
    parts = ["".join(letters[i:i + 60]) for i in range(0, max(len(letters), 1), 60)]
    return ' ..\n    '.join('"%s"' % part for part in parts)


words = list(itertools.chain.from_iterable(
    line.split(" | ") if line.startswith("!") else line.split() for line in WORDS.strip().split("\n")))
print("-- Written by gen_yaml_reference.py from PyYAML %s: texts, and their values as JSON." % yaml.__version__)
print("return {")
for text in ["a: %s\n" % w for w in words] + DOCUMENTS:
    print("  { %s,\n    [==[%s]==] }," % (quote(text), json.dumps(reading(text)).replace('], ["', '],\n["')))
print("}")
sys.stdout.flush()
