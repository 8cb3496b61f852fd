-- launchers.lua: ranks that a script or a prompt starts.
local Session = require "spec.support.session"
local accelerate = require "accelerate"
local core = require "accelerate.core"
local host = require "spec.support.host"
local machines = require "spec.support.machines"
local processes = require "spec.support.processes"
local tensor = require "accelerate.tensor"

local at_terminal = Session.specs(it, pending)
local notebook_launcher, debug_launcher = accelerate.notebook_launcher, accelerate.debug_launcher

describe("notebook_launcher", function()
  before_each(function() accelerate.PartialState._reset_state() end)
  after_each(function() accelerate.PartialState._reset_state() end)

  it("returns what rank 0 returns, tensors and nil too", function()
    local captured = 10
    for n = 2, 4 do
      local a, b, c, d = notebook_launcher(function(x, y)
        local accelerator = accelerate.Accelerator()
        local sum = accelerator:reduce(tensor.ones(2, 3) * (accelerator.process_index + captured), "sum")
        return { sum = sum, ranks = accelerator.num_processes, { "a", true } }, x, y,
          accelerator.process_index
      end, { "first", nil, n = 2 }, { num_processes = n })
      assert.same({ 2, 3 }, a.sum.shape)
      assert.equal(n * captured + n * (n - 1) / 2, a.sum[1][1]:item())
      assert.equal(n, a.ranks)
      assert.same({ "a", true }, a[1])
      assert.same({ "first", nil, 0 }, { b, c, d })
    end
  end)

  it("works after this process has computed with threads, and leaves it as it was", function()
    local x = tensor.randn(300, 300)
    local before = x:matmul(x)
    local total = notebook_launcher(function()
      local y = tensor.ones(400, 400)
      return y:matmul(y):sum():item()
    end, {}, { num_processes = 2 })
    assert.equal(400 * 400 * 400, total)
    assert.is_true(tensor.equal(before, x:matmul(x)))
    assert.equal(1, core.dist.world_size())
    assert.is_false(accelerate.state.initialized())
  end)

  it("starts loaders with workers, and sets what torchrun sets", function()
    local list = notebook_launcher(function()
      local data = accelerate.data
      local numbers = { get = function(_, i) return i end, len = function() return 4 end }
      local loader = data.DataLoader(numbers, { batch_size = 2, num_workers = 1 })
      local found = { os.getenv("RANK"), os.getenv("WORLD_SIZE"), os.getenv("ACCELERATE_MIXED_PRECISION") }
      for batch in loader:iter() do found[#found + 1] = batch:sum():item() end
      return found
    end, {}, { num_processes = 2, mixed_precision = "bf16" })
    assert.same({ "0", "2", "bf16", 3, 7 }, list)
  end)

  it("names the rank that failed, and does not wait for the others", function()
    local began = core._monotonic()
    local fine, problem = pcall(notebook_launcher, function()
      local state = accelerate.PartialState()
      if state.process_index == 1 then error("bad rank") end
      state:wait_for_everyone()
    end, {}, { num_processes = 3 })
    assert.is_false(fine)
    assert.matches("^notebook_launcher: rank 1 failed: .*launchers_spec%.lua:%d+: bad rank\nstack traceback:",
      problem)
    for _, case in ipairs { { "os.exit(3)", "exited with status 3" }, { "kill", "SIGKILL" } } do
      fine, problem = pcall(notebook_launcher, function()
        local state = accelerate.PartialState()
        if state.process_index == 1 and case[1] == "kill" then os.execute("kill -9 $PPID") end
        if state.process_index == 1 then os.exit(3) end
        state:wait_for_everyone()
      end, {}, { num_processes = 2 })
      assert.is_false(fine)
      assert.matches("rank 1 failed: its process ended: .*" .. case[2], problem)
    end
    assert.is_true(core._monotonic() - began < 10 * host.stretch())
    assert.equal(2, (notebook_launcher(function() return 2 end, {}, { num_processes = 2 })))
  end)

  it("does not wait for a rank that has returned", function()
    local fine, problem = pcall(notebook_launcher, function()
      local state = accelerate.PartialState()
      if state.process_index == 0 then state:wait_for_everyone() end
    end, {}, { num_processes = 2 })
    assert.is_false(fine)
    assert.matches("rank 0 failed: .*rank 1 has finished and will not take part", problem)
  end)

  it("starts all ranks again as often as max_restarts says", function()
    local function train(last)
      local state, attempt = accelerate.PartialState(), tonumber(os.getenv "ACCELERATE_RESTART_COUNT")
      if state.process_index == 1 and attempt < last then error("attempt " .. attempt) end
      state:wait_for_everyone()
      return attempt
    end
    local function run(last)
      return pcall(notebook_launcher, train, { last },
        { num_processes = 2, max_restarts = 2, monitor_interval = 0.02 })
    end
    local former, written = io.stderr, {}
    io.stderr = { write = function(_, text) written[#written + 1] = text end } -- luacheck: ignore 122
    local fine, attempt = run(2)
    local failed, problem = run(3)
    io.stderr = former -- luacheck: ignore 122
    assert.is_true(fine)
    assert.equal(2, attempt)
    assert.matches("notebook_launcher: rank 1 failed: .*attempt 0; restart 1 of 2\n$", written[1])
    assert.is_false(failed)
    assert.matches("^notebook_launcher: rank 1 failed: .*attempt 2", problem)
    assert.equal(4, #written)
  end)

  it("marks its ranks as forked", function()
    assert.is_true((notebook_launcher(function() return accelerate.PartialState().fork_launched end, {},
      { num_processes = 2 })))
    assert.is_false(accelerate.PartialState().fork_launched)
  end)

  it("runs in place with one process", function()
    local here = {}
    assert.equal(here, (notebook_launcher(function() return here end, nil, { num_processes = 1 })))
  end)

  it("says what it cannot do", function()
    local function refused(pattern, ...)
      local fine, problem = pcall(...)
      assert.is_false(fine)
      assert.matches(pattern, problem)
    end
    refused("option 'num_processes' is missing", notebook_launcher, print)
    refused("argument 1 %(fn%): expected a function, got 5", notebook_launcher, 5, {}, { num_processes = 2 })
    refused("argument 2 %(args%): expected a list", notebook_launcher, print, 5, { num_processes = 2 })
    refused("unknown option 'num_proceses'; did you mean 'num_processes'", notebook_launcher, print, {},
      { num_proceses = 2 })
    for message, given in pairs {
      ["'rdzv_backend' must be 'static', got 'c10d': torch's elastic rendezvous"] = { rdzv_backend = "c10d" },
      ["'rdzv_conf' has 'join_timeout', which belongs to torch's elastic"] = {
        rdzv_conf = { join_timeout = 1 } },
      ["'rdzv_conf' has rank = 1, and node_rank is 0"] = { rdzv_conf = { rank = 1 } },
      ["'rdzv_endpoint' must be 'host:port' of machine 0, got 'host'"] = { rdzv_endpoint = "host" },
      ["'use_port' must be a number from 1 to 65535, got 'x'"] = { use_port = "x" },
      ["'node_rank' must be less than num_nodes, got 1 of 1"] = { node_rank = 1 },
      ["'log_line_prefix_template': the ranks print to"] = { log_line_prefix_template = "[${rank}]" },
      ["200 machines with 2 ranks each are 400 ranks; there can be 256"] = { num_nodes = 200 },
    } do
      given.num_processes = 2
      refused(message, notebook_launcher, print, {}, given)
    end
    refused("its ranks are on one machine", debug_launcher, print, {}, { num_nodes = 2 })
    assert.equal(3, (notebook_launcher(function() return 3 end, {}, { num_processes = 2, num_nodes = 1 })))
    refused("rank 0 failed: .*function", notebook_launcher, function() return print end, {},
      { num_processes = 2 })
    accelerate.PartialState()
    refused("an Accelerator %(or PartialState%) was made in this process", notebook_launcher, print, {},
      { num_processes = 2 })
  end)

  it("gives its ranks the address and the id of the run", function()
    assert.same({ "10.0.0.1", "29501", "job", "0" }, (notebook_launcher(function()
      return { os.getenv "MASTER_ADDR", os.getenv "MASTER_PORT", os.getenv "TORCHELASTIC_RUN_ID",
        os.getenv "GROUP_RANK" }
    end, {}, { num_processes = 2, rdzv_endpoint = "10.0.0.1:29501", rdzv_id = "job" })))
  end)

  it("has a sister for two ranks of the CPU", function()
    assert.equal(2, (debug_launcher(function() return accelerate.PartialState().num_processes end)))
    assert.equal("cpu", (debug_launcher(function() return accelerate.PartialState().device end, {},
      { num_processes = 3 })))
  end)

  at_terminal("is stopped by Ctrl-C at the prompt, with its ranks", function()
    local s = Session.open {}
    s:ask("accelerate.notebook_launcher(function() print 'on' while true do end end, {}, { " ..
      "num_processes = 2 })",
      "on\n")
    s:expect("on\n")
    s:send("\3")
    s:expect("interrupted\n")
    s:ask("accelerate.debug_launcher(function() return 7 end)", "^7\n")
    s:send(("io.write('on\\n') accelerate.notebook_launcher(print, {}, { num_processes = 1, " ..
      "num_nodes = 2, use_port = %d })\r"):format(machines.free_port()))
    s:expect "\non\n"
    processes.sleep(0.3)
    s:send("\3")
    s:expect("interrupted\n")
    s:ask("1 + 1", "^2\n")
    s:stop()
  end)
end)

describe("notebook_launcher on several machines", function()
  after_each(processes.clean)

  -- What machine arg[1] runs: TRAIN gets the Accelerator and the attempt.
  local SCRIPT = [[
    local accelerate = require "accelerate"
    local machine = tonumber(arg[1])
    local options = { num_processes = 2, num_nodes = 2, node_rank = machine, use_port = arg[2], timeout = 20,
      rdzv_conf = { timeout = 5 } }
    OPTIONS
    print(pcall(accelerate.notebook_launcher, function(given)
      local accelerator = accelerate.Accelerator { cpu = true }
      local attempt, rank = tonumber(os.getenv "ACCELERATE_RESTART_COUNT"), accelerator.process_index
      TRAIN
      local all = accelerator:gather(accelerate.tensor.tensor { rank + 0.5 })
      return ("%s %d %d %s"):format(given, accelerator.num_processes, attempt,
        table.concat(all:totable(), " "))
    end, { "hello" }, options))
  ]]

  -- Runs both machines; returns what each printed, and what each wrote to stderr.
  local function run(train, options, killed)
    local parts = { TRAIN = train, OPTIONS = options or "" }
    local path = processes.script((SCRIPT:gsub("%u%u%u%u%u+", parts)))
    local port, runs, out, err = machines.free_port(), {}, {}, {}
    for i = 1, 0, -1 do runs[i] = processes.start({ path, tostring(i), tostring(port) }) end
    for i = 0, 1 do
      local status
      status, out[i], err[i] = runs[i]:wait(40)
      assert.equal(i == killed and 137 or 0, status, err[i])
    end
    return out, err
  end

  it("makes one world of all ranks, whose rank 0 returns", function()
    local out = run("assert(tonumber(os.getenv 'GROUP_RANK') == machine and " ..
      "tonumber(os.getenv 'LOCAL_RANK') == rank % 2)")
    assert.equal("true\thello 4 0 0.5 1.5 2.5 3.5\n", out[0])
    assert.equal("true\n", out[1])
  end)

  it("ends on all machines when a rank fails", function()
    local out = run("if rank == 3 then error 'bad rank' end")
    for i = 0, 1 do
      assert.matches("^false\tnotebook_launcher: rank 3 %(machine 1%) failed: [^\n]*: bad rank\n", out[i])
    end
  end)

  it("ends when a machine is gone", function()
    local out = run("if rank == 2 then os.execute('kill -9 $(ps -o ppid= -p $PPID)') end", nil, 1)
    assert.matches("machine 1 %(127%.0%.0%.1%) is gone", out[0])
  end)

  it("starts again on all machines, as machine 0 counts", function()
    local out, err = run("if rank == 3 and attempt < 2 then error('bad ' .. attempt) end",
      "options.max_restarts = machine == 0 and 2 or 9")
    assert.equal("true\thello 4 2 0.5 1.5 2.5 3.5\n", out[0])
    assert.equal("true\n", out[1])
    assert.matches("rank 3 %(machine 1%) failed: [^\n]*bad 1; restart 2 of 2\n$", err[0])
    out = run("if rank == 0 then error 'bad' end", "options.max_restarts = machine")
    assert.matches("^false", out[0])
    assert.matches("^false", out[1])
  end)

  it("does not meet a machine with another rdzv_id", function()
    local out = run("", "options.rdzv_id = 'job ' .. machine")
    assert.matches("is of another run than machine 0: its rdzv_id differs", out[0])
    assert.matches("is of another run than machine 0: its rdzv_id differs", out[1])
  end)

  it("says which machine did not come, in the words of its options", function()
    local out = run("", "if machine == 1 then options.num_nodes, options.node_rank = 1, 0 end " ..
      "options.rdzv_conf.timeout = 1")
    assert.matches("^false\t.*notebook_launcher: waited 1 s at 127%.0%.0%.1:%d+ for machine 1 of 2 " ..
      "%(rdzv_conf%.timeout sets the limit%)\n$", out[0])
    out = run("", "if machine == 0 then os.exit(0) end options.rdzv_conf.timeout = 1")
    assert.matches("machine 1 could not reach machine 0 .*is it running there, with node_rank 0%?\n$", out[1])
  end)
end)
