-- Optimizers that read more of a parameter than the element that they write, over parameters that
-- are cut over ranks: Muon (lua/accelerate/optim/rounds.lua) and Adafactor (factored.lua).
local host = require "spec.support.host"
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

local worst, train = programs.worst, programs.numbers
local CPU, GATHERING = programs.CPU, programs.GATHERING
local STRATEGIES = { "ZeRO-1", "ZeRO-2", "ZeRO-3" }

-- eps is large: a key's bias has no gradient but rounding, which Adafactor makes large
local ADAFACTOR = "steps = 50, optimizer = 'Adafactor', options = { lr = 0.003, eps = { 3e-2, 1e-3 } }"
-- Muon rounds to bfloat16, so that the last bit of a gradient counts: no norm, which ranks sum up
-- in another order
local MUON = "steps = 50, optimizer = 'Muon', clip = false, options = { lr = 0.002 }"

describe("fifty steps of Adafactor", function()
  for _, model in ipairs { "gpt", "odd" } do
    it(("over parts of a %s give one rank's losses, norms and parameters"):format(model), function()
      local one = train(1, ("%q, 'DDP', { %s }"):format(model, ADAFACTOR))
      for n = 2, 4 do
        local strategy = STRATEGIES[n - 1]
        local there = train(n, ("%q, %q, { %s }"):format(model, strategy, ADAFACTOR))
        assert.is_true(worst(one, there) <= 1e-5,
          ("%s on %d ranks: %g"):format(strategy, n, worst(one, there)))
      end
      local gathered = train(2, ("%q, 'ZeRO-3', { %s }"):format(model, ADAFACTOR), GATHERING)
      assert.is_true(worst(one, gathered) <= 1e-5, ("%g"):format(worst(one, gathered)))
      assert.are.equal(0, worst(gathered, train(2, ("%q, 'ZeRO-3', { %s }"):format(model, ADAFACTOR))))
    end)
  end

  it("over parts that have copies, in windows, are those of replicas", function()
    local plain = train(4, ("'gpt', 'DDP', { accumulate = 2, %s }"):format(ADAFACTOR))
    for _, strategy in ipairs { "HYBRID_SHARD", "HYBRID_SHARD_ZERO2" } do
      local there = train(4, ("'gpt', %q, { accumulate = 2, replicate = 2, %s }"):format(strategy, ADAFACTOR))
      assert.is_true(worst(plain, there) <= 1e-5, ("%s: %g"):format(strategy, worst(plain, there)))
    end
  end)
end)

describe("fifty steps of Muon", function()
  for _, model in ipairs { "gpt", "odd" } do
    it(("over parts of a %s give the bits of replicas, under each strategy"):format(model), function()
      for n = 2, 4 do
        local plain = train(n, ("%q, 'DDP', { %s }"):format(model, MUON))
        for _, strategy in ipairs(n == 2 and STRATEGIES or { "ZeRO-3" }) do
          local there = train(n, ("%q, %q, { %s }"):format(model, strategy, MUON),
            n == 3 and GATHERING or CPU)
          assert.are.equal(0, worst(plain, there), strategy .. " on " .. n)
        end
      end
    end)
  end

  it("give one rank's parameters where no gradient is rounded to another number", function()
    local one = train(1, ("'odd', 'DDP', { %s }"):format(MUON))
    for n = 2, 3 do
      local there = train(n, ("'odd', 'ZeRO-3', { %s }"):format(MUON))
      assert.is_true(worst(one, there) <= 1e-5, ("%d ranks: %g"):format(n, worst(one, there)))
    end
  end)

  it("over parts that have copies are near those of replicas, with the same bits twice", function()
    local plain = train(4, ("'gpt', 'DDP', { accumulate = 2, %s }"):format(MUON))
    local call = ("'gpt', 'HYBRID_SHARD', { accumulate = 2, replicate = 2, %s }"):format(MUON)
    local there = train(4, call)
    assert.is_true(worst(plain, there) <= 1e-2, ("%g"):format(worst(plain, there)))
    assert.are.equal(0, worst(there, train(4, call)))
  end)
end)

