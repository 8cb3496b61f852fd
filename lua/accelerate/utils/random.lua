--- Seeds, and generators that are made equal on all ranks.
local core = require "accelerate.core"
local options = require "accelerate.utils.options"
local properties = require "accelerate.utils.properties"
local state = require "accelerate.state"

local fail = options.fail

local M = {}

local SEED = { device_specific = { "boolean", default = false },
  deterministic = { "boolean", default = false } }

--- Seeds the generators of tensors and Lua's `math.random` on this rank.
---@param seed integer
---@param opts { device_specific: boolean?, deterministic: boolean? }? device_specific: adds the
---  rank; deterministic: runs are deterministic anyhow, accepted for scripts that ask
function M.set_seed(seed, opts)
  opts = options.check("set_seed", opts, SEED)
  if type(seed) ~= "number" or seed % 1 ~= 0 or seed < 0 then
    fail("set_seed: expected a whole number of at least 0, got %s", tostring(seed))
  end
  if opts.device_specific then seed = seed + state.PartialState().process_index end
  core.manual_seed(seed)
end

--- Which generators there can be: `torch` is the default one of tensors, and `cuda` too, because
--- one generator draws for the CPU and for GPUs; `generator` is a loader's own, the others those of
--- other devices.
M.RNGType = properties.enum("RNGType", { "torch", "cuda", "mlu", "sdaa", "musa", "npu", "xla", "xpu", "hpu",
  "neuron", "generator" })

local TYPES = { "torch", "cuda", "generator" }

--- Raises unless `kind` names generators that there are here.
---@param kind string
---@param where string? what takes it; default: the option rng_types
function M.check_rng_type(kind, where)
  where = where or "rng_types"
  options.value(where, "the kind of generator", kind, { "string" })
  for _, name in ipairs(TYPES) do
    if kind == name then return end
  end
  if rawget(M.RNGType, kind:upper()) == kind then
    fail("%s: '%s' generators are not there yet, only the CPU's", where, kind)
  end
  local near = options.nearest(kind, TYPES)
  fail("%s: '%s' is not a kind of generator%s", where, kind, near and (", did you mean '" .. near .. "'?") or
    "; there are 'torch' and 'cuda' (the default generator) and 'generator' (a loader's own)")
end

---@return boolean
function M.is_generator(value) return type(value) == "userdata" and getmetatable(value) == "generator" end

--- Gives every rank the state of rank 0's generator.
---@param kind "torch"|"cuda"|"generator" the default generator, which draws for the CPU and for
---  GPUs, or `generator`
---@param generator accelerate.Generator? for the kind "generator"
function M.synchronize_rng_state(kind, generator)
  M.check_rng_type(kind, "synchronize_rng_state")
  if kind ~= "generator" then generator = core.default_generator() end
  options.value("synchronize_rng_state", "generator", generator, { "Generator" })
  local here = state.PartialState()
  if here.num_processes == 1 then return end
  local bytes = core.dist.broadcast_bytes(here.process_index == 0 and generator:get_state() or nil, 0)
  if here.process_index ~= 0 then generator:set_state(bytes) end
end

--- Gives every rank the states of rank 0's generators of the kinds in a list.
---@param kinds string[]
---@param generator accelerate.Generator?
function M.synchronize_rng_states(kinds, generator)
  options.value("synchronize_rng_states", "kinds", kinds, { "list" })
  for _, kind in ipairs(kinds) do M.synchronize_rng_state(kind, generator) end
end

return M
