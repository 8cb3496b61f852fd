--- Profiling from an Accelerator.  Methods of accelerate.Accelerator.
local dataclasses = require "accelerate.config.dataclasses"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

local PROFILE = { profile_handler = { "table" } }

-- The handler that options stand for: a ProfileKwargs, its fields, or { profile_handler = ... }.
local function profile_handler(opts)
  if type(opts) == "table" and getmetatable(opts) == nil then
    if opts.profile_handler == nil then return dataclasses.ProfileKwargs(opts) end
    opts = options.check("profile", opts, PROFILE).profile_handler
  end
  if opts ~= nil and not dataclasses.is(opts, dataclasses.ProfileKwargs) then
    fail("profile: the handler must be a ProfileKwargs, got %s", options.show(opts))
  end
  return opts
end

local function profile(self, opts, fn, ...)
  local handler = profile_handler(opts) or self._profile_handler or dataclasses.ProfileKwargs {}
  local dir = handler.output_trace_dir
  local prof
  local function finish(...)
    if dir then
      local made, why = require("accelerate.utils.fs").make_dirs(dir)
      if not made then fail("profile: output_trace_dir: %s", why) end
      prof:export_chrome_trace(("%s/profile_%d.json"):format(dir, self.process_index))
      self:wait_for_everyone()
    end
    return ...
  end
  return finish(require("accelerate.profiler").profile(handler, function(p, ...)
    prof = p
    return fn(p, ...)
  end, ...))
end

--- Runs fn(prof, ...) and records how long every op takes, by its name and the script's line.
--- Returns what fn returns. With output_trace_dir each process writes profile_<rank>.json there, a
--- trace for chrome://tracing or Perfetto, and all processes wait for each other. `prof` has step()
--- for the schedule, key_averages():table{...}, events() and export_chrome_trace(path), which also
--- work after the end.
---@param opts accelerate.ProfileKwargs|table|nil default: the one among kwargs_handlers, or all
---  defaults; a plain table is taken for its fields
---@param fn fun(prof: accelerate.Profiler, ...): ...
---@param ... any what fn gets after prof
---@return any ... what fn returns
function Accelerator:profile(...)
  local names = properties.merge(PROFILE, dataclasses.ProfileKwargs._schema)
  return profile(self, scope.arguments("profile", names, ...))
end

return Accelerator
