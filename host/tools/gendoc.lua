-- Writes docs/reference/ops.md from the op table.
--
--   accel-run host/tools/gendoc.lua docs/reference      (what `make docs` does)
--
-- As a module it returns { ops_page = function() -> text }: spec/docs_spec.lua compares that with
-- the file.
local core = require "accelerate.core"
local markdown = require "host.tools.markdown"

local M = {}

local INTRODUCTION = [[
# Ops

*Written by `make docs` from the op table (`host/core/ops/ops.def`) and from what
`lua/accelerate/tensor` writes of its rows; edit those, not this page.*

Every op is a function of `accelerate.tensor` and a method of its first tensor: `tensor.sum(x, 1)`
is `x:sum(1)`. Arguments go by position in the order shown; those in brackets may be left out, and
the last argument may be a table that gives them by name:
`x:sum({ dim = { 1, 2 }, keepdim = true })`. An unknown name is an error that names the nearest one.

A dim counts from 1, and -1 is the last; so does a position in a dim. Integers stored in a tensor
(labels, indices) count from 0.

* **in place**: there is also a form with an underscore that writes into its first argument, as
  `x:add_(y)`.
* **gradient**: the op has a gradient, and gradients of gradients. An op put together from others
  (*of its parts*) has theirs; a view or a copy passes gradients through.
* **autocast**: what `tensor.autocast` does with floating-point inputs: *lower* casts them to the
  lower type, *float* computes in float32 and gives that, *widest* takes the widest type among them,
  *keep* leaves them alone. float64 is never touched, nor are the forms in place. An op put together
  from others that says *keep* has the policies of its parts.

  The policies are those of PyTorch's lists. Where its list for a CPU and its list for a GPU differ,
  an op runs lower, or in float32, when either says so, so that a model computes alike on both.
  Beyond them, functions whose results a half type holds badly run in float32, too: `mean`, `var`,
  `std`, `logsumexp`, `rms_norm`, roots, and the rest of the trigonometric functions and logarithms;
  and what writes one tensor into another takes the widest type instead of raising.

]]

-- What the kinds of ops.def are called on the page.
local KINDS = {
  T = "tensor", TN = "tensor or number", ["T*"] = "list of tensors", dim = "dim",
  ["dim+"] = "dim, or one past the last",
  dims = "dim or list of dims", pos = "position", ["pos+"] = "position", int = "integer",
  int2 = "integer or list of two",
  int3 = "integer or list of three",
  ints = "sizes", num = "number", bool = "boolean",
  dtype = "dtype", gen = "Generator", any = "a tensor or a list in its place",
}

local function kind_text(kind)
  if kind:find("|", 1, true) then return '"' .. kind:gsub("|", '" or "') .. '"' end
  return KINDS[kind] or error(("gendoc: the kind %q of ops.def has no text here"):format(kind), 0)
end

--- "x:T dim:dims? keepdim:bool=false -> values indices" as { "x", "[dim]", "[keepdim = false]" },
--- the arguments, and results.
local function parse(signature)
  local left, results = signature:match("^(.-)%s*%->%s*(.*)$")
  local arguments = {}
  for word in (left or signature):gmatch("%S+") do
    local name, rest = word:match("^([%w_]+):(.+)$")
    local kind, default = rest:match("^([^=]+)=(.+)$")
    kind = kind or rest
    local optional = default ~= nil or kind:sub(-1) == "?"
    kind = kind:gsub("%?$", "")
    arguments[#arguments + 1] = { name = name, kind = kind_text(kind), default = default,
      optional = optional }
  end
  return arguments, results
end

local function call_text(name, arguments)
  local parts = {}
  for i, argument in ipairs(arguments) do
    local text = argument.name .. (argument.default and " = " .. argument.default or "")
    parts[i] = argument.optional and "[" .. text .. "]" or text
  end
  return ("%s(%s)"):format(name, table.concat(parts, ", "))
end

