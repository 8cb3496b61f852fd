--- Profiling from an Accelerator.  Methods of accelerate.Accelerator.
local dataclasses = require "accelerate.config.dataclasses"
local options = require "accelerate.utils.options"

local fail = options.fail

---@class accelerate.Accelerator
local Accelerator = {}

--- Runs fn(prof) and records how long every op takes, by its name and the script's line. Returns
--- what fn returns. With output_trace_dir each process writes profile_<rank>.json there, a trace
--- for chrome://tracing or Perfetto, and all processes wait for each other. `prof` has step() for
--- the schedule, key_averages():table{...}, events() and export_chrome_trace(path), which also work
--- after the end.
---@param handler accelerate.ProfileKwargs|table|nil default: the one among kwargs_handlers, or all
---  defaults; a plain table is taken for its fields
---@param fn fun(prof: accelerate.Profiler): ...
---@return any ... what fn returns
function Accelerator:profile(handler, fn)
  if type(handler) == "function" and fn == nil then handler, fn = nil, handler end
  if type(handler) == "table" and getmetatable(handler) == nil then
    if handler.profile_handler ~= nil then
      handler = options.check("profile", handler, { profile_handler = { "table" } }).profile_handler
    else handler = dataclasses.ProfileKwargs(handler) end
  end
  if handler ~= nil and not dataclasses.is(handler, dataclasses.ProfileKwargs) then
    fail("profile: the handler must be a ProfileKwargs, got %s", options.show(handler))
  end
  if type(fn) ~= "function" then
    fail("profile: expected a function as the last argument, got %s", options.show(fn))
  end
  handler = handler or self._profile_handler or dataclasses.ProfileKwargs {}
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
  return finish(require("accelerate.profiler").profile(handler, function(p)
    prof = p
    return fn(p)
  end))
end

return Accelerator
