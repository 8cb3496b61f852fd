--- Programs that train a small model in fp8 under full sharding, with and without gathers in eight
--- bits, for specs.
local programs = require "spec.support.sharded_programs"

local M = {}

--- Defines `run(on, opts)`, which returns the numbers of some steps, the prepared model, the
--- Accelerator and a batch, and `same(opts, what)`, which checks that the numbers do not depend on
--- `on`. opts: { steps, reshard, checkpointing, policy, dtype, edit: a function that changes the
--- model before prepare, handler }. More fields of sharded_programs.TRAIN are there.
M.TRAIN = programs.TRAIN .. [[
local utils = accelerate.utils
local Wide = nn.class "Wide"
function Wide:init()
  self.first = nn.Linear(32, 48)
  self.h = nn.ModuleList {}
  for i = 1, 3 do self.h:append(nn.Sequential(nn.Linear(48, 80), nn.GELU(), nn.Linear(80, 48))) end
  self.h[2][3].weight:requires_grad_(false)
  self.twice = nn.Linear(48, 48)
  self.again = nn.Linear(48, 48, { bias = false })
  self.again.weight = self.twice.weight
  self.last = nn.Linear(48, 10)
end
function Wide:forward(x)
  x = self.first(x)
  for _, block in ipairs(self.h) do x = x + block(x) end
  if self.reads then x = x + self.h[1][1].weight:square():sum() * 0.1 end
  return self.last(self.again(F.relu(self.twice(x))))
end
local function run(on, opts)
  opts = opts or {}
  state.reset()
  core.manual_seed(4)
  local handler = opts.handler or utils.AORecipeKwargs { enable_fsdp_float8_all_gather = on }
  local accelerator = accelerate.Accelerator { mixed_precision = "fp8", kwargs_handlers = { handler },
    fsdp_plugin = { fsdp_version = 2, auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
      transformer_cls_names_to_wrap = { "Sequential" }, reshard_after_forward = opts.reshard ~= false,
      activation_checkpointing = opts.checkpointing, mixed_precision_policy = opts.policy } }
  local model = Wide()
  if opts.dtype then model:to(opts.dtype) end
  if opts.edit then opts.edit(model) end
  local optimizer = optim.SGD(model:parameters(), { lr = 0.05, momentum = 0.9 })
  local x = core.randn(48, 32)
  local y = x:matmul(core.randn(32, 10)):argmax(2)
  model, optimizer = accelerator:prepare(model, optimizer)
  local rows, all = 48 / ranks, {}
  local function part(t) return t:narrow(1, 1 + rank * rows, rows):to(accelerator.device) end
  x, y = part(x), part(y)
  local function look() core.no_grad(function() all[#all + 1] = model(x):square():mean():item() end) end
  look()
  for step = 1, opts.steps or 4 do
    for pass = 1, 2 do
      local function compute()
        local loss = F.cross_entropy(model(x * pass), y)
        accelerator:backward(loss)
        all[#all + 1] = loss:item()
      end
      if pass == 1 then accelerator:no_sync(model, compute) else compute() end
    end
    optimizer:step()
    optimizer:zero_grad()
    look()
  end
  parallel.summon(model, false, nil, function()
    for _, p in ipairs(model:parameters()) do
      for _, v in ipairs(p:detach():float():reshape(-1):totable()) do all[#all + 1] = v end
    end
  end)
  return all, model, accelerator, x
end
local function same(opts, what)
  local a, b = run(false, opts), run(true, opts)
  check(#a == #b)
  for i = 1, #a do
    check(a[i] == b[i] or a[i] ~= a[i] and b[i] ~= b[i],
      ("%s: number %d of %d: %.9g beside %.9g"):format(what, i, #a, a[i], b[i]))
  end
end
]]

return M