local function facts(row)
  local list = {}
  if row.inplace then list[#list + 1] = "in place" end
  if row.differentiable then list[#list + 1] = "gradient"
  elseif row.form == "composite" then list[#list + 1] = "gradient of its parts" end
  list[#list + 1] = "autocast: " .. row.autocast
  return table.concat(list, " · ")
end

local FORMS = {
  both = "written in Lua, of ops", method = "written in Lua, of ops; a method only",
  ["function"] = "written in Lua, of ops; a function only", field = "a field",
  inner = "written in Lua, of ops; a function of that table",
}

-- A function that accelerate.tensor.define made.
local function composed_text(entry)
  local text, kinds = entry.usage or entry.name, {}
  if entry.signature then
    local arguments = parse(entry.signature)
    text = call_text(entry.name, arguments)
    for i, argument in ipairs(arguments) do kinds[i] = ("`%s` %s"):format(argument.name, argument.kind) end
  end
  local other_name = not (entry.signature or entry.usage)
  return ("## %s\n\n`%s`: %s\n\n%s%s"):format(entry.name, text, entry.summary,
    #kinds > 0 and table.concat(kinds, ", ") .. "  \n" or "",
    other_name and "" or FORMS[entry.form] .. "\n\n")
end

-- How a function of this usage is called as a method: "tensor.equal(a, b)" as "x:equal(b)".
local function usage_as_method(usage, name)
  if usage:find("^x[:.]") then return usage end
  local rest = usage:match("^[%w_.]+%([%w_]+,%s*(.*)%)$")
  return ("x:%s(%s)"):format(name, rest or "")
end

-- "x:sum([dim], [keepdim = false])": the first argument stands before the colon. A list has no
-- methods.
local function signature_as_method(signature, name)
  local arguments = parse(signature)
  if arguments[1].kind == KINDS["T*"] then return "tensor." .. call_text(name, arguments) end
  table.remove(arguments, 1)
  return "x:" .. call_text(name, arguments)
end

--- How each op is called as a method, by its name.
---@return table<string, { call: string, summary: string, of: string, field: boolean }> of: the op's
---  entry on the page
function M.methods()
  local map, aliases = {}, {}
  local function put(name, call, summary, of, field)
    map[name] = map[name] or { call = call, summary = summary, of = of or name, field = field or false }
  end
  for _, row in ipairs(core.ops()) do
    if not row.hidden then
      put(row.name, signature_as_method(row.signature, row.name), row.summary)
      if row.inplace then
        local name = row.name .. "_"
        put(name, signature_as_method(row.signature, name), ("`%s` in place"):format(row.name), row.name)
      end
    end
  end
  for _, entry in ipairs(require("accelerate.tensor.composed").list) do
    local name = entry.name
    if entry.form == "field" then put(name, "x." .. name, entry.summary, name, true)
    elseif entry.signature then put(name, signature_as_method(entry.signature, name), entry.summary)
    elseif entry.usage then put(name, usage_as_method(entry.usage, name), entry.summary)
    else aliases[#aliases + 1] = entry end
  end
  for _, entry in ipairs(aliases) do
    local of = map[entry.summary:match "another name of `([%w_]+)`"]
    if of then
      put(entry.name, (of.call:gsub("^([%w_]+[:.])[%w_]+", "%1" .. entry.name)), entry.summary)
    end
  end
  return map
end

--- The text of docs/reference/ops.md.
function M.ops_page()
  local rows = {}
  for _, row in ipairs(core.ops()) do
    if not row.hidden then rows[#rows + 1] = row end
  end
  for _, entry in ipairs(require("accelerate.tensor.composed").list) do
    rows[#rows + 1] = { name = entry.name, text = composed_text(entry) }
  end
  table.sort(rows, function(a, b) return a.name < b.name end)
  local out = { INTRODUCTION }
  for _, row in ipairs(rows) do
    if row.text then out[#out + 1] = row.text goto continue end
    local arguments, results = parse(row.signature)
    out[#out + 1] = ("## %s\n\n`%s`%s: %s\n\n"):format(row.name, call_text(row.name, arguments),
      results and " → " .. results:gsub("%s+", ", ") or "", row.summary)
    local kinds = {}
    for i, argument in ipairs(arguments) do kinds[i] = ("`%s` %s"):format(argument.name, argument.kind) end
    out[#out + 1] = table.concat(kinds, ", ") .. "  \n" .. facts(row) .. "\n\n"
    ::continue::
  end
  return markdown.fill((table.concat(out):gsub("\n+$", "\n")))
end

if arg and arg[0] and arg[0]:find("gendoc%.lua$") then
  local folder = arg[1] or error("usage: accel-run host/tools/gendoc.lua FOLDER", 0)
  local path = folder .. "/ops.md"
  local f = assert(io.open(path, "w"))
  f:write(M.ops_page())
  f:close()
  print("wrote " .. path)
end

return M
