"""Opens the definition files with a language server for Lua that reads LuaLS annotations (lua-language-server,
emmylua_ls) and prints what it completes, describes and complains of.

    accel-run host/tools/meta.lua FOLDER
    python spec/support/check_meta.py FOLDER lua-language-server
"""
import json
import os
import shutil
import sys
import tempfile
import time

from lua_server import Server

folder, command = os.path.abspath(sys.argv[1]), sys.argv[2:]
work = tempfile.mkdtemp()
shutil.copytree(folder, os.path.join(work, "meta"))
os.mkdir(os.path.join(work, "plain"))  # definition files are not checked themselves: the same without the mark
for name in os.listdir(folder):
    with open(os.path.join(folder, name)) as f, open(os.path.join(work, "plain", name), "w") as to:
        to.write(f.read().replace("---@meta", "--- was meta"))
server = Server(command, work)

HEAD = """local accelerate = require "accelerate"
local nn, tensor, optim = require "accelerate.nn", require "accelerate.tensor", require "accelerate.optim"
local accelerator = accelerate.Accelerator()
local x = tensor.ones(2, 3)
local model = nn.Linear(2, 3)
"""
CASES = [("nn.Lin", "Linear"), ("x:su", "sum"), ("x.sha", "shape"), ("x:sum():mea", "mean"),
         ("accelerator:back", "backward"), ("model:param", "parameters"), ("optim.Ad", "AdamW"),
         ("tensor.zer", "zeros"), ("nn.Linear(2, 3, { bi", "bias"),
         ("accelerate.Accelerator { mixed", "mixed_precision"),
         ("x:sum({ keep", "keepdim"), ("nn.functional.rel", "relu"), ("optim.lr_scheduler.Step", "StepLR")]
time.sleep(3)
failed = 0
for i, (typed, expected) in enumerate(CASES):
    path = server.opened("case%d.lua" % i, HEAD + typed)
    at = {"line": HEAD.count("\n"), "character": len(typed)}
    found, words = None, []
    for _ in range(10):
        found = server.ask("textDocument/completion", {"textDocument": {"uri": path}, "position": at})
        items = found["items"] if isinstance(found, dict) else found or []
        words = [item["label"].split("(")[0].strip("?= ") for item in items]
        if expected in words:
            break
        time.sleep(0.5)
    ok = expected in words
    failed += not ok
    print("%-40s %s" % (typed, expected if ok else "MISSING %s: %s" % (expected, words[:8])))
for typed, expected in (("nn.Linear", "in_features"), ("x:sum", "dim"), ("accelerator:backward", "loss")):
    path = server.opened("hover_%s.lua" % typed.replace(":", "_").replace(".", "_"), HEAD + typed + "()")
    found = server.ask("textDocument/hover", {"textDocument": {"uri": path},
                                       "position": {"line": HEAD.count("\n"), "character": len(typed) - 1}})
    text = json.dumps(found)
    failed += expected not in text
    print("hover %-34s %s %s" % (typed, "describes" if expected in text else "LACKS", expected))
complaints = {}
for name in sorted(os.listdir(folder)):  # the files themselves
    path = "file://" + os.path.join(work, "plain", name)
    complaints[path] = server.complaints(path, 5) or []
kinds = {}
for path, list_ in complaints.items():
    for d in list_:
        kinds.setdefault(str(d.get("code")), []).append("%s:%d: %s" % (os.path.basename(path),
                                                                       d["range"]["start"]["line"] + 1, d["message"]))
for kind in ("duplicate-doc-field", "missing-return", "unused", "redefined-local"):  # of definitions, these say nothing
    kinds.pop(kind, None)
for kind, list_ in sorted(kinds.items()):
    for text in list_:
        print("%s: %s" % (kind, text))
failed += len(kinds)
print("%d failed" % failed)
server.end()
shutil.rmtree(work)
sys.exit(failed > 0)
