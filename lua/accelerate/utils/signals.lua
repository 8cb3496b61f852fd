--- Functions that run when the run is about to be ended: on_signal.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"

local M = {}

local NUMBERS = { SIGHUP = 1, SIGINT = 2, SIGUSR2 = 12, SIGTERM = 15 }
local names = {}
for name, number in pairs(NUMBERS) do names[number] = name end

local handler

local OPTIONS = { signals = { "table", optional = true } }

--- Calls a function when the run gets one of the signals, at one point on all ranks: before a
--- prepared loader gives its next batch, or in accelerate.check_signal(). It may save and leave:
---
---   accelerate.on_signal(function(signal)
---     accelerator:save_state("last")
---     os.exit(0)
---   end)
---
--- The launcher then leaves the first such signal to the script; a second one ends the run. The
--- ranks agree on the point through their collectives, so it comes within two of them; a run of one
--- process needs none. Slurm sends SIGTERM at the time limit, and with `--signal=USR2@120` SIGUSR2
--- two minutes before it. A later call replaces the function.
---@param fn fun(signal: string)|nil called with "SIGTERM", say; nil: none any more
---@param opts { signals: string[]? }? signals: of SIGTERM, SIGUSR2, SIGHUP and SIGINT (default: the
---  first two)
function M.on_signal(fn, opts)
  if fn ~= nil and type(fn) ~= "function" then
    options.fail("on_signal: expected a function or nil, got %s", options.show(fn))
  end
  local o = options.check("on_signal", opts, OPTIONS)
  for _, name in ipairs(fn and (o.signals or { "SIGTERM", "SIGUSR2" }) or {}) do
    if not NUMBERS[name] then
      options.fail("on_signal: signals: expected SIGTERM, SIGUSR2, SIGHUP or SIGINT, got %s",
        options.show(name))
    end
    core.dist.handle_signal(NUMBERS[name])
  end
  handler = fn
end

--- Calls the function given to accelerate.on_signal when a signal has come; prepared loaders do so
--- between batches. All ranks call it at the same points. Returns the signal's name, or nil.
---@return string?
function M.check_signal()
  local number = handler and core.dist.due_signal()
  if not number then return nil end
  handler(names[number])
  return names[number]
end

return M