-- arg: optimizer, plan, "through", "save" or "load", folder. Convolutions, vectors, matrices with
-- one row or column; prints losses.
local RESUMED = [[
  local nn, optim, F = accelerate.nn, accelerate.optim, accelerate.nn.functional
  local plans = require "accelerate.parallel.plan"
  local how, plan, action, folder = arg[1], arg[2], arg[3], arg[4]
  local accelerator = accelerate.Accelerator { cpu = true }
  if plan ~= "DDP" then
    local replicate = plan == "HYBRID_SHARD" and 2 or 1
    accelerator._plan = plans.new(plan, { replicate = replicate, shard = ranks / replicate,
      units = function(m) return { m[2], m[5] } end }, ranks)
  end
  accelerate.utils.set_seed(action == "load" and 5 or 1)
  local muon = how == "Muon"
  local model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 5, 2), nn.Flatten(),
    nn.Linear(45, 7), nn.Linear(7, 1, { bias = false }), nn.Linear(1, 6))
  local matrices, others = {}, {}
  for _, p in ipairs(model:parameters()) do
    table.insert((p:dim() == 2 or not muon) and matrices or others, p)
  end
  local optimizer = optim[how](matrices, { lr = muon and 0.005 or 0.02 })
  local rest = muon and optim.SGD(others, { lr = 0.01 }) or nil
  core.manual_seed(7)
  local x, y = core.randn(12, 1, 6, 6), core.randn(12, 6)
  model, optimizer, rest = accelerator:prepare(model, optimizer, rest)
  local rows = 12 / ranks
  local function steps(n)
    for _ = 1, n do
      local at = 1 + rank * rows
      local loss = F.mse_loss(F.tanh(model(x:narrow(1, at, rows))), y:narrow(1, at, rows))
      accelerator:backward(loss)
      optimizer:step() optimizer:zero_grad()
      if rest then rest:step() rest:zero_grad() end
      accelerator:print(("%.5f"):format(accelerate.utils.reduce(loss:detach(), "mean"):item()))
    end
  end
  if action ~= "load" then steps(8) end
  if action == "save" then accelerator:save_state(folder) end
  if action == "load" then accelerator:load_state(folder) end
  steps(8)
]]

local function resumed(n, how, plan, action, folder)
  return (ranks.ok(n, RESUMED, { launch = { "--cpu" }, arguments = { how, plan, action, folder } }))
end

local STEPS = 8 -- after the checkpoint

