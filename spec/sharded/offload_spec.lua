-- Values, gradients and optimizer states that rest in files train as those in memory do:
-- host/core/params/place.c, host/core/optim/staged.c, lua/accelerate/parallel/sharded/places.lua.
local disk = require "spec.faults.disk"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

local CPU = { launch = { "--cpu" } }
local GATHERING = { launch = { "--cpu" }, env = { ACCEL_SHARED_PARAMETERS = "0" } }

local STATES = 'states = "disk"'
local ALL = STATES .. ', values = "disk", gradients = "disk"'

-- A program with train(name, plan, opts) whose offload goes to `folder`.
local function program(folder, text)
  return programs.TRAIN .. ("local FOLDER = %q\n"):format(folder) .. [[
    local function away(kinds) kinds.path = FOLDER return kinds end
  ]] .. text
end

local function numbers(n, folder, call, opts)
  return json.decode(ranks.ok(n, program(folder, "give((train(" .. call .. ")))"), opts or CPU))
end

-- The difference from a run in memory, and what the folder has in it afterwards.
local function difference(n, model, plan, opts, kinds, how)
  local worst, left
  host.in_folder(function(folder)
    local plain = numbers(n, folder, ("%q, %q, { %s }"):format(model, plan, opts), how)
    local there = numbers(n, folder .. "/off", ("%q, %q, { %s, offload = away { %s } }"):format(model, plan,
      opts,
      kinds), how)
    worst, left = programs.worst(plain, there), fs.list(folder .. "/off")
  end)
  return worst, left
end

