--- Trains small models for fifty steps under every sharding strategy on 2, 3 and 4 ranks, and
--- compares losses, norms, parameters and buffers with those of one rank that has the whole batch:
---   accel-run spec/support/check_equal_training.lua [MODEL [SETTING]]    two Lua patterns
--- A cell is a model under a setting and a strategy on so many ranks, whose values are in memory of
--- all ranks ("shared") or gathered; each is trained twice, and has the same bits. Under the
--- setting "resumed" a run is killed and goes on, and has the bits of one that was not. Prints a
--- line for each model and setting, and the cells that are further off than their tolerance.
--- spec/sharded/equal_spec.lua has some of the cells.
local programs = require "spec.support.sharded_programs"

local MODELS = { "gpt", "bert", "t5", "resnet", "odd" }
local STRATEGIES = {
  { "ZeRO-1", "" }, { "ZeRO-2", "" }, { "ZeRO-3", "" }, { "ZeRO-3", "reshard = false" },
  { "HYBRID_SHARD", "replicate = 2", 4 }, { "HYBRID_SHARD_ZERO2", "replicate = 2", 4 },
}
local COMMON = "steps = 50, options = { lr = 0.02, momentum = 0.9 }, sync = true, "
-- name, options, tolerance of one rank's numbers; twice: also a second run; without: a model whose
-- running statistics are right in another way than one rank's: recomputed units count a batch
-- twice, and several ranks with one batch are a larger one
local SETTINGS = {
  { "windows", "accumulate = 2", 1e-5, twice = true },
  { "whole", "accumulate = 2, whole_in_no_sync = true", 1e-5 },
  { "values", "value = 0.01", 1e-5 },
  { "frozen", "thaw = 1000", 1e-5 },
  { "late", "thaw = 20, accumulate = 2", 1e-5 },
  { "groups", "groups = 2", 1e-5 },
  { "optimizers", "optimizers = 2", 1e-5 },
  { "recompute", "recompute = true, accumulate = 2", 1e-5, without = "resnet" },
  { "ignored", "alike = true, ignored = '.*norm.*|.*last|.*[.]layer_norm'", 1e-5, without = "resnet" },
  { "adam", "optimizer = 'Adam', options = { lr = 0.002, eps = 1e-2 }", 1e-5 },
  { "bf16", "precision = 'bf16', accumulate = 2", 0.05, twice = true },
  { "resumed", "accumulate = 2", 1e-5 },
}

-- The largest difference, relative where a number is above 1.
local function off(a, b)
  assert(#a == #b, ("%d numbers beside %d"):format(#a, #b))
  local most = 0
  for i = 1, #a do most = math.max(most, math.abs(a[i] - b[i]) / math.max(1, math.abs(b[i]))) end
  return most
end

local found = { cells = 0, bad = 0, most = 0 }

local function note(difference, tolerance, what, ...)
  found.most = math.max(found.most, difference)
  if difference <= tolerance then return end
  found.bad = found.bad + 1
  io.write(("  off by %.3g: "):format(difference), what:format(...), "\n")
end

-- The arguments of train(...), up to the closing brace.
local function call_of(model, strategy, more, options)
  return ("%q, %q, { %s%s"):format(model, strategy, COMMON, options) .. (more ~= "" and ", " .. more or "")
end

local function cells(model, setting, n, memory, one)
  local calls, list = {}, {}
  for _, strategy in ipairs(STRATEGIES) do
    if n == (strategy[3] or n) then
      list[#list + 1] = strategy
      calls[#calls + 1] = call_of(model, strategy[1], strategy[2], setting[2]) .. " }"
    end
  end
  local gathers = memory == "gathered"
  local first = programs.train(n, calls, gathers)
  local second = setting.twice and programs.train(n, calls, gathers)
  for i, strategy in ipairs(list) do
    local what = ("%s, %s, %s %s on %d ranks, %s"):format(model, setting[1], strategy[1], strategy[2], n,
      memory)
    found.cells = found.cells + 1
    note(off(first[i], one), setting[3], "%s", what)
    if second then note(off(first[i], second[i]), 0, "%s: a second run", what) end
    if setting[1] == "resumed" then
      local call = call_of(model, strategy[1], strategy[2], setting[2])
      local there = programs.resumed(n, call, gathers)
      note(off(there, programs.tail(first[i], #there)), 0, "%s: after the kill", what)
    end
  end
end

local function compare(model, setting)
  found = { cells = 0, bad = 0, most = 0 }
  local one = programs.train(1, { call_of(model, "DDP", "", setting[2]) .. " }" })[1]
  for n = 2, 4 do
    for _, memory in ipairs { "shared", "gathered" } do cells(model, setting, n, memory, one) end
  end
  io.write(("%-6s %-8s %-10s %d cells, off by %.2g at most\n"):format(found.bad == 0 and "ok" or "FAILED",
    model,
    setting[1], found.cells, found.most))
  io.flush()
  return found
end

local all, bad = 0, 0
for _, model in ipairs(MODELS) do
  for _, setting in ipairs(SETTINGS) do
    if model:find(arg[1] or "") and setting[1]:find(arg[2] or "") and setting.without ~= model then
      compare(model, setting)
      all, bad = all + found.cells, bad + found.bad
    end
  end
end
io.write(("%d cells, %d differences\n"):format(all, bad))
os.exit(bad == 0 and 0 or 1)
