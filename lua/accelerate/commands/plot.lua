--- `accel-run plot`: draws a training log: what the JSON-lines tracker (log_with = "jsonl") writes.
local commands = require "accelerate.commands"
local json = require "accelerate.utils.json"

local M = {}

local USAGE = {
  usage = "plot FILE [--keys NAME,NAME] [--output FILE] [--log] [--width N] [--height N]",
  summary = "Draws the numbers that a training log holds (JSON lines: log_with = \"jsonl\") over their " ..
    "steps,\n" ..
    "in the terminal, or into a file that ends in .png, .svg or .txt.",
  options = {
    keys = { argument = "NAME,NAME", help = "these values (default: all numbers, but step and time)" },
    output = { argument = "FILE", help = "write a file" },
    log = { kind = "switch", help = "a logarithmic scale" },
    width = { argument = "N", help = "in characters, or in pixels for .png and .svg" },
    height = { argument = "N", help = "likewise" },
  },
  positions = { "FILE" },
}

local SPECIAL = { NaN = 0 / 0, Infinity = math.huge, ["-Infinity"] = -math.huge }

local function number_of(value)
  if type(value) == "number" then return value end
  return type(value) == "string" and SPECIAL[value] or nil
end

-- { [name] = { x = , y = } } of a log's lines.
local function read(path, wanted)
  local file, why = io.open(path, "rb")
  if not file then commands.fail("%s", why) end
  local series, n = {}, 0
  for line in file:lines() do
    n = n + 1
    local row, problem = nil, nil
    if line:find("%S") then row, problem = json.decode(line) end
    if problem or row ~= nil and type(row) ~= "table" then
      commands.fail("%s:%d: %s", path, n, (problem or "expected an object"):gsub(" at line 1$", ""))
    end
    for name, value in next, row or {} do
      local number = number_of(value)
      local is_value = wanted and wanted[name] or not wanted and not name:find("^_?step$")
        and not name:find("^_?time$")
      if number and is_value then
        local one = series[name] or { x = {}, y = {} }
        series[name] = one
        one.x[#one.x + 1] = tonumber(row._step) or tonumber(row.step) or n
        one.y[#one.y + 1] = number
      end
    end
  end
  file:close()
  return series
end

local function wanted_keys(text)
  if not text then return nil end
  local set = {}
  for name in text:gmatch("[^,]+") do set[name] = true end
  return set
end

local function size_of(found, name)
  local value = found[name] and tonumber(found[name])
  if found[name] and not (value and value >= 1 and value % 1 == 0) then
    commands.usage("--%s: expected a number from 1 on, got '%s'", name, found[name])
  end
  return value
end

--- Runs the command.
---@param words string[]
function M.run(words)
  local found = commands.arguments(words, USAGE)
  if not found then return end
  local wanted = wanted_keys(found.keys)
  local series = read(found.FILE, wanted)
  for name in next, wanted or {} do
    if not series[name] then commands.fail("%s has no numbers called '%s'", found.FILE, name) end
  end
  if not next(series) then commands.fail("%s has no numbers", found.FILE) end
  local figure = require("accelerate.plot").curves(series,
    { log = found.log or false, x_label = "step" })
  local size = { width = size_of(found, "width"), height = size_of(found, "height") }
  local fine, problem = pcall(function()
    if found.output then figure:save(found.output, size) else io.stdout:write(figure:text(size), "\n") end
  end)
  if not fine then commands.fail("%s", (tostring(problem):gsub("^Figure:%w+: ", ""))) end
end

return M