describe("offload to files", function()
  it("gives the bits of training in memory on 1, 2 and 3 ranks, and leaves no file", function()
    for n = 1, 3 do
      for _, case in ipairs {
        { "gpt", "ZeRO-3", "accumulate = 2", ALL },
        { "odd", "ZeRO-1", "optimizer = 'AdamW', options = {}", STATES },
        { "odd", "ZeRO-2", "value = 0.01", STATES .. ', gradients = "disk"' },
        { "net", "ZeRO-3", "optimizer = 'Adagrad', options = { initial_accumulator_value = 0.1 }", ALL },
      } do
        local worst, left = difference(n, unpack(case))
        assert.are.equal(0, worst, ("%d ranks, %s, %s, %s"):format(n, unpack(case)))
        assert.are.same({}, left)
      end
    end
  end)

  it("gives them where ranks gather the values, and with copies of the parts", function()
    assert.are.equal(0, (difference(2, "gpt", "ZeRO-3", "accumulate = 2", ALL, GATHERING)))
    assert.are.equal(0, (difference(4, "odd", "HYBRID_SHARD", "replicate = 2", ALL, GATHERING)))
  end)

  it("gives them in a lower precision, and keeps no working copies", function()
    assert.are.equal(0, (difference(2, "gpt", "ZeRO-3", "precision = 'bf16'", ALL)))
    assert.is_true((difference(1, "gpt", "ZeRO-3", "precision = 'bf16'", ALL)) <= 1e-2)
  end)

  -- Three stages of each buffer and more, groups with other options that alternate in memory.
  local LARGE = [[
    local function run(offload)
      state.reset()
      core.manual_seed(3)
      local accelerator = accelerate.Accelerator { cpu = true }
      accelerator._plan = plans.new("ZeRO-3", { shard = ranks, offload = offload or nil,
        units = function(m) return m:children() end }, ranks)
      local model = nn.Sequential(nn.Linear(1301, 1307), nn.LayerNorm(1307), nn.Linear(1307, 1303))
      local decayed, others = {}, {}
      for name, p in model:named_parameters() do
        table.insert(name:find "weight" and decayed or others, p)
      end
      local optimizer = optim.AdamW({ { params = decayed, weight_decay = 0.1 },
        { params = others, weight_decay = 0, lr = 0.01 } }, { lr = 0.001, amsgrad = true })
      model, optimizer = accelerator:prepare(model, optimizer)
      core.manual_seed(5)
      local x = core.randn(2, 1301)
      for _ = 1, 3 do
        accelerator:backward(model(x):square():mean())
        accelerator:clip_grad_norm_(model:parameters(), 0.01)
        optimizer:step()
        optimizer:zero_grad()
      end
      local all = {}
      parallel.summon(model, false, nil, function()
        for _, p in ipairs(model:parameters()) do all[#all + 1] = p:detach():clone() end
      end)
      return all, model, optimizer
    end
  ]]

  it("steps buffers of several stages and several groups", function()
    host.in_folder(function(folder)
      for n = 1, 2 do
        assert.matches("alike", ranks.ok(n, program(folder, LARGE .. [[
          local a, b = run(), run(away { ]] .. ALL .. [[ })
          for i = 1, #a do check(a[i]:equal(b[i]), "parameter " .. i) end
          local bytes, read, written = core.place_stats()
          check(read > 0 and written > 0 and bytes > 0, "nothing was read or written")
          if rank == 0 then print "alike" end
        ]]), CPU))
      end
    end)
  end)

  it("has no more in memory than a few stages and the units that compute", function()
    host.in_folder(function(folder)
      ranks.ok(1, program(folder, [[
        local function resident()
          for line in io.lines "/proc/self/status" do
            local kib = line:match "^VmRSS:%s+(%d+) kB"
            if kib then return tonumber(kib) * 1024 end
          end
        end
        local list = {}
        for i = 1, 24 do list[i] = nn.Sequential(nn.Linear(1000, 1000), nn.ReLU()) end
        local accelerator = accelerate.Accelerator { cpu = true }
        accelerator._plan = plans.new("ZeRO-3", { offload = away { ]] .. ALL .. [[ },
          units = function(m) return m:children() end }, 1)
        local before = resident()
        local model = nn.Sequential(unpack(list))
        local optimizer = optim.AdamW(model:parameters())
        list = nil
        model, optimizer = accelerator:prepare(model, optimizer)
        local state_bytes, most = 24 * 1001000 * 16, 0
        for _ = 1, 3 do
          accelerator:backward(model(core.randn(4, 1000)):square():mean())
          most = math.max(most, resident())
          accelerator:clip_grad_norm_(model:parameters(), 1)
          optimizer:step()
          most = math.max(most, resident())
          optimizer:zero_grad()
        end
        check(core.place_stats() >= state_bytes, "not all of it rests in files")
        local live = accelerate.utils.memory_stats().live_bytes
        check(live < 10e6, ("%.0f MB live"):format(live / 1e6))
        local more = most - before
        check(more < state_bytes / 3, ("%.0f of %.0f MB"):format(more / 1e6, state_bytes / 1e6))
      ]]), CPU)
    end)
  end)

  it("shows states to scripts, which can replace them, and takes those from before prepare", function()
    host.in_folder(function(folder)
      assert.matches("shown", ranks.ok(1, program(folder, [[
        local function run(offload)
          state.reset()
          core.manual_seed(3)
          local accelerator = accelerate.Accelerator { cpu = true }
          accelerator._plan = offload and plans.new("ZeRO-3", { offload = offload }, 1)
          local model = nn.Linear(40, 30)
          local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
          local x = core.randn(8, 40)
          model(x):square():mean():backward()
          optimizer:step()
          optimizer:zero_grad()
          model, optimizer = accelerator:prepare(model, optimizer)
          for step = 1, 3 do
            accelerator:backward(model(x):square():mean())
            optimizer:step()
            optimizer:zero_grad()
            if step == 2 then
              optimizer.state[model.weight].exp_avg:mul_(0.5)
              optimizer.state[model.bias].exp_avg_sq = core.full({ 30 }, 0.25)
            end
          end
          local kept = optimizer.state[model.weight]
          return { model.weight:detach():clone(), model.bias:detach():clone(), kept.exp_avg:clone() }
        end
        local a, b = run(), run(away { ]] .. ALL .. [[ })
        for i = 1, #a do check(a[i]:equal(b[i]), "value " .. i) end
        local bytes = core.place_stats()
        check(bytes >= 4 * 4 * 1230, "the states made before prepare are not in the file")
        print "shown"
      ]]), CPU))
    end)
  end)

  it("refuses optimizers whose steps need whole matrices, and those that keep states themselves", function()
    host.in_folder(function(folder)
      for name, pattern in pairs { Adafactor = "whole matrices", LBFGS = "LBFGS keeps its states itself" } do
        local status, _, err = ranks.run(1, program(folder, ([[
          train("gpt", "ZeRO-3", { optimizer = %q, options = {}, offload = away { ]] .. ALL .. [[ } })
        ]]):format(name)), CPU)
        assert.are.equal(1, status)
        assert.matches(pattern, err)
        assert.matches("offload", err)
      end
    end)
  end)
end)

describe("a disk that fails under offload", function()
  -- Steps under a plan of faults. Prints the error of each step.
  local FAILING = [[
    local accelerator = accelerate.Accelerator { cpu = true }
    accelerator._plan = plans.new("ZeRO-3", { shard = ranks, offload = away { ]] .. STATES .. [[ } }, ranks)
    local model = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1000))
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
    model, optimizer = accelerator:prepare(model, optimizer)
    local x = core.ones(2, 1000)
    local function step()
      accelerator:backward(model(x):square():mean())
      optimizer:step()
      optimizer:zero_grad()
    end
    for _ = 1, 3 do print(pcall(step)) end
    print("weight", model[1].weight:detach():sum():item())
  ]]

  local function run(plan)
    local out, fired
    host.in_folder(function(folder)
      local faults = disk.plan(folder, folder .. "/off/", { "/off/" }, plan)
      out = ranks.ok(1, program(folder .. "/off", FAILING), { launch = { "--cpu" }, env = faults:env() })
      fired = faults:fired()
      faults:free()
    end)
    return out, fired
  end

  it("is an error that names folder and parameter, and no step goes on from there", function()
    for _, plan in ipairs {
      { at = 12, what = "fail", number = 5 }, { at = 9, what = "fail", number = 28 },
      { at = 10, what = "fail", number = 5, reads = true },
    } do
      local out, fired = run(plan)
      assert.is_true(fired)
      assert.matches("false[^\n]*/off': exp_avg[_sq]* of [01]%.[wb]%a+: [^\n]* were %a+: ", out)
      assert.matches("false[^\n]*go on from the last checkpoint", out)
    end
  end)

  it("says how much room there is, where there is none for the states", function()
    local out = run { at = 2, what = "fail", number = 28 }
    assert.matches("false[^\n]*/off': exp_avg[_sq]* of [^\n]* needs 8%.%d+ MB, and the disk has [%d.]+ " ..
      "%aB left", out)
  end)

  it("may move fewer bytes at a time than were asked for", function()
    local plain = run { what = "nothing" }
    for _, reads in ipairs { true, false } do
      local out, fired = run { at = 4, what = "short", lasts = true, reads = reads }
      assert.is_true(fired)
      assert.are.equal(plain:match "weight[^\n]*", out:match "weight[^\n]*")
    end
  end)
end)
