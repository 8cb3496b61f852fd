--- `accel-run COMMAND`: finds the command and reports what is wrong with its arguments.
local clean = require("accelerate.utils.options").clean

local M = {}

-- The module of each command that C hands over.
local MODULES = {
  ["config"] = "config", ["estimate-memory"] = "estimate_memory", ["merge-weights"] = "merge_weights",
  ["to-fsdp2"] = "to_fsdp2", ["kernel"] = "kernel", ["plot"] = "plot",
}

local Wrong = {} -- errors of these tables are the user's, and show no stack

--- Prints a line, without control characters that a path or a file has.
---@param message string a format, with its arguments
function M.say(message, ...) print(clean(message:format(...))) end

--- Ends the command with a message.
---@param message string a format, with its arguments
function M.fail(message, ...) error(setmetatable({ text = message:format(...), status = 1 }, Wrong), 0) end

--- Ends the command: its arguments are wrong.
---@param message string a format, with its arguments
function M.usage(message, ...) error(setmetatable({ text = message:format(...), status = 2 }, Wrong), 0) end

local function unknown(word, schema)
  local known = {}
  for name in pairs(schema) do known[#known + 1] = name end
  table.sort(known)
  local near = require("accelerate.utils.options").nearest(word, known)
  M.usage("there is no option --%s%s (--help lists them)", word, near and "; the nearest is --" .. near or "")
end

-- Reads a list of words into `found`, up to the next option.
local function take_value(words, i, name, entry, found, value)
  if entry.kind == "switch" then
    if value then M.usage("--%s takes no value, got '%s'", name, value) end
    found[name] = true
    return i
  end
  if value == nil then
    i, value = i + 1, words[i + 1]
    if value == nil then M.usage("--%s needs a value: --%s %s", name, name, entry.argument) end
  end
  local values = { value }
  while entry.kind == "list" and words[i + 1] and words[i + 1]:sub(1, 2) ~= "--" do
    i = i + 1
    values[#values + 1] = words[i]
  end
  for _, one in ipairs(values) do
    local allowed = not entry.one_of
    for _, word in ipairs(entry.one_of or {}) do allowed = allowed or word == one end
    if not allowed then
      M.usage("--%s: expected %s, got '%s'", name, table.concat(entry.one_of, ", "), one)
    end
  end
  found[name] = entry.kind == "list" and values or value
  return i
end

local function print_usage(spec)
  print("usage: accel-run " .. spec.usage .. "\n\n" .. spec.summary)
  local names = {}
  for name in pairs(spec.options) do names[#names + 1] = name end
  table.sort(names)
  if #names > 0 then print() end
  for _, name in ipairs(names) do
    local entry = spec.options[name]
    print(("  --%s%s\n      %s"):format(name, entry.argument and " " .. entry.argument or "", entry.help))
  end
end

--- Reads a command's words. Options are `--name value` or `--name=value`, dashes count as
--- underscores.
---@param words string[]
---@param spec { usage: string, summary: string, options: table, positions: string[]? }
---@return table? found by option's and position's name; nil: the usage was printed
function M.arguments(words, spec)
  local found, positions, i = {}, {}, 1
  while words[i] do
    local name, equals, value = words[i]:match "^%-%-([%w_%-]+)(=?)(.*)$"
    if words[i] == "-h" or name == "help" then return print_usage(spec) end
    if name then
      name = name:gsub("%-", "_")
      if not spec.options[name] then unknown(name, spec.options) end
      i = take_value(words, i, name, spec.options[name], found, equals == "=" and value or nil)
    else
      positions[#positions + 1] = words[i]
    end
    i = i + 1
  end
  local expected = spec.positions or {}
  if #positions > #expected then M.usage("'%s' is an argument too many", positions[#expected + 1]) end
  for k, name in ipairs(expected) do
    if not positions[k] then M.usage("%s is missing: accel-run %s", name, spec.usage) end
    found[name] = positions[k]
  end
  return found
end

--- Runs a command with the words after it, and ends the process if it fails.
---@param name string
function M.main(name)
  local words = {}
  for i = 4, #arg do words[#words + 1] = arg[i] end
  local ok, err = xpcall(require("accelerate.commands." .. MODULES[name]).run, function(err)
    return getmetatable(err) == Wrong and err or type(err) == "string" and debug.traceback(err, 2) or err
  end, words)
  if ok then return end
  if getmetatable(err) ~= Wrong then error(err, 0) end
  io.stdout:flush()
  io.stderr:write(clean(("accel-run %s: %s\n"):format(name, err.text)))
  os.exit(err.status)
end

return M
