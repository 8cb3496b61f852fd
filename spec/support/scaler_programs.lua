-- Runs programs around a GradScaler that gen_scaler_reference.py made, and compares with PyTorch.
--   build/accel-run spec/support/scaler_programs.lua FILE
local core = require "accelerate.core"
local accelerate = require "accelerate"
local nn, optim = require "accelerate.nn", require "accelerate.optim"

local M = {}

local START = { { 0.5, -1.25 }, { 2.0, 0.75 }, { -0.25, 1.5 } }
local OPTIMIZERS = {
  SGD = function(p) return optim.SGD(p, { lr = 0.05, momentum = 0.5 }) end,
  AdamW = function(p) return optim.AdamW(p, { lr = 0.05 }) end,
  RMSprop = function(p) return optim.RMSprop(p, { lr = 0.02 }) end,
}

local actions = {}

function actions.backward(run, ...)
  local loss = core.zeros {}
  for i, factor in ipairs { ... } do
    if factor ~= 0 then loss = loss + (run.params[i] * run.params[i]):sum() * factor end
  end
  run.scaler:scale(loss):backward()
end
function actions.zero_grad(run, i) run.optimizers[i]:zero_grad() end
function actions.unscale(run, i) run.scaler:unscale_(run.optimizers[i]) end
function actions.clip_norm(run, i, limit)
  run.seen[#run.seen + 1] = nn.utils.clip_grad_norm_({ run.params[i] }, limit):item()
end
function actions.clip_value(run, i, limit) nn.utils.clip_grad_value_({ run.params[i] }, limit) end
function actions.step(run, i) run.scaler:step(run.optimizers[i]) end
function actions.update(run, scale)
  run.scaler:update(scale)
  run.seen[#run.seen + 1] = run.scaler:get_scale()
end
function actions.refused(run, name, ...)
  assert(not pcall(actions[name], run, ...), name .. " is not refused")
end

local function compare(what, got, wanted)
  local same = got == wanted or (got ~= got and wanted ~= wanted)
    or math.abs(got - wanted) <= 1e-5 * math.max(1, math.abs(wanted))
  if not same then error(("%s: %.9g, PyTorch has %.9g"):format(what, got, wanted), 0) end
end

--- Runs a program; raises where it differs.
function M.check(program)
  local run = { params = {}, optimizers = {}, seen = {} }
  run.scaler = accelerate.utils.GradScaler { init_scale = program.scale,
    growth_interval = program.interval }
  for i, name in ipairs(program.optimizers) do
    run.params[i] = core.tensor(START[i], { requires_grad = true })
    run.optimizers[i] = OPTIMIZERS[name] { run.params[i] }
  end
  for _, action in ipairs(program.actions) do actions[action[1]](run, unpack(action, 2)) end
  assert(#run.seen == #program.seen)
  for i, wanted in ipairs(program.seen) do compare("figure " .. i, run.seen[i], wanted) end
  for i, values in ipairs(program.values) do
    for k, wanted in ipairs(values) do
      compare(("parameter %d[%d]"):format(i, k), run.params[i][k]:item(), wanted)
    end
  end
end

if arg and arg[0] and arg[0]:find("scaler_programs", 1, true) then
  local failures, programs = 0, dofile((assert(arg[1], "give the file of programs")))
  for number, program in ipairs(programs) do
    local ok, why = pcall(M.check, program)
    if not ok then
      failures = failures + 1
      print(("program %d: %s"):format(number, why))
    end
  end
  print(("%d programs, %d differ"):format(#programs, failures))
  if failures > 0 then os.exit(1) end
end

return M
