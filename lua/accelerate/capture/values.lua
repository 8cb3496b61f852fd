--- Arguments and results of what is recorded: tensors, plain values, and tables of these.
local core = require "accelerate.core"
local nested = require "accelerate.utils.nested"
local ordered = require "accelerate.utils.ordered"
local recording = require "accelerate.capture.recording"

local M = {}

local PLAIN = { number = true, string = true, boolean = true, ["nil"] = true }

--- Appends words that are different for different values to `words`: a tensor's say its type, shape
--- and device. Appends the tensors to `tensors` and where they stand to `paths`.
---@param value any
---@param path string where `value` stands: "argument 2"
---@param words string[]
---@param tensors accelerate.Tensor[]
---@param paths string[]
---@return boolean whether the value is made of tensors and plain values alone
---@return string? path of the first other value
---@return any other
function M.describe(value, path, words, tensors, paths)
  if core.is_tensor(value) then
    words[#words + 1] = core.tensor_key(value)
    tensors[#tensors + 1], paths[#paths + 1] = value, path
  elseif PLAIN[type(value)] then
    words[#words + 1] = recording.word(value)
  elseif nested.is_container(value) then
    words[#words + 1] = "{"
    for key, inner in ordered.pairs(value) do
      words[#words + 1] = tostring(key) .. "="
      local known, where, other = M.describe(inner, nested.extend(path, key), words, tensors, paths)
      if not known then return false, where, other end
    end
    words[#words + 1] = "}"
  else return false, path, value end
  return true
end

local function map(value, path, fn, other)
  if core.is_tensor(value) then return fn(value, path) end
  if nested.is_container(value) then
    local copy = nested.empty_like(value)
    for key, inner in ordered.pairs(value) do
      copy[key] = map(inner, nested.extend(path, key), fn, other)
    end
    return copy
  end
  if other then other(value, path) end
  return value
end

--- Returns copies of the values list[1] to list[n] around fn(tensor, path) for each tensor.
---@param list { n: integer }
---@param what string the word of paths: "argument"
---@param fn fun(t: accelerate.Tensor, path: string): accelerate.Tensor
---@param other fun(value: any, path: string)? called for each plain value
---@return { n: integer }
function M.map(list, what, fn, other)
  local copies = { n = list.n }
  for i = 1, list.n do copies[i] = map(list[i], ("%s %d"):format(what, i), fn, other) end
  return copies
end

return M
