-- Values, gradients and optimizer states that rest in files train as those in memory do:
-- host/core/params/place.c, host/core/optim/staged.c, lua/accelerate/parallel/sharded/places.lua.
local disk = require "spec.faults.disk"
local fs = require "accelerate.utils.fs"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local programs = require "spec.support.sharded_programs"
local ranks = require "spec.support.ranks"

local CPU, GATHERING = programs.CPU, programs.GATHERING

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

  it("reads each buffer from the disk once, and old gradients never", function()
    local read
    host.in_folder(function(folder)
      read = json.decode(ranks.ok(1, ([[
        local FOLDER, ffi = %q, require "ffi"
        ffi.cdef "int fdatasync(int); int posix_fadvise(int, long, long, int);"
        ffi.cdef "long readlink(const char *, char *, long);"
        local nn, optim, tensor = accelerate.nn, accelerate.optim, accelerate.tensor
        local a = accelerate.Accelerator { fsdp_plugin = { cpu_offload = true, offload_folder = FOLDER,
          auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = 2 ^ 20 } }
        local list = {}
        for i = 1, 8 do list[i] = nn.Linear(1024, 1024, { bias = false }) end
        local model = nn.Sequential(list)
        local optimizer = optim.AdamW(model:parameters(), {})
        model, optimizer = a:prepare(model, optimizer)
        local function forget() -- what the page cache has of the files
          local name = ffi.new "char[4096]"
          for fd = 3, 99 do
            local n = ffi.C.readlink("/proc/self/fd/" .. fd, name, 4096)
            if n > 0 and ffi.string(name, n):find(FOLDER, 1, true) then
              ffi.C.fdatasync(fd)
              ffi.C.posix_fadvise(fd, 0, 0, 4)
            end
          end
        end
        local last = 0
        local function read()
          local file = io.open "/proc/self/io"
          local now = tonumber(file:read "*a":match "\nread_bytes: (%%d+)")
          file:close()
          last, now = now, now - last
          return now
        end
        local least = {} -- the system reads ahead into neighbours at times
        local function count(name) least[name] = math.min(least[name] or math.huge, read()) end
        for _ = 1, 5 do
          forget()
          read()
          local loss = model(tensor.ones(1, 1024)):sum()
          count "values"
          a:backward(loss)
          count "gradients"
          optimizer:step()
          count "states"
          optimizer:zero_grad()
        end
        print(require("accelerate.utils.json").encode(least))]]):format(folder), CPU))
    end)
    if read.values == 0 then return pending("the folder's file system has no disk behind its page cache") end
    local bytes = 8 * 4 * 1024 ^ 2 -- of one buffer
    assert.is_true(read.gradients < 0.45 * bytes, read.gradients / bytes)
    assert.is_true(read.states < 1.3 * 2 * bytes, read.states / bytes)
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

  it("gives them with optimizers that need whole matrices", function()
    local adafactor = "steps = 4, optimizer = 'Adafactor', options = { lr = 0.003, eps = { 3e-2, 1e-3 } }"
    for n = 1, 3 do
      for _, model in ipairs { "gpt", "odd" } do
        assert.are.equal(0, (difference(n, model, "ZeRO-3", adafactor, ALL, n == 2 and GATHERING or CPU)), n)
      end
    end
    assert.are.equal(0, (difference(2, "odd", "ZeRO-1", adafactor, STATES)))
    assert.are.equal(0, (difference(2, "gpt", "ZeRO-3", "optimizer = 'Muon', options = { lr = 0.002 }",
      'values = "disk", gradients = "disk"')))
  end)

  it("refuses states of optimizers that keep them themselves", function()
    host.in_folder(function(folder)
      for _, how in ipairs { "Muon", "LBFGS" } do
        local status, _, err = ranks.run(1, program(folder, ([[
          train("gpt", "ZeRO-3", { optimizer = %q, options = {}, offload = away { ]] .. ALL .. [[ } })
        ]]):format(how)), CPU)
        assert.are.equal(1, status)
        assert.matches(how .. " keeps its states itself", err)
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
    local out, fired, calls
    host.in_folder(function(folder)
      local faults = disk.plan(folder, folder .. "/off/", { "/off/" }, plan)
      out = ranks.ok(1, program(folder .. "/off", FAILING), { launch = { "--cpu" }, env = faults:env() })
      fired, calls = faults:fired(), faults:calls(0)
      faults:free()
    end)
    return out, fired, calls
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

  it("is such an error where the system has failed to write what was handed to it", function()
    local _, _, calls = run { what = "nothing", reads = true }
    local second = calls:find("b", calls:find "r", true) -- asked before a reading
    local out, fired = run { at = second, what = "fail", number = 5, reads = true }
    assert.is_true(fired)
    assert.matches("false[^\n]*/off': exp_avg[_sq]* of [01]%.[wb]%a+: [^\n]* were read: ", out)
  end)

  it("says how much room there is, where there is none for the states", function()
    local out = run { at = 2, what = "fail", number = 28 }
    assert.matches("false[^\n]*/off': exp_avg[_sq]* of [^\n]* needs 8%.%d+ MB, " ..
      "and the disk has [%d.]+ %aB left", out)
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

describe("a model whose buffers rest in files", function()
  it("gives the files back when nothing refers to it any more", function()
    host.in_folder(function(folder)
      assert.matches("given back", ranks.ok(1, program(folder, [[
        local function once()
          state.reset()
          local accelerator = accelerate.Accelerator { cpu = true }
          accelerator._plan = plans.new("ZeRO-3", { offload = away { ]] .. ALL .. [[ } }, 1)
          local model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 30))
          local optimizer = optim.AdamW(model:parameters())
          model, optimizer = accelerator:prepare(model, optimizer)
          accelerator:backward(model(core.ones(2, 30)):mean())
          optimizer:step()
          check(core.place_stats() > 0, "there are no files")
          accelerator:free_memory()
        end
        once()
        for _ = 1, 4 do collectgarbage() end
        check(core.place_stats() == 0, "there are files yet")
        if rank == 0 then print "given back" end
      ]]), CPU))
    end)
  end)
end)

describe("checkpoints of what rests in files", function()
  -- Trains with a DeepSpeed configuration; arguments: full, half (which saves), async, resume.
  local CONFIGURED = [[
    local data = require "accelerate.data"
    local mode, folder = arg[1], arg[2]
    local nvme = { device = "nvme", nvme_path = folder .. "/off" }
    local accelerator = accelerate.Accelerator { cpu = true, deepspeed_plugin = accelerate.DeepSpeedPlugin {
      hf_ds_config = { train_micro_batch_size_per_gpu = "auto", gradient_accumulation_steps = 2,
        gradient_clipping = 0.5,
        zero_optimization = { stage = 3, offload_optimizer = nvme, offload_param = nvme } } } }
    core.manual_seed(3)
    local nn, optim = accelerate.nn, accelerate.optim
    local model = nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 100))
    local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
    local rows = {}
    for i = 1, 24 do rows[i] = core.randn(100) end
    local loader = data.DataLoader(rows, { batch_size = 2 })
    model, optimizer, loader = accelerator:prepare(model, optimizer, loader)
    local first = 1
    if mode == "resume" then
      accelerator:load_state(folder .. "/saved")
      first = 3
    end
    local function epoch()
      for x in loader:iter() do
        accelerator:accumulate(model, function()
          accelerator:backward((model(x) - x):square():mean())
          optimizer:step()
          optimizer:zero_grad()
        end)
      end
    end
    for number = first, 4 do
      if number == 3 and (mode == "half" or mode == "async") then
        accelerator:save_state(folder .. "/saved", { async = mode == "async" })
      end
      if number == 3 and mode == "killed" then
        accelerator:save_state(folder .. "/saved")
        epoch()
        if rank == 0 then io.stdout:write "killed" io.stdout:flush() end
        require("ffi").cdef "int kill(int, int); int getpid(void);"
        require("ffi").C.kill(require("ffi").C.getpid(), 9)
      end
      epoch()
    end
    local all = accelerator:get_state_dict(model)
    if accelerator.is_main_process then
      for name, value in require("accelerate.utils.ordered").pairs(all) do
        print(name, ("%.17g"):format(value:double():square():sum():item()))
      end
    end
  ]]

  local function run(n, folder, mode)
    return ranks.ok(n, CONFIGURED, { launch = { "--cpu" }, arguments = { mode, folder } })
  end

  it("go on with the bits of a run that was not interrupted, also those written beside it", function()
    for n = 1, 2 do
      for _, how in ipairs { "half", "async" } do
        host.in_folder(function(folder)
          local full = run(n, folder, "full")
          assert.are.equal(full, run(n, folder, how))
          assert.are.equal(full, run(n, folder, "resume"))
        end)
      end
    end
  end)

  it("go on after a run was killed, of which nothing is left in the folder of files", function()
    host.in_folder(function(folder)
      local full = run(2, folder, "full")
      local status, out = ranks.run(2, CONFIGURED, { launch = { "--cpu" }, arguments = { "killed", folder } })
      assert.are_not.equal(0, status)
      assert.matches("killed", out)
      assert.are.same({}, fs.list(folder .. "/off"))
      assert.are.equal(full, run(2, folder, "resume"))
    end)
  end)
end)

