-- The profiler: what is noted of ops and where they come from, the schedule, the trace file; and
-- nothing when it is off.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local disk = require "spec.support.disk"
local host = require "spec.support.host"
local json = require "accelerate.utils.json"
local profiler = require "accelerate.profiler"
local ranks = require "spec.support.ranks"
local nn, optim, tensor = accelerate.nn, accelerate.optim, accelerate.tensor

local function line() return debug.getinfo(2, "l").currentline end

local function rows_of(prof, opts)
  local found = {}
  for _, row in ipairs(prof:key_averages(opts)) do
    found[row.key .. (row.place ~= "" and "@" .. row.place:match("%d+$") or "")] = row
  end
  return found
end

describe("accelerator:profile", function()
  local accelerator = accelerate.Accelerator()

  it("adds up ops by name and script line, gradients by the line of their forward pass", function()
    local x, w = tensor.rand(8, 4), tensor.rand(4, 2, { requires_grad = true })
    local forward, backward, again
    local prof, other = accelerator:profile(function(p)
      for _ = 1, 3 do
        local y = x:mm(w); forward = line()
        y:sum():backward(); backward = line()
      end
      local _ = x + 1; again = line()
      return p, "second"
    end)
    assert.are.equal("second", other)
    local rows = rows_of(prof)
    local mm = rows["mm@" .. forward]
    assert.are.equal(6, mm.count)  -- three of the forward passes, three in the gradient rule
    assert.are.equal(3, rows["mm_backward@" .. forward].count)
    assert.are.equal("backward", rows["mm_backward@" .. forward].category)
    assert.are.equal(3, rows["sum@" .. backward].count)
    assert.are.equal(1, rows["add@" .. again].count)
    assert.truthy(mm.place:find("profiler_spec.lua:" .. forward .. "$"))
    local rule = rows["mm_backward@" .. forward]
    assert(rule.cpu_time_total > rule.self_cpu_time_total and rule.self_cpu_time_total > 0)
    assert(math.abs(mm.cpu_time * 6 - mm.cpu_time_total) < 1e-6)
    local merged = rows_of(prof, { group_by_line = false })
    assert.are.equal(6, merged.mm.count)
    for _, e in ipairs(prof:events()) do
      if e.parent then
        local outer = prof:events()[e.parent]
        assert(e.start >= outer.start and e.start + e.cpu_time <= outer.start + outer.cpu_time + 0.01)
        assert.are.equal(outer.depth + 1, e.depth)
      end
    end
  end)

  it("counts the operations of products and convolutions", function()
    local a, b = tensor.rand(3, 4), tensor.rand(4, 5)
    local image, kernel = tensor.rand(2, 3, 8, 8, { requires_grad = true }), tensor.rand(6, 3, 3, 3,
      { requires_grad = true })
    local rows = rows_of(accelerator:profile({ with_flops = true }, function(p)
      a:mm(b)
      tensor.rand(2, 3, 4):bmm(tensor.rand(2, 4, 5))
      nn.functional.linear(a, tensor.rand(7, 4))
      image:conv2d(kernel):sum():backward()
      local q = tensor.rand(1, 2, 5, 4)
      nn.functional.scaled_dot_product_attention(q, tensor.rand(1, 2, 6, 4), tensor.rand(1, 2, 6, 4))
      return p
    end), { group_by_line = false })
    assert.are.equal(2 * 3 * 4 * 5, rows.mm.flops)
    assert.are.equal(2 * 2 * 3 * 4 * 5, rows.bmm.flops)
    assert.are.equal(2 * 3 * 4 * 7, rows.linear.flops)
    local conv = 2 * (2 * 6 * 6 * 6) * (3 * 3 * 3)
    assert.are.equal(conv, rows._convolution.flops)
    assert.are.equal(conv, rows._conv2d_backward_input.flops)
    assert.are.equal(conv, rows._conv2d_backward_weight.flops)
    assert.are.equal(0, rows.conv2d.flops)  -- made of the one that counts
    assert.are.equal(2 * (2 * 2 * 5 * 6 * 4), rows._attention.flops)
    assert.are.equal(0, rows.sum.flops)
  end)

  it("counts products that are rows of their own", function()
    local product, linear = core._row "_float8_product", core._row "_linear_encoded"
    local eight, scale = tensor.ones(16, 32):to "float8_e4m3fn", tensor.ones(1)
    local x = tensor.rand(2, 5, 64)
    local rows = rows_of(accelerator:profile({ with_flops = true }, function(p)
      tensor.linear_gelu(x, tensor.rand(7, 64))
      linear(x, tensor.zeros(9 * 2 * 34, { dtype = "uint8" }), nil, nil, nil,
        core._encodings().Q8_0.number, 9, 64, 32)
      product(eight, eight, scale, scale, nil, "float32", false)
      tensor.arange(6):float():dot(tensor.ones(6))
      nn.LSTM(3, 4)(tensor.rand(6, 2, 3))
      return p
    end), { group_by_line = false })
    assert.are.equal(2 * 10 * 7 * 64, rows.linear_gelu.flops)
    assert.are.equal(2 * 10 * 9 * 64, rows._linear_encoded.flops)
    assert.are.equal(2 * 16 * 16 * 32, rows._float8_product.flops)
    assert.are.equal(2 * 6, rows.dot.flops)
    assert.are.equal(2 * (6 * 2 * 16) * 4, rows.lstm_layer.flops)
  end)

  it("shows shapes, memory, the stack and the modules where they are asked for", function()
    local model, x = nn.Sequential(nn.Linear(16, 64), nn.ReLU()), tensor.rand(32, 16)
    local prof = accelerator:profile({ record_shapes = true, profile_memory = true, with_stack = true,
      with_modules = true }, function(p)
      local function deep() return model(x) end
      local y = deep()
      assert(y)
      return p
    end)
    local event = prof:events()[1]
    assert.are.equal("linear", event.name)
    assert.are.equal("[[32, 16], [64, 16], [64]]", event.input_shapes)
    assert.are.equal("Sequential > Linear", event.modules)
    assert.truthy(event.stack:find("profiler_spec.lua:%d+.*\n.*profiler_spec.lua:%d+"))
    assert(event.bytes >= 32 * 64 * 4)
    local text = prof:key_averages({ group_by_input_shape = true }):table()
    assert.truthy(text:find("Input Shapes", 1, true) and text:find("CPU Mem", 1, true)
      and text:find("[[32, 16], [64, 16], [64]]", 1, true))
    local plain = accelerator:profile(function(p) model(x) return p end):events()[1]
    assert.is_nil(plain.input_shapes or plain.stack or plain.modules)
  end)

  it("makes a table, sorted and cut", function()
    local prof = accelerator:profile(function(p)
      for _ = 1, 5 do tensor.rand(4):exp() end
      tensor.rand(300, 300):mm(tensor.rand(300, 300))
      return p
    end)
    local text = prof:key_averages():table { sort_by = "self_cpu_time_total", row_limit = 1,
      header = "the header" }
    local lines = {}
    for one in text:gmatch("[^\n]*\n") do lines[#lines + 1] = one end
    assert.are.equal("the header\n", lines[1])
    assert.truthy(lines[3]:find("^Name +Line +Self CPU %% +Self CPU +CPU total %% +CPU total +CPU time " ..
      "avg +# of Calls\n$"))
    local most = prof:key_averages()[1]  -- mm, but for what else the machine is doing meanwhile
    for _, row in ipairs(prof:key_averages()) do
      if row.self_cpu_time_total > most.self_cpu_time_total then most = row end
    end
    assert.truthy(lines[5]:find("^" .. most.key .. " +%S*profiler_spec.lua:%d+ +%d+%.%d+%% +%d+%.%d+[mu]s"))
    assert.are.equal(7, #lines)
    assert.truthy(lines[7]:find("^Self CPU time total: %d+%.%d+[mu]s\n$"))
    text = prof:key_averages():table { sort_by = "count", row_limit = -1 }
    assert.truthy(text:find("exp.*mm"))
    assert.error_matches(function() prof:key_averages():table { sort_by = "cpu_time_totl" } end,
      "did you mean 'cpu_time_total'")
    assert.error_matches(function() prof:key_averages { group_by = 1 } end, "unknown option 'group_by'")
  end)

  it("names ranges, optimizers and steps", function()
    local p = nn.Parameter(tensor.rand(4))
    local optimizer = optim.SGD({ p }, { lr = 0.1 })
    local rows = rows_of(accelerator:profile(function(prof)
      local a, b = profiler.record_function("my range", function(x) p:sum():backward() return x, 2 end, 1)
      assert(a == 1 and b == 2)
      optimizer:step()
      return prof
    end), { group_by_line = false })
    assert.are.equal(1, rows["my range"].count)
    assert(rows["my range"].cpu_time_total > rows.sum.cpu_time_total)
    assert.are.equal("optimizer", rows["optimizer.sgd"].category)
    assert.are.equal(5, profiler.record_function("outside", function() return 5 end))
  end)

  it("writes a Chrome trace", function()
    host.in_folder(function(folder)
      accelerator:profile({ record_shapes = true, with_flops = true, output_trace_dir = folder ..
        "/deep/er" }, function()
        tensor.rand(3, 4):mm(tensor.rand(4, 5))
      end)
      local trace = assert(json.decode(disk.read(folder .. "/deep/er/profile_0.json")))
      local found
      for _, e in ipairs(trace.traceEvents) do
        if e.name == "mm" then found = e end
      end
      assert.are.equal("X", found.ph)
      assert.are.equal("cpu_op", found.cat)
      assert(found.ts > 0 and found.dur > 0)
      assert.are.same({ { 3, 4 }, { 4, 5 } }, found.args["Input Dims"])
      assert.are.equal(120, found.args.flops)
      assert.truthy(found.args.Line:find("profiler_spec.lua:%d+$"))
      local prof = accelerator:profile(function(p) tensor.rand(2) return p end)
      assert.error_matches(function() prof:export_chrome_trace(folder .. "/no/such/x.json") end,
        "export_chrome_trace: .*No such file")
    end)
  end)

  it("follows the schedule", function()
    local ready, seen = {}, {}
    local function run(option, steps)
      ready, seen = {}, {}
      accelerator:profile({ schedule_option = option, on_trace_ready = function(prof)
        ready[#ready + 1] = prof.step_num
        local rows = rows_of(prof, { group_by_line = false })
        local names = {}
        for _, e in ipairs(prof:events()) do names[#names + 1] = e.name:match("^ProfilerStep#%d+$") end
        table.sort(names)
        assert.are.equal(#names, rows["ProfilerStep*"].count)  -- one row for all of them
        seen[#seen + 1] = table.concat(names, " ") .. " " .. (rows.exp and rows.exp.count or 0)
      end }, function(prof)
        local x = tensor.rand(2)
        for _ = 1, steps do
          x:exp()
          prof:step()
        end
      end)
    end
    run({ wait = 1, warmup = 1, active = 2 }, 9)
    assert.are.same({ 3, 7 }, ready)
    assert.are.same({ "ProfilerStep#2 ProfilerStep#3 2", "ProfilerStep#6 ProfilerStep#7 2" }, seen)
    run({ wait = 1, warmup = 1, active = 2, ["repeat"] = 1, skip_first = 3 }, 20)
    assert.are.same({ 6 }, ready)
    assert.are.same({ "ProfilerStep#5 ProfilerStep#6 2" }, seen)
    run({ active = 3 }, 4)  -- ends inside a cycle: what there is of it counts
    assert.are.same({ 2, 4 }, ready)
    assert.are.same({ "ProfilerStep#0 ProfilerStep#1 ProfilerStep#2 3", "ProfilerStep#3 ProfilerStep#4 1" },
      seen)
    run({ wait = 5, active = 1 }, 3)
    assert.are.same({}, ready)
    local schedule, words = profiler.schedule { wait = 1, warmup = 2, active = 2, ["repeat"] = 2,
      skip_first = 1 }, {}
    for step = 0, 12 do words[#words + 1] = schedule(step):sub(1, 1) .. #schedule(step) end
    assert.are.equal("n4 n4 w6 w6 r6 r15 n4 w6 w6 r6 r15 n4 n4", table.concat(words, " "))
  end)

  it("calls on_trace_ready at the end where there is no schedule, and keeps the events", function()
    local calls = 0
    local prof = accelerator:profile({ on_trace_ready = function() calls = calls + 1 end }, function(p)
      tensor.rand(2):exp()
      p:step()
      tensor.rand(2):exp()
      return p
    end)
    assert.are.equal(1, calls)
    assert.are.equal(2, rows_of(prof, { group_by_line = false }).exp.count)
    assert.error_matches(function() prof:step() end, "step was called after the profile ended")
  end)

  it("leaves nothing behind when the function raises", function()
    local prof
    assert.error_matches(function()
      accelerator:profile({ output_trace_dir = "/no/such/place" }, function(p)
        prof = p
        profiler.record_function("open", function() error("boom") end)
      end)
    end, "boom")
    local _, before = core._profile_events()
    tensor.rand(2):exp()
    local _, after = core._profile_events()
    assert.are.equal(before, after)
    assert.are.equal("open", prof:events()[1].name)
    assert.is_true(accelerator:profile(function() return true end))
  end)

  it("survives hooks and gradients of one's own, and a profile inside a profile is refused", function()
    local Twice = tensor.Function {
      forward = function(_, x) return x * 2 end,
      backward = function(_, g) return g * 2 end,
    }
    local x = tensor.rand(3, { requires_grad = true })
    local prof = accelerator:profile(function(p)
      x:register_hook(function(g) return g * 1 end)
      Twice(x):sum():backward()
      assert.error_matches(function() accelerator:profile(function() end) end, "another profile is under way")
      return p
    end)
    assert.are.same({ 2, 2, 2 }, x.grad:totable())
    local custom
    for _, e in ipairs(prof:events()) do
      custom = custom or e.category == "backward" and e.name:find("_backward$") and e.name
    end
    assert(custom)
  end)

  it("takes a handler among kwargs_handlers, and names what is wrong", function()
    local own = accelerate.Accelerator {
      kwargs_handlers = { accelerate.ProfileKwargs { with_flops = true } } }
    local prof = own:profile(function(p) tensor.rand(2, 2):mm(tensor.rand(2, 2)) return p end)
    assert.are.equal(16, rows_of(prof, { group_by_line = false }).mm.flops)
    assert.are.equal(0,
      rows_of(own:profile({}, function(p) tensor.rand(2, 2):mm(tensor.rand(2, 2)) return p end),
      { group_by_line = false }).mm.flops)
    assert.error_matches(function() own:profile() end, "expected a function as the last argument, got nil")
    assert.error_matches(function() own:profile(print, { with_flops = true }) end,
      "profile: the options come before the function: { with_flops = ... }, fn")
    assert.error_matches(function() own:profile(5, print) end, "the handler must be a ProfileKwargs, got 5")
    assert.error_matches(function() own:profile({ with_flop = true }, print) end, "did you mean 'with_flops'")
    assert.error_matches(function() own:profile({ activities = { "xpu" } }, print) end,
      "there is no device of kind 'xpu' here")
    assert.error_matches(function() own:profile({ schedule_option = { wait = 1 } }, print) end, "active")
  end)

  it("writes a file for each rank, collectives among the events", function()
    host.in_folder(function(folder)
      ranks.ok(2, [[
        local accelerator = accelerate.Accelerator()
        local model = accelerate.nn.Linear(4, 4)
        model = accelerator:prepare(model)
        accelerator:profile({ output_trace_dir = arg[1] }, function(prof)
          accelerator:backward(model(accelerate.tensor.rand(2, 4)):sum())
          accelerator:wait_for_everyone()
        end)
        for r = 0, 1 do check(io.open(("%s/profile_%d.json"):format(arg[1], r)), "the file of rank " .. r) end
      ]], { arguments = { folder } })
      for rank = 0, 1 do
        local trace = assert(json.decode(disk.read(("%s/profile_%d.json"):format(folder, rank))))
        assert.are.equal(rank, trace.distributedInfo.rank)
        local names = {}
        for _, e in ipairs(trace.traceEvents) do names[e.name] = e end
        assert.are.equal("collective", names.all_reduce.cat)
        assert.are.equal("collective", names.barrier.cat)
        assert.are.equal(rank, names.linear.pid)
      end
    end)
  end)
end)
