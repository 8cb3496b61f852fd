-- Definitions of ops: the functions of tensor, and the class Tensor with its methods.
local annotations = require "host.tools.annotations"
local core = require "accelerate.core"
local pieces = require "host.tools.meta.pieces"
local public = require "host.tools.public"

local add, describe, is_name, remark, write_fields =
  pieces.add, pieces.describe, pieces.is_name, pieces.remark, pieces.write_fields

local M = {}

local TENSOR = "accelerate.Tensor"

-- What the kinds of ops.def are as types; pieces.lenient says why a whole number is `number` and a
-- tensor may be one.
local KINDS = {
  T = pieces.TENSOR_OR_NUMBER, TN = pieces.TENSOR_OR_NUMBER, ["T*"] = TENSOR .. "[]",
  dim = "number", ["dim+"] = "number", dims = "number|number[]", pos = "number", ["pos+"] = "number",
  int = "number",
  int2 = "number|number[]", int3 = "number|number[]", ints = "number|number[]", num = "number",
  bool = "boolean",
  dtype = "accelerate.DType", gen = "accelerate.Generator",
}

local function kind_type(kind)
  if kind:find("|", 1, true) then return '"' .. kind:gsub("|", '"|"') .. '"' end
  return KINDS[kind] or "any"
end

local function parse_signature(signature)
  local left, results = signature:match("^(.-)%s*%->%s*(.*)$")
  local arguments = {}
  for word in (left or signature):gmatch("%S+") do
    local name, rest = word:match("^([%w_]+):(.+)$")
    local kind, default = rest:match("^([^=]+)=(.+)$")
    kind = kind or rest
    arguments[#arguments + 1] = { name = is_name(name) and name or name .. "_",
      type = kind_type((kind:gsub("%?$", ""))), sizes = kind == "ints" or kind == "dims",
      default = default, optional = default ~= nil or kind:sub(-1) == "?" }
  end
  return arguments, results
end

local function result_types(results, fallback)
  local list = {}
  for name in (results or ""):gmatch("[%w_]+") do
    list[#list + 1] = { type = TENSOR, text = name, several = name == "parts" }
  end
  if #list == 0 then list[1] = { type = fallback, text = "" } end
  return list
end

-- The form with the optional arguments in a table, as an overload.
local function write_overload(out, arguments, first, returns)
  local positions, options = {}, {}
  for i = 1, #arguments do
    local a = arguments[i]
    if a.optional then options[#options + 1] = ("%s?: %s"):format(a.name, a.type)
    elseif i >= first then positions[#positions + 1] = ("%s: %s"):format(a.name, a.type) end
  end
  if #options == 0 then return end
  if first == 2 then table.insert(positions, 1, "self: " .. TENSOR) end
  positions[#positions + 1] = ("options?: { %s }"):format(table.concat(options, ", "))
  local types = {}
  for i, r in ipairs(returns) do types[i] = r.type .. (r.several and "..." or "") end
  add(out, ("---@overload fun(%s): %s"):format(table.concat(positions, ", "), table.concat(types, ", ")))
end

-- call: "tensor.sum", or "Tensor:sum", whose first argument is self.
function M.write_op(out, call, entry)
  local arguments, results = parse_signature(entry.signature)
  local first = call:find(":") and 2 or 1
  local returns = result_types(results, entry.row and TENSOR or "any")
  local names = {}
  describe(out, { entry.summary })
  for i = first, #arguments do
    local a = arguments[i]
    add(out, "---@param ", a.name, a.optional and "? " or " ", a.type, a.default
      and remark("default " .. a.default) or "")
    names[#names + 1] = a.name
  end
  if #names > 0 and arguments[#arguments].sizes then -- view(2, 3) and view({ 2, 3 }) are one
    add(out, "---@param ... any # further sizes or dims, and options")
    names[#names + 1] = "..."
  end
  for _, r in ipairs(returns) do
    add(out, "---@return ", r.type, r.several and " ..." or "", remark(r.text))
  end
  write_overload(out, arguments, first, returns)
  add(out, ("function %s(%s) end"):format(call, table.concat(names, ", ")))
  add(out, "")
end

-- name -> { name, signature, summary, row }
function M.all()
  local map = {}
  for _, row in ipairs(core.ops()) do
    if not row.hidden then
      map[row.name] = { name = row.name, signature = row.signature, summary = row.summary, row = true,
        inplace = row.inplace }
    end
  end
  for _, entry in ipairs(require("accelerate.tensor.composed").list) do
    map[entry.name] = map[entry.name]
      or { name = entry.name, signature = entry.signature, summary = entry.summary,
      form = entry.form, usage = entry.usage }
  end
  return map
end

--- Returns the names of accelerate.tensor: its members, and the functions that it loads when they
--- are first read.
function M.functions(ops)
  local there = {}
  for _, name in ipairs(public.members(require "accelerate.tensor")) do there[name] = true end
  for name, entry in pairs(ops) do
    if entry.form == "both" or entry.form == "function" then there[name] = true end
  end
  return public.sorted_names(there)
end

local OPERATORS = { "add", "sub", "mul", "div", "mod", "pow" }

-- Tensor's own class: its fields, the methods of ops, and the methods written in C.
function M.write_tensor(out, ops)
  local block = annotations.class({ "lua/accelerate/tensor.lua" }, "Tensor")
  local seen = {}
  describe(out, { "A tensor: elements of one type, in any number of dims." })
  add(out, "---@class ", TENSOR)
  write_fields(out, block, seen)
  add(out, "---@field [integer] ", TENSOR)
  for _, name in ipairs(OPERATORS) do
    add(out, ("---@operator %s(%s|number): %s"):format(name, TENSOR, TENSOR))
  end
  add(out, "---@operator unm: ", TENSOR)
  for _, name in ipairs(public.sorted_names(core._tensor_names())) do
    local op = ops[name] or ops[name:gsub("_$", "")]
    if op and op.form == "field" and not seen[name] then
      add(out, "---@field ", name, " ", TENSOR, remark(op.summary))
    elseif not op and not seen[name] then
      add(out, ("---@field %s fun(self: %s, ...: any): any"):format(name, TENSOR))
    end
    seen[name] = true
  end
  add(out, "local Tensor = {}")
  add(out, "")
  for _, name in ipairs(public.sorted_names(core._tensor_names())) do
    local op = ops[name] or ops[name:gsub("_$", "")]
    if op and op.signature and op.form ~= "field" then M.write_op(out, "Tensor:" .. name, op)
    elseif op and op.form ~= "field" then
      describe(out, { op.summary })
      add(out, "---@return any ...")
      add(out, ("function Tensor:%s(...) end"):format(name))
      add(out, "")
    end
  end
end

return M
