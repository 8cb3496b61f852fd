--- Checks a DeepSpeed configuration against the table of keys.
local keys = require "accelerate.config.deepspeed.keys"
local lists = require "accelerate.utils.lists"
local options = require "accelerate.utils.options"
local ordered = require "accelerate.utils.ordered"

local M = {}

local function whole(least)
  return function(value) return type(value) == "number" and value % 1 == 0 and value >= least end
end

local function of_type(name) return function(value) return type(value) == name end end

local function one_of(...)
  local set = {}
  for _, word in ipairs { ... } do set[word] = true end
  return function(value) return set[value] == true end
end

-- A table, and no object.
local function is_plain(value) return type(value) == "table" and getmetatable(value) == nil end

-- DeepSpeed's names of types, and ours.
M.DTYPES = { fp32 = "float32", float32 = "float32", float = "float32", ["torch.float32"] = "float32",
  fp16 = "float16", float16 = "float16", half = "float16", ["torch.float16"] = "float16",
  bf16 = "bfloat16", bfloat16 = "bfloat16", ["torch.bfloat16"] = "bfloat16" }

-- Types of values: the test, and what is expected.
local KINDS = {
  count = { whole(1), "a whole number of at least 1" },
  size = { whole(0), "a whole number of at least 0" },
  stage = { one_of(0, 1, 2, 3), "0, 1, 2 or 3" },
  least0 = { function(value) return type(value) == "number" and value >= 0 and value < math.huge end,
    "a number of at least 0" },
  number = { of_type "number", "a number" },
  boolean = { of_type "boolean", "true or false" },
  text = { of_type "string", "a text" },
  list = { function(value) return is_plain(value) and (value[1] ~= nil or next(value) == nil) end,
    "a list" },
  open = { function() return true end, "a value" },
  map = { function(value) return is_plain(value) and value[1] == nil end, "a map of keys" },
  any = { function(value) return type(value) ~= "table" or value[1] ~= nil end, "a value" },
  device = { one_of("none", "cpu", "nvme"), "none, cpu or nvme" },
  dtype = { function(value) return M.DTYPES[value] ~= nil end, "fp32, fp16 or bf16" },
}

local MOST_NAME = 64 -- letters of a key that may be a misspelt one

-- The names that can stand in a map, for suggestions.
local function siblings(prefix)
  local list = {}
  for _, set in ipairs { keys.all, keys.maps } do
    for key in pairs(set) do
      if key:sub(1, #prefix) == prefix and not key:find(".", #prefix + 1, true) then
        list[#list + 1] = key:sub(#prefix + 1)
      end
    end
  end
  table.sort(list)
  return list
end

local function unknown(prefix, key)
  local near = #tostring(key) < MOST_NAME and options.nearest(tostring(key), siblings(prefix))
  return ("there is no such key%s"):format(near and ("; did you mean %s%s?"):format(prefix, near) or "")
end

--- Returns what is wrong with the type of a value, or nil.
---@param entry accelerate.DeepSpeedKey
---@param value any
---@return string?
function M.fault(entry, value)
  local kind = KINDS[entry.kind]
  if entry.auto and value == "auto" or kind[1](value) then return nil end
  local note = ""
  if value == "auto" then note = "; nothing in a run says what it should be"
  elseif type(value) == "string" and kind[1](tonumber(value)) then note = ", a text: take the quotes away" end
  return ("expected %s%s, got %s%s"):format(kind[2], entry.auto and " or 'auto'" or "", options.show(value),
    note)
end

-- Whether the switch of a block is on. tensor_parallel's is a size.
local function is_on(block, value)
  if not block.switch then return true end
  if type(value) ~= "table" then return value ~= false end
  local switch = value[block.switch]
  return switch ~= nil and switch ~= false and switch ~= 0 and switch ~= 1
end

local function check_keys(found, path, block, value)
  local known = lists.set(block.keys)
  for _, key in ipairs(ordered.sorted_keys(value)) do
    if not known[key] then
      local near = #tostring(key) < MOST_NAME and options.nearest(tostring(key), block.keys)
      found.problem(path .. "." .. tostring(key), ("there is no such key%s"):format(near
        and ("; did you mean %s.%s?"):format(path, near) or ""))
    end
  end
end

local function check_block(found, path, block, value)
  if type(value) == "table" and not block.open then check_keys(found, path, block, value) end
  if not is_on(block, value) then return end
  if block.use == "idle" then return found.idle(path, block.why) end
  found.problem(path, ("it is not there: %s"):format(block.why))
end

local function check_value(found, path, entry, value)
  local fault = M.fault(entry, value)
  if fault then return found.problem(path, fault) end
  if entry.use == "done" or value == entry.harmless or value == "auto" then return end
  if entry.use == "idle" then return found.idle(path, entry.why) end
  found.problem(path, ("%s is not there: %s"):format(type(value) == "table" and "it" or options.show(value),
    entry.why))
end

local function walk(found, map, prefix)
  for _, key in ipairs(ordered.sorted_keys(map)) do
    local path, value = prefix .. tostring(key), map[key]
    local entry = keys.all[path]
    if entry and entry.kind == "block" then check_block(found, path, entry, value)
    elseif entry then check_value(found, path, entry, value)
    elseif not keys.maps[path] then found.problem(path, unknown(prefix, key))
    elseif not is_plain(value) then
      found.problem(path, "expected a map of keys, got " .. options.show(value))
    else walk(found, value, path .. ".") end
  end
end

--- Walks a configuration. Returns the lines for what cannot be taken, each with its place, and the
--- keys that have no effect, in order, with the reason.
---@param hf accelerate.HfDeepSpeedConfig
---@return string[] problems
---@return { key: string, why: string }[] idle
function M.walk(hf)
  local problems, idle = {}, {}
  walk({
    problem = function(path, text)
      problems[#problems + 1] = ("%s: %s: %s"):format(hf:_where(path), path, text)
    end,
    idle = function(path, why) idle[#idle + 1] = { key = path, why = why } end,
  }, hf.config, "")
  return problems, idle
end

local MOST_LINES, MOST_LETTERS = 12, 240 -- of a message, for files that are none of DeepSpeed's

--- Returns the text of a message with one line for each problem.
---@param head string
---@param problems string[]
---@return string
function M.message(head, problems)
  local lines = { head .. ":" }
  for i = 1, math.min(#problems, MOST_LINES) do
    local line = problems[i]
    lines[i + 1] = "  " .. (#line > MOST_LETTERS and line:sub(1, MOST_LETTERS) .. " ..." or line)
  end
  if #problems > MOST_LINES then lines[#lines + 1] = ("  and %d more"):format(#problems - MOST_LINES) end
  return table.concat(lines, "\n")
end

--- Returns one line that names keys without effect, those with one reason together.
---@param name string what the keys stand in
---@param idle { key: string, why: string }[]
---@return string
function M.idle_line(name, idle)
  local by_reason, order = {}, {}
  for _, one in ipairs(idle) do
    if not by_reason[one.why] then
      by_reason[one.why] = {}
      order[#order + 1] = one.why
    end
    table.insert(by_reason[one.why], one.key)
  end
  local parts = {}
  for i, why in ipairs(order) do parts[i] = ("%s (%s)"):format(table.concat(by_reason[why], ", "), why) end
  return ("%s: without effect: %s"):format(name, table.concat(parts, "; "))
end

return M
