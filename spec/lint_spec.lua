-- The laws that `make lint` holds: the tree keeps those that are on, and each rule sees a file that
-- breaks it.
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local lint = require "host.tools.lint"

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

-- Runs one rule over a tree of these files (`copied`: files of ours that it needs).  It must find
-- these places ("path:line"), the first of them with a message that has `message` in it.
local function finds(rule, places, files, message, copied)
  local got, first = {}, nil
  host.in_folder(function(root)
    for _, path in ipairs(copied or {}) do
      os.execute(("cp --parents -p '%s' '%s'"):format(path, root))
    end
    for path, text in pairs(files) do
      os.execute(("mkdir -p '%s/%s'"):format(root, path:match "^(.*)/" or "."))
      disk.write(root .. "/" .. path, text)
    end
    for _, f in ipairs((lint.run { root = root, rules = { [rule] = true } })) do
      got[#got + 1] = f.path .. ":" .. f.line
      first = first or f.message
    end
  end)
  assert.are.same(places, got)
  if message then assert.is_truthy(first:find(message, 1, true), first) end
end

local sixty = ("x"):rep(60)
local body = "{\n  one();\n  two();\n  three();\n  four();\n}\n"

describe("lint", function()
  it("finds nothing in the tree", function()
    if not exists "host/core/core.h" then return pending "needs the sources" end
    local rules, broken = {}, {}
    for _, rule in ipairs(lint.rules) do rules[rule.name] = rule.enabled or nil end
    rules.format = nil -- takes longer than all others together; make lint has it
    for _, f in ipairs((lint.run { rules = rules })) do
      if not f.warning then
        broken[#broken + 1] = ("%s:%d: %s: %s"):format(f.path, f.line, f.rule, f.message)
      end
    end
    assert.are.same({}, broken)
  end)

  it("has a case below for every rule", function()
    local file = assert(io.open "spec/lint_spec.lua")
    local text = file:read "*a"
    file:close()
    for _, rule in ipairs(lint.rules) do
      assert.is_truthy(text:find(('finds("%s", { "'):format(rule.name), 1, true), rule.name)
    end
  end)

  it("prints the place and ends with status 1 when a law is broken, else with 0", function()
    host.in_folder(function(root)
      local arguments = { "host/tools/lint.lua", "--root", root, "--rule", "globals" }
      disk.write(root .. "/a.lua", "")
      os.execute(("mkdir '%s/lua'"):format(root))
      disk.write(root .. "/lua/a.lua", "local a = 1\nreturn a\n")
      local status, out = host.run(arguments)
      assert.are.same({ 0, "lint: 2 files, 0 broken\n" }, { status, out })
      disk.write(root .. "/lua/a.lua", "local a = 1\nb = a\n")
      status, out = host.run(arguments)
      assert.are.same({ 1, "lua/a.lua:2: globals: sets the global b\nlint: 2 files, 1 broken\n" },
        { status, out })
    end)
    local status, _, err = host.run { "host/tools/lint.lua", "--rule", "nothing" }
    assert.are.same({ 2, "lint: there is no rule nothing (--list names them)\n" }, { status, err })
  end)

  it("gives code 110 columns and comments 100, whatever their bytes", function()
    local code, comment = ("int a = %s;\n"):format(("1"):rep(101)), ("/* %s */\n"):format(("c"):rep(94))
    finds("width-c", {}, { ["a.c"] = code .. comment })
    finds("width-c", { "a.c:1", "a.c:3" }, { ["a.c"] = " " .. code .. "/* short\n  " .. comment:sub(2) },
      "111 columns")
    finds("width-lua", {}, { ["a.lua"] = ("local s = '%s'\n"):format(("é"):rep(98)) })
    finds("width-lua", { "a.lua:1", "a.lua:2" },
      { ["a.lua"] = ("local s = '%s'\n--%s\n"):format(("é"):rep(99), ("c"):rep(99)) })
  end)

  it("gives tables, Makefiles, scripts and Python 120 columns", function()
    local wide = sixty .. sixty .. "y\n"
    finds("width-def", { "host/a.def:2" }, { ["host/a.def"] = sixty .. sixty .. "\n" .. wide })
    finds("width-make", { "Makefile:1" }, { Makefile = wide })
    finds("width-shell", { "run:2" }, { run = "#!/bin/sh\n" .. wide })
    finds("width-python", { "a.py:1" }, { ["a.py"] = wide })
  end)

  it("gives guides 110 columns where a line can be broken", function()
    local words, wide = ("word "):rep(21) .. "words", ("x"):rep(111)
    finds("width-text", {}, { ["a.md"] = words .. "\n" .. wide .. "\n# " .. words .. " more\n| " .. words ..
      " more |\n* `" .. wide .. "`\n    " .. words .. " code\n```\n" .. words .. " a word\n```\n" ..
      "[a " .. words .. "](b.md)\n", })
    finds("width-text", { "a.md:1", "a.md:2", "a.md:4", "a.md:7" },
      { ["a.md"] = words .. " more\n* `" .. wide ..
      "` x\n```lua\nf(" .. words .. " more)\n```\n```\n" .. words .. " and two more\n```\n" }, "115 columns")
  end)

  it("leaves out what a program wrote", function()
    finds("width-lua", {}, { ["a.lua"] = "-- Written by gen_a.py with NumPy.\nlocal s = '" .. sixty ..
      sixty .. "'\n" })
  end)

  it("wants C as make fmt writes it", function()
    if not exists ".clang-format" then return pending "needs the sources" end
    local there = os.execute "clang-format-14 --version >/dev/null 2>&1" -- true or 0, by the version of Lua
    if there ~= true and there ~= 0 then return pending "needs clang-format 14" end
    finds("format", { "bad.c:1" }, {
      ["bad.c"] = "int f( void ) {return 1 ;}\n", ["good.c"] = "int f(void) { return 1; }\n",
      ["broken_by_hand.c"] = 'char a[] = "one; "\n           "and two words more";\n',
    }, "make fmt", { ".clang-format", "host/tools/format", "host/tools/comments.lua",
      "host/tools/lua_lines.lua", "host/tools/lua_tokens.lua" })
  end)

  it("keeps the ground floor of the core below all else", function()
    finds("ground", { "host/core/storage.c:3", "host/plugin.h:4" }, {
      ["host/plugin.h"] = "void ax_far(int n);\nstatic inline void ax_near(int n)\n{\n  ax_far(n);\n}\n",
      ["host/core/storage.c"] = "void ax_own(void)\n{\n  ax_far(1);\n  ax_near(2);\n  ax_own();\n}\n",
      ["host/core/tensor.c"] = "void ax_far(int n)\n{\n  ax_far(n);\n}\n",
    }, "calls ax_far, which is above the ground floor")
  end)

  it("keeps the rooms of C apart", function()
    local files = {
      ["host/ax.h"] = "", ["host/plugin.h"] = "", ["host/dist.h"] = "", ["host/core/core.h"] = "",
      ["host/core/ops/a.def"] = "",
      ["host/core/ops/pool.h"] = "", ["host/text/a.h"] = "",
      ["kernels/order.h"] = "", ["kernels/cpu/cpu.h"] = "",
    }
    local function with(path, text)
      local all = { [path] = text }
      for name, content in pairs(files) do all[name] = content end
      return all
    end
    finds("layers", {}, with("kernels/cpu/a.c",
      '#include "cpu.h"\n#include "order.h"\n#include "plugin.h"\n#include "dist.h"\n' ..
        '#include "core/ops/a.def"\n#include "core/ops/pool.h"\n'))
    finds("layers", { "kernels/cpu/a.c:2" },
      with("kernels/cpu/a.c", '#include <math.h>\n#include "core/core.h"\n'), "plugin.h")
    finds("layers", { "kernels/cpu/a.c:1" }, with("kernels/cpu/a.c", '#include "ax.h"\n'), "plugin.h")
    finds("layers", { "kernels/cuda/a.cu:1" }, with("kernels/cuda/a.cu", '#include "../cpu/cpu.h"\n'),
      "its own room")
    finds("layers", { "host/core/a.c:1", "host/core/a.c:2" },
      with("host/core/a.c", '#include <lua.h>\n#include "order.h"\n#include "core/core.h"\n'),
      "neither Lua nor a backend")
    finds("layers", { "host/bind/a.c:1" }, with("host/bind/a.c", '#include "order.h"\n'), "vtable")
    finds("core-private", { "host/bind/a.c:1" },
      with("host/bind/a.c", '#include "core/core.h"\n#include "core/ops/a.def"\n'), "the core's own")
    finds("layers", { "host/text/a.c:1" },
      with("host/text/a.c", '#include <lua.h>\n#include "ax.h"\n'), "the core's insides")
    finds("core-private", { "host/bind/a.c:1" },
      with("host/bind/a.c", '#include "text/a.h"\n'), "the tokenizers' own")
  end)

  it("keeps the rooms of Lua apart", function()
    finds("requires", { "lua/accelerate/data/loader.lua:2" }, {
      ["lua/accelerate/data/loader.lua"] =
        'local core = require "accelerate.core"\nlocal x = require("accelerate.data_loader.skip")\n',
      ["lua/accelerate/data_loader/skip.lua"] =
        'local loader = require "accelerate.data.loader" -- require "accelerate.nn"\n',
    }, "data requires accelerate.data_loader.skip")
    finds("requires", { "lua/accelerate/nn/module.lua:1" }, {
      ["lua/accelerate/nn/module.lua"] = 'local a = require "accelerate.accelerator"\n',
    }, "nn requires accelerate.accelerator")
    finds("requires", { "lua/accelerate/cellar/wine.lua:1" }, {
      ["lua/accelerate/cellar/wine.lua"] = 'local core = require "accelerate.core"\n',
    }, "is new")
  end)

  it("finds circles of requires, but for those inside a room", function()
    finds("circles", { "lua/accelerate/a.lua:1", "lua/accelerate/b.lua:1", "lua/accelerate/c.lua:2" }, {
      ["lua/accelerate/a.lua"] = 'return require "accelerate.b"\n',
      ["lua/accelerate/b.lua"] = 'return require "accelerate.c"\n',
      ["lua/accelerate/c.lua"] = 'local function later()\n  return require("accelerate.a")\nend\n',
    }, "accelerate.a -> accelerate.b -> accelerate.c -> accelerate.a")
    finds("circles", {}, {
      ["lua/accelerate/d/a.lua"] = 'return require "accelerate.d.b"\n',
      ["lua/accelerate/d/b.lua"] = 'return require "accelerate.d.a"\n',
    })
  end)

  it("finds names of files that are not there", function()
    local real = { ["host/core/io/csv.c"] = "#include <zlib.h>\n", ["lua/a.lua"] = "" }
    for path, text in pairs {
      ["host/a.c"] = "/* As csv.c, io/csv.c, host/core/io/csv.c, zlib.h and llm.c do. */\nint n = s.c; " ..
        "/* infer.c */\n",
      ["b.lua"] = "-- a.lua, and train.lua of a user's\nlocal s = 'nothing.lua' -- transforms_of.lua\n",
      ["README.md"] = "Look at `lua/a.lua`.\nAnd at `lua/b.lua`.\n",
      ["host/t.def"] = "/* a.lua */\n/* core/csv.c */\n",
    } do
      local files = { [path] = text }
      for name, content in pairs(real) do files[name] = content end
      finds("names", { path .. ":2" }, files, "there is no such file")
    end
    finds("names", { "a.lua:1" }, { ["a.lua"] = "-- b.lua\n" }, "b.lua")
  end)

  it("finds functions that two files define alike", function()
    local spaced = body:gsub("two%(%);", "two( );  /* why */"):gsub("%( %)", "()")
    finds("twins", { "host/b.c:3" }, {
      ["host/a.c"] = "static int f(int x)\n" .. body,
      ["host/b.c"] = "int y;\n\nstatic int g(int x,\n             int z)\n" .. spaced,
    }, "g is also f of host/a.c:1")
    finds("twins", {}, { ["host/a.c"] = "static int f(int x)\n" .. body .. "static int g(int x)\n" .. body })
    finds("twins", {}, {
      ["host/a.c"] = "int f(int x)\n{\n  one();\n  two();\n  three();\n}\n",
      ["host/b.c"] = "int f(int x)\n{\n  one();\n  two();\n  three();\n}\n",
    })
    local lua = "  one()\n  two()\n  three()\n\n  four()\nend\n"
    finds("twins", { "lua/b.lua:1" },
      { ["lua/a.lua"] = "local function f()\n" .. lua, ["lua/b.lua"] = "function M.g()\n" .. lua },
      "M.g is also f of lua/a.lua:1")
  end)

  it("finds globals, wherever a function is", function()
    finds("globals", { "lua/a.lua:3", "lua/a.lua:6", "lua/a.lua:6" }, {
      ["lua/a.lua"] = "local M = {}\nfunction M.f(a)\n  count = a\n  return function()\n    local x = " ..
        "1\n    return x + math.abs(cuont) + nothing\n  end\nend\n",
    }, "sets the global count")
    finds("globals", {}, { ["spec/a_spec.lua"] = "describe('x', function() it('y', function() " ..
      "assert.is_true(true) end) end)\n" })
    finds("globals", { "lua/a.lua:1" }, { ["lua/a.lua"] = "describe('x')\n" }, "reads the global describe")
    finds("globals", { "lua/a.lua:2" }, { ["lua/a.lua"] = "local a = 1\nlocal = 2\n" }, "does not compile")
  end)

  it("finds calls that end the process", function()
    finds("calls", { "host/core/a.c:2", "host/core/a.c:3", "host/core/a.c:4" }, {
      ["host/core/a.c"] = "static_assert(1, \"assert(0)\"); /* abort() */\nabort();\nif (x) exit " ..
        "(1);\nlongjmp(j, 1);\n" ..
        "api->abort(x);\n_exit(0);\nint abort;\n",
      ["host/main.c"] = "exit(0);\n",
    }, "calls abort")
  end)

  it("tells headers from template bodies", function()
    local guarded = "/* a */\n#ifndef AX_A_H\n#define AX_A_H\nint a;\n#endif\n"
    finds("guards", { "kernels/cpu/b.h:1", "kernels/cpu/d.inc:1" }, {
      ["kernels/cpu/a.h"] = guarded, ["kernels/cpu/b.h"] = "int b;\n", ["kernels/cpu/c.inc"] = "int c;\n",
      ["kernels/cpu/d.inc"] = guarded,
    }, "a template body ends in .inc")
  end)

  it("finds attributes of ops that are read by place", function()
    finds("attributes", { "host/core/ops/a.c:1", "host/core/ops/a.c:2", "host/core/ops/a.c:3" }, {
      ["host/core/ops/a.c"] =
        "int64_t d = q->a.integers[0]; /* a->numbers[0] */\ndouble v = A->numbers [k];\n" ..
        "ax_attrs a = { .integers = { 1 } };\nint64_t integers[4], n = integers[0];\nf = a->narrow.dim;\n" ..
        "use(call->a->numbers);\n",
      ["host/bind/args.c"] = "a->integers[p->slot] = n;\n",
    }, "its place in `integers`")
  end)

  it("lets a row's own files alone ask which row they have", function()
    local def = 'OP(ADD, add, "a:T, b:T", POINTWISE, both, plus, 0, KEEP, 0, "a + b, not (a, b)")\n' ..
      'OP(MUL, mul, "a:T b:T", POINTWISE, both, times, 0, KEEP, INPLACE,\n   "a * b", FLOPS(one) JOIN(mul))\n'
    local asks = "\nint f(ax_op op)\n{\n  switch (op) {\n  case AX_OP_ADD: return 1;\n  }\n" ..
      "  return op == AX_OP_MUL; /* != AX_OP_ADD */\n}\n"
    local function at_home(text) return text .. asks end
    finds("rows", { "host/core/ops/z.c:5", "host/core/ops/z.c:7", "kernels/cpu/z.c:7" }, {
      ["host/core/ops/a.def"] = def,
      ["host/core/ops/rule.c"] = at_home "\nax_status ax_infer_both(ax_infer *q)\n{\n}\n",
      ["host/core/ops/gradients.c"] = at_home "\nRULE(plus)\n{\n}\n\nint64_t ax_flops_one(void)\n{\n}\n",
      ["kernels/cpu/all.c"] =
        at_home "\nax_status ax_cpu_add(void)\n{\n}\n\nax_status ax_cpu_mul(void)\n{\n}\n",
      ["kernels/cpu/z.c"] = "\nax_status ax_cpu_add(void)\n{\n  ax_cpu_mul();\n" ..
        asks:match "(  switch.-AX_OP_ADD.-)  }" ..
        "  if (AX_OP_MUL == op) n++;\n",
      ["host/core/ops/z.c"] = asks .. "int runs = ax_run(AX_OP_ADD) == 0 && op != AX_OP_COUNT;\n",
    }, "asks for the row ADD")
    finds("rows", { "host/a.c:1" }, {
      ["host/a.c"] = "bool b = row->infer == ax_infer_both || f == ax_infer_both(q);\n",
    }, "asks whose rule ax_infer_both is")
    finds("rows", { "host/b.c:1", "host/b.c:2" }, {
      ["host/core/ops/a.def"] = def,
      ["host/b.c"] = 'if (strcmp(ax_ops[op].name, "add") == 0) n++;\nif (!strncmp(row->name, "mul", ' ..
        '3)) n++;\n' ..
        'if (strcmp(row->name, "addition") == 0 || strcmp(ax_ops[op].name, name) == 0) n++;\n',
    }, "asks for the row named add")
  end)

  it("finds short pieces of a string that have a line of their own", function()
    finds("pieces", { "a.c:2", "b.lua:2", "b.lua:4" }, {
      ["a.c"] = 'f("some words and some more of them, and then "\n  "a %d\\n", n);\n',
      ["b.lua"] = "f('some words ' ..\n  'are few', 1)\nf('some words '\n  .. 'are few')\n",
    }, 'the piece "a %d\\n" of a string is too short')
    finds("pieces", {}, {
      ["a.c"] = 'f("some words "\n  "are worth a line of their own",\n  "x");\nf("a\\n"\n  "b\\n");\n' ..
        'f("%" PRId64\n  "x", "y"\n  "z" PRId64);\n',
      ["b.lua"] = "f('some words ' ..\n  'are worth a line of their own',\n  'x')\nf('a\\n' ..\n" ..
        "  'b')\nf('a ' ..\n  'b ' .. c)\n",
    })
  end)

  it("finds lines that begin with two dots", function()
    finds("joins", { "a.lua:2" }, {
      ["a.lua"] = "local a = b\n  .. c\nlocal d = e ..\n  f\nlocal g = [[\n.. h]]\n" ..
        "return function(i,\n  ...) end\n",
    }, "which ends the line before")
  end)

  it("finds titles of parts in another form", function()
    finds("banners", { "a.c:1", "a.c:3", "b.lua:1" }, {
      ["a.c"] = "/* ---- reading ---- */\n/* ---- writing */\n/* -- ends */\n/* --no: an option */\n",
      ["b.lua"] = "-- ---- reading ---------\n-- ---- writing\n--- An annotation - with a dash.\n",
    }, "without dashes behind it")
  end)

  it("finds variables that only loops use and that are declared before them", function()
    finds("loops", { "host/a.c:3", "host/a.c:3", "host/a.c:4", "host/a.c:5" }, {
      ["host/a.c"] = "int f(void)\n{\n  int i, sum = 0, j;\n  const node *at;\n  size_t k, m;\n" ..
        "  for (i = 0; i < 3; i++)\n    for (j = 0; j < i; j++) sum += x.k;\n" ..
        "  for (at = first; at; at = at->next) {\n    if (at->i) sum++;\n    else sum--;\n  }\n" ..
        "  AX_SIMD\n  for (k = 0; k < 4; k++) sum++;\n  m = 3;\n  for (m = 0; m < 4; m++) sum++;\n" ..
        "  return sum;\n}\n",
    }, "i is used in loops alone: for (int i = ...")
    finds("loops", {}, {
      ["host/a.c"] = "int f(void)\n{\n  int i, j, k = 0, n;\n  int64_t m;\n" ..
        "  for (i = 0; i < 3; i++) k++;\n  if (i == 3) k++;\n  for (j = k; j--;) k++;\n  n = j;\n" ..
        "  for (n = 0, m = 0; n < 3; n++) m++;\n  for (int r = 0; r < 3; r++) k++;\n  return k + j;\n}\n",
    })
  end)

  it("finds items of one bracket at several depths", function()
    finds("depth", { "a.lua:3", "a.lua:7" }, {
      ["a.lua"] = "local a = {\n  b = 1, c = 2,\n    d = 3,\n}\nlocal e = f(1,\n  2,\n    3)\n",
    }, "an item at column 5; those before it in its bracket are at 3")
    finds("depth", {}, {
      ["a.lua"] = "local a = {\n  b = 1 +\n    2, c = f(function()\n    local d,\n      e = 1, 2\n" ..
        "  end, g,\n    h),\n  i = 4,\n}\n",
    })
  end)

  it("gives a file 800 lines, and a warning above 500", function()
    finds("size", { "a.lua:801" }, { ["a.lua"] = ("\n"):rep(801), ["b.lua"] = ("\n"):rep(500) },
      "at most 800")
    host.in_folder(function(root)
      disk.write(root .. "/a.lua", ("\n"):rep(501))
      local found = lint.run { root = root, rules = { size = true } }
      assert.are.same({ 1, true }, { #found, found[1].warning })
    end)
  end)

  it("knows the words to avoid", function()
    finds("words", { "a.c:1", "b.md:2" },
      { ["a.c"] = "/* The rank is told. */\nint told;\n", ["b.md"] = "Good.\nMemory lies on\n" }, "told")
    finds("same", { "a.lua:1", "b.c:2" }, {
      ["a.lua"] = "--- The same as x.\nlocal a\n--- Returns x.\n--- The same holds here.\n",
      ["b.c"] = "int a;\n/* The same, twice. */\n",
    }, "The same")
    finds("begins", { "lua/a.lua:1", "lua/a.lua:4" }, {
      ["lua/a.lua"] = "--- Whether x is y.\nfunction M.a() end\n\n  --- How it is.\n  ---@return x\n" ..
        "  local function b() end\n--- What there is.\nlocal c = {}\n--- Returns x.\nfunction M.d() end\n",
    }, "Whether")
  end)
end)
