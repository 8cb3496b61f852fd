"""Opens correct programs beside the definition files in a language server for Lua and prints each complaint.

    accel-run host/tools/meta.lua FOLDER
    python spec/support/check_programs.py FOLDER "emmylua_ls" PROGRAM.lua...

A second server sees the programs beside definitions that say nothing: every module is `any`. A complaint that it has
too comes from the server's own guesses (an empty list that cannot grow, say); it is counted apart.
"""
import os
import re
import shutil
import sys
import tempfile

from lua_server import Server

# Remarks about style, which the definitions have no part in.
STYLE = {"unused", "redefined-local", "unnecessary-if", "preferred-local-alias", "code-style-check"}

# What the server guesses of a literal list (nothing else may be added to it) and of results that it
# does not know (`any ...`, which it then refuses as an argument): no definition changes either.
GUESSES = re.compile(r"^Cannot assign `.*` to `\(.*\)\?`|reference of `table` for `\[#|found `any \.\.\.`")


def complaints(command, folder, texts):
    """The complaints about each of `texts` (name -> program), with the definitions of `folder`."""
    work = tempfile.mkdtemp()
    shutil.copytree(folder, os.path.join(work, "meta"))
    for name, text in texts.items():
        with open(os.path.join(work, name), "w") as f:
            f.write(text)
    server = Server(command, work)
    found = set()  # a set: servers publish and answer the same
    for name, text in sorted(texts.items()):
        answer = server.complaints(server.opened(name, text))
        if answer is None:
            found.add((name, 0, "no answer", ""))
        found |= {(name, d["range"]["start"]["line"] + 1, d.get("code"), d["message"])
                  for d in answer or [] if d.get("code") not in STYLE}
    server.end()
    shutil.rmtree(work)
    return found


def silent(folder):
    """A folder with a definition of each module of `folder` that says nothing about it."""
    made = tempfile.mkdtemp()
    for name in os.listdir(folder):
        with open(os.path.join(folder, name)) as f:
            module = re.match(r"---@meta +([\w.]+)", f.read())
        if module:
            with open(os.path.join(made, name), "w") as f:
                f.write("---@meta %s\n---@type any\nlocal M\nreturn M\n" % module[1])
    return made


folder, command, programs = os.path.abspath(sys.argv[1]), sys.argv[2].split(), sys.argv[3:]
texts = {}
for program in programs:
    with open(program) as f:
        texts[program.replace("/", "_")] = f.read()
empty = silent(folder)
theirs = complaints(command, empty, texts)
shutil.rmtree(empty)
at_all = complaints(command, folder, texts)
# By place and kind: the words differ where the server names what it guessed.
places = {c[:3] for c in theirs}
ours = sorted(c for c in at_all if c[:3] not in places and not GUESSES.search(c[3]))
for name, line, code, message in ours:
    print("%s:%d: %s: %s" % (name, line, code, message))
print("%d complaints in %d programs, and %d of the server's own" % (len(ours), len(texts), len(at_all) - len(ours)))
sys.exit(len(ours) > 0)
