--- Random numbers under the names of torch.random: `tensor.random`.
local calls = require "accelerate.tensor.calls"
local core = require "accelerate.core"
local define = require "accelerate.tensor.define"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local scope = require "accelerate.utils.scope"

local M = { manual_seed = calls.manual_seed }

for _, name in ipairs { "seed", "initial_seed", "get_rng_state", "set_rng_state" } do
  M[name] = define.functions[name]
end

-- A generator draws for all devices, so that PyTorch's devices and device_type change nothing.
local FORK = { enabled = { "boolean", default = true }, devices = { "list", optional = true },
  device_type = { "string", optional = true } }

--- Runs fn(...) and returns what it returns; draws that follow are those that would have come
--- without it. What draws without a generator goes back to where it was: functions of tensors,
--- initial parameters and math.random.
---@param opts? { enabled: boolean, devices: any[], device_type: string } enabled = false: fn's
---  draws count; the others change nothing
---@param fn function
---@param ... any
---@return any ...
function M.fork_rng(...)
  local function fork(opts, fn, ...)
    local o = options.check("fork_rng", opts, FORK)
    if not o.enabled then return fn(...) end
    local own, common = core.default_generator(), core._common_generator()
    local of_own, of_common, of_lua = own:get_state(), common:get_state(), core._math_random_state()
    return scope.run(nil, function()
      own:set_state(of_own)
      common:set_state(of_common)
      core._math_random_state(of_lua)
    end, fn, ...)
  end
  return fork(scope.arguments("fork_rng", FORK, ...))
end

return properties.strict("accelerate.tensor.random", M)
