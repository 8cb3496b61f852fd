"""Opens correct programs beside the definition files in a language server for Lua and prints each complaint.

    accel-run host/tools/meta.lua FOLDER
    python spec/support/check_programs.py FOLDER "emmylua_ls" PROGRAM.lua...
"""
import os
import shutil
import sys
import tempfile

from lua_server import Server

# Remarks about style, which the definitions have no part in.
STYLE = {"unused", "redefined-local", "unnecessary-if", "preferred-local-alias", "code-style-check"}

folder, command, programs = os.path.abspath(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
work = tempfile.mkdtemp()
shutil.copytree(folder, os.path.join(work, "meta"))
texts = {}
for program in programs:
    name = program.replace("/", "_")
    with open(program) as f:
        texts[name] = f.read()
    with open(os.path.join(work, name), "w") as f:
        f.write(texts[name])
server = Server(command, work)
count = 0
for name, text in sorted(texts.items()):
    found = server.complaints(server.opened(name, text))
    if found is None:
        print("%s: no answer" % name)
        count += 1
    lines = {"%s:%d: %s: %s" % (name, d["range"]["start"]["line"] + 1, d.get("code"), d["message"])
             for d in found or [] if d.get("code") not in STYLE}  # a set: servers publish and answer the same
    count += len(lines)
    for line in sorted(lines):
        print(line)
print("%d complaints in %d programs" % (count, len(texts)))
server.process.kill()
shutil.rmtree(work)
sys.exit(count > 0)
