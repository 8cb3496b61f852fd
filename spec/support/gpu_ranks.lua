--- Ranks on GPUs, for specs.  On the emulated device the ranks are real processes, each with
--- devices of its own, joined by a stand-in for NCCL (fakes/fake_nccl.cpp); on a real machine as
--- many ranks as it has GPUs take part.
local device = require "spec.support.device"
local core = require "accelerate.core"
local ranks = require "spec.support.ranks"

local emulated = device.kind == "emulated"
-- One rank alone: what NVIDIA's library says to us.
local M = { emulated = emulated, most = emulated and 4 or (core.device_count("cuda")),
  alone = "core.dist.join_device(0)\n" }

if not device.name then M.why = device.reason
elseif device.kind == "fake" then M.why = "this device has no collectives"
elseif emulated then
  local ok, message = pcall(ranks.ok, 1, M.alone)
  if not ok then
    M.why = "no stand-in for NCCL was built (it needs NVIDIA's header): " .. message:sub(1, 200)
  end
end

--- The environment of ranks, with `more` variables.
function M.env(more)
  local all = emulated and { ACCEL_EMULATED_DEVICES = "4" } or {}
  for k, v in pairs(more or {}) do all[k] = v end
  return all
end

--- Runs on n ranks with a GPU each; nil and the reason where there are fewer.
function M.on(n, script, opts)
  opts = opts or {}
  if n > M.most then return nil, ("needs %d GPUs, %d are there"):format(n, M.most) end
  opts.env = M.env(opts.env)
  return ranks.ok(n, script, opts)
end

return M