-- Whether the last losses are those of a run from start to end, but for its rounding.
local function goes_on(through, losses)
  local list, at = {}, 0
  for n in through:gmatch "%S+" do list[#list + 1] = tonumber(n) end
  for n in losses:gmatch "%S+" do
    at = at + 1
    local expected = list[#list - STEPS + at]
    if math.abs(expected - tonumber(n)) > 1e-4 then
      return false, ("step %d: %s, not %g"):format(at, n, expected)
    end
  end
  return at == STEPS
end

describe("optimizers that need matrices", function()
  for _, how in ipairs { "Adafactor", "Muon" } do
    it("go on from a checkpoint on other numbers of ranks: " .. how, function()
      local through = resumed(1, how, "DDP", "through")
      host.in_folder(function(folder)
        for n, plan in pairs { "DDP", "ZeRO-3", "ZeRO-1", "HYBRID_SHARD" } do
          local state = folder .. "/" .. n
          resumed(n, how, plan, "save", state)
          for m, other in pairs { [n % 4 + 1] = "ZeRO-3", [(n + 1) % 4 + 1] = "ZeRO-2" } do
            local fine, why = goes_on(through, resumed(m, how, other, "load", state))
            assert.is_true(fine, ("%s on %d, then %s on %d: %s"):format(plan, n, other, m, tostring(why)))
          end
        end
      end)
    end)
  end
end)

describe("LBFGS, whose vectors are of all parameters,", function()
  it("goes on from a checkpoint where states would be cut", function()
    host.in_folder(function(folder)
      local losses = ranks.ok(2, [[
        local nn, optim = accelerate.nn, accelerate.optim
        local plans = require "accelerate.parallel.plan"
        local accelerator = accelerate.Accelerator { cpu = true }
        accelerator._plan = plans.new("ZeRO-1", { shard = ranks }, ranks)
        core.manual_seed(4)
        local model, x = nn.Linear(8, 1, { bias = false }), core.randn(6, 8)
        local optimizer = optim.LBFGS(model:parameters(), { lr = 0.01, max_iter = 3 })
        model, optimizer = accelerator:prepare(model, optimizer)
        local function step()
          return optimizer:step(function()
            optimizer:zero_grad()
            local loss = (model(x) - 1):square():mean()
            accelerator:backward(loss)
            return loss
          end):item()
        end
        step()
        accelerator:save_state(arg[1])
        step()
        local through = step()
        accelerator:load_state(arg[1])
        step()
        accelerator:print(through == step())
      ]], { launch = { "--cpu" }, arguments = { folder .. "/state" } })
      assert.are.equal("true", losses:match "%S+")
    end)
  end)
end)

describe("the states of a rank", function()
  it("are its elements of Muon's mean, and of Adafactor all means for rows and columns", function()
    ranks.ok(3, [[
      local nn, optim = accelerate.nn, accelerate.optim
      local plans = require "accelerate.parallel.plan"
      local function states(how)
        local accelerator = accelerate.Accelerator { cpu = true }
        accelerator._plan = plans.new("ZeRO-3", { shard = ranks }, ranks)
        local model = nn.Sequential(nn.Linear(40, 30, { bias = false }), nn.Linear(30, 50, { bias = false }))
        local optimizer = optim[how](model:parameters(), { lr = 0.01 })
        model, optimizer = accelerator:prepare(model, optimizer)
        accelerator:backward(model(core.randn(2, 40)):square():mean())
        optimizer:step()
        local n = {}
        for _, p in ipairs(model:parameters()) do
          for name, t in pairs(optimizer.state[p]) do
            if core.is_tensor(t) then n[name] = (n[name] or 0) + t:numel() end
          end
        end
        return n
      end
      local own = states("Muon").momentum_buffer
      local all = accelerate.utils.reduce(core.tensor(own), "sum"):item()
      check(all == 40 * 30 + 30 * 50, "of all ranks: " .. all)
      check(own <= math.ceil(all / 3 / 64 + 1) * 64, "of this rank: " .. own)
      accelerate.state.reset()
      local factors = states "Adafactor"
      check(factors.row_var == 30 + 50 and factors.col_var == 40 + 30, "means of " .. factors.row_var)
    ]], CPU)
  end)
end)

describe("rounds of matrices that are cut", function()
  it("bring each to one rank, share the work, and give each rank its elements back", function()
    ranks.ok(3, [[
      local rounds = require "accelerate.optim.rounds"
      local group = require("accelerate.distributed.group").world()
      local sizes = { { 2, 5 }, { 7, 3 }, { 1, 1 }, { 4, 4 }, { 3, 3 }, { 6, 2 }, { 9, 1 } }
      local list, made, came = {}, 0, 0
      local function interval(n, r, i) -- uneven, and of some matrices one rank has all
        if i == 3 then return 0, r == 1 and n or 0 end
        local first = math.floor(n * r * r / 9)
        return first, math.floor(n * (r + 1) ^ 2 / 9) - first
      end
      for i, shape in ipairs(sizes) do
        local n = shape[1] * shape[2]
        local from, own = interval(n, rank, i)
        local whole = core.arange(n):to("float32") + i * 100
        list[i] = { part = { group = group, from = from, n = own,
          of = function(r) return interval(n, r, i) end }, shape = shape, cost = n, device = "cpu",
          number = i, whole = whole, piece = whole:narrow(1, from + 1, own) }
      end
      rounds.run(list, {
        dtype = "float32",
        give = function(one) return one.piece end,
        whole = function(one, matrix)
          made = made + 1
          check(matrix:reshape(-1):equal(one.whole), "matrix " .. one.number)
          return matrix * 2
        end,
        take = function(one, piece)
          came = came + 1
          check(piece:equal(one.piece * 2), "elements of " .. one.number)
        end,
      })
      local some = 0
      for _, one in ipairs(list) do some = some + (one.part.n > 0 and 1 or 0) end
      check(came == some, "elements of " .. came)
      check(made >= 2 and made <= 3, "this rank made " .. made) -- 7 matrices on 3 ranks
      check(accelerate.utils.reduce(core.tensor(made), "sum"):item() == #sizes, "each is made once")
    ]], CPU)
  end)
end)