describe("the front doors of offload", function()
  local function explained(settings, launch)
    return ranks.ok(1, [[
      local accelerator = accelerate.Accelerator { ]] .. settings .. [[ }
      local model = accelerate.nn.Linear(100, 100)
      accelerator:explain_sharding(model)
    ]], { launch = launch or { "--cpu" } })
  end

  it("show where buffers rest, and how much of them", function()
    local out = explained [[deepspeed_plugin = accelerate.DeepSpeedPlugin { zero_stage = 3,
      offload_optimizer_device = "nvme", offload_optimizer_nvme_path = "/tmp" }]]
    assert.matches("gradients: disk, states: disk", out)
    assert.matches("states +80%.8 KB +80%.9 KB +whole, in files", out)
    assert.matches("in files +121%.3 KB +in /tmp", out)
    out = explained "fsdp_plugin = { cpu_offload = true, offload_folder = '/tmp' }"
    assert.matches("values: disk, gradients: disk, states: disk +fsdp_plugin.cpu_offload", out)
    out = explained("", { "--cpu", "--use_fsdp", "--fsdp_offload_params", "true", "--fsdp_offload_folder",
      "/tmp" })
    assert.matches("values: disk, gradients: disk, states: disk +%-%-fsdp_offload_params", out)
  end)

  it("say in one line that a CPU's memory is the host's", function()
    for _, settings in ipairs { "fsdp_plugin = { cpu_offload = true }", "deepspeed_plugin = " ..
      "accelerate.DeepSpeedPlugin { zero_stage = 2, offload_optimizer_device = 'cpu' }" } do
      local out, err = explained(settings)
      assert.matches("offload +none: a CPU's memory is the host's", out)
      assert.matches("has no effect: a CPU's memory is the host's", err)
    end
  end)

  it("refuse a folder that nothing goes to, and one that cannot be made", function()
    local status, _, err = ranks.run(1,
      "accelerate.Accelerator { fsdp_plugin = { offload_folder = '/tmp' } }")
    assert.are.equal(1, status)
    assert.matches("offload_folder needs cpu_offload = true", err)
    host.in_folder(function(folder)
      assert(io.open(folder .. "/file", "w")):close()
      status, _, err = ranks.run(1, ([[
        local accelerator = accelerate.Accelerator { cpu = true, fsdp_plugin = { cpu_offload = true,
          offload_folder = %q } }
        accelerator:prepare(accelerate.nn.Linear(2, 2))
      ]]):format(folder .. "/file/off"))
      assert.are.equal(1, status)
      assert.matches("FULL_SHARD: offload: cannot make the directory .*/file/off: Not a directory", err)
    end)
  end)
end)
