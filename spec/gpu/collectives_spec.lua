-- bench/collectives.lua, the check and benchmark of collectives: on ranks of the CPU, and by its
-- verb of support/on_gpu on GPUs; see support/gpu_ranks.lua.
local gpu_ranks = require "spec.support.gpu_ranks"
local host = require "spec.support.host"
local ranks = require "spec.support.ranks"

local COLLECTIVES = { "all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather" }

local function words_of(text)
  local words = {}
  for word in text:gmatch "%S+" do words[#words + 1] = word end
  return words
end

-- The table's rows, and that their figures fit together.
local function rows_of(out, n)
  local factors = { all_reduce = 2 * (n - 1) / n, all_gather = (n - 1) / n, reduce_scatter = (n - 1) / n,
    broadcast = 1, gather = (n - 1) / n }
  local rows = {}
  for line in out:gmatch "[^\n]+" do
    if line:match "^%a" then
      local name, bytes, count, dtype, _, place, us, alone, bus, wrong = unpack(words_of(line))
      assert.is_true(math.abs(alone - bytes / us / 1e3) <= 0.01 + 0.01 * alone, line)
      assert.is_true(math.abs(bus - alone * factors[name]) <= 0.011, line)
      rows[#rows + 1] = { name = name, bytes = tonumber(bytes), count = tonumber(count), dtype = dtype,
        place = place, wrong = tonumber(wrong) }
    end
  end
  return rows
end

local function names_in_order(rows)
  local names = {}
  for _, row in ipairs(rows) do
    if names[#names] ~= row.name then names[#names + 1] = row.name end
  end
  return names
end

describe("bench/collectives.lua on ranks of the CPU", function()
  -- `before` runs in each rank first.
  local function run(n, options, before)
    return ranks.run(n, (before or "") .. [[
      arg[0] = "bench/collectives.lua"
      dofile(arg[0])
    ]], { launch = { "--cpu", "--num_cpu_threads_per_process", "1" }, arguments = words_of(options) })
  end

  it("finds no wrong element, in every type, with any number of ranks", function()
    for n = 1, 3 do
      for _, op in ipairs { "sum", "max", "min" } do
        local status, out, err = run(n, "--types all --max 600 --factor 16 --iters 2 --warmup 0 --op " .. op)
        assert.are.equal(0, status, out .. err)
        local rows = rows_of(out, n)
        assert.are.equal(5 * 7 * 2, #rows)
        assert.are.same(COLLECTIVES, names_in_order(rows))
        assert.matches("wrong elements: 0 in 70 rows", out)
      end
    end
  end)

  it("counts the bytes of all ranks' parts, in whole elements", function()
    local status, out, err = run(3, "--types int64 --min 100 --max 100 --iters 1")
    assert.are.equal(0, status, out .. err)
    local sizes = {}
    for _, row in ipairs(rows_of(out, 3)) do
      sizes[#sizes + 1] = ("%s %d %d %s"):format(row.name, row.bytes, row.count, row.place)
    end
    assert.are.same({ "all_reduce 96 12 in", "all_gather 96 4 out", "reduce_scatter 96 4 out",
      "broadcast 96 12 in", "gather 96 4 out" }, sizes)
  end)

  it("reports one wrong element of many, where it is, and ends with status 1", function()
    local status, out, err = run(2,
      "--collectives reduce_scatter --types uint8 --min 512K --max 512K --iters 1",
      [[
        local real = core.dist.reduce_scatter
        function core.dist.reduce_scatter(x, op)
          local out = real(x, op)
          if rank == 1 then out:narrow(1, 200001, 1):add_(1) end
          return out
        end
      ]])
    assert.are.equal(1, status)
    assert.are.equal(2, rows_of(out, 2)[1].wrong) -- in the check before, and in that after
    assert.matches("rank 1: 2 wrong, element 200000 is %d+, must be %d+", out)
    assert.matches("wrong elements: 2 in 1 rows", out)
    assert.matches("collectives: 2 wrong elements", err)
  end)

  it("sees collectives that move nothing, exchange parts or take another root", function()
    for name, wrong in pairs {
      all_reduce = "function core.dist.all_reduce(x) return x end",
      all_gather = [[
        local real = core.dist.all_gather
        function core.dist.all_gather(x)
          local out = real(x)
          return accelerate.tensor.cat({ out:narrow(1, x:numel() + 1, x:numel()), x }, 1)
        end
      ]],
      broadcast = [[
        local real = core.dist.broadcast
        function core.dist.broadcast(x, root) return real(x, 1 - root) end
      ]],
    } do
      local options = "--types float32 --min 1K --max 1K --iters 1 --collectives " .. name
      local status, out = run(2, options, wrong .. "\n")
      assert.are.equal(1, status, name)
      assert.is_true(rows_of(out, 2)[1].wrong > 256, out)
    end
  end)

  it("refuses options that it does not know", function()
    for options, message in pairs {
      ["--sizes 8"] = "collectives: unknown option %-%-sizes",
      ["--types float8"] = "collectives: %-%-types: expected one of float32, .*; got float8",
      ["--factor 1"] = "collectives: %-%-factor: expected a number, 2 or more; got 1",
      ["--max"] = "collectives: %-%-max needs a value",
      ["--min 1K --max 8"] = "collectives: %-%-min 1024 is more than %-%-max 8",
    } do
      local status, _, err = run(1, options)
      assert.are.equal(1, status)
      assert.matches(message, err)
    end
  end)
end)

describe("bench/collectives.lua on GPUs", function()
  if gpu_ranks.why then
    it("checks NCCL's collectives", function() pending(gpu_ranks.why) end)
    return
  end

  local function run(n, options, more)
    local env = gpu_ranks.env(more)
    env.ACCEL_RUN, env.RANKS = host.path, tostring(n)
    return host.run(words_of("bench-collectives " .. options),
      { path = "spec/support/on_gpu", env = env, seconds = 120 })
  end

  it("finds no wrong element", function()
    for n = 1, math.min(gpu_ranks.most, 3) do
      local status, out, err = run(n, "--max 600 --factor 16 --iters 2 --warmup 0 --calls 2")
      assert.are.equal(0, status, out .. err)
      local rows = rows_of(out, n)
      assert.are.same(COLLECTIVES, names_in_order(rows))
      assert.matches(("^# %d ranks? on [^\n]*, nccl; "):format(n), out)
      assert.matches("wrong elements: 0 in 40 rows", out)
    end
  end)

  it("reports an element that NCCL has wrong", function()
    if not gpu_ranks.emulated then return pending("the stand-in for NCCL makes it wrong") end
    local status, out, err = run(2, "--collectives all_gather --types int32 --min 64 --max 64 --iters 1",
      { ACCEL_FAKE_NCCL = "corrupt:1:1" }) -- 0 is the first, with which the ranks join
    assert.are.equal(1, status, out .. err)
    assert.matches("rank 1: 1 wrong, element 15 is %d+, must be %d+", out)
    assert.matches("collectives: 1 wrong elements", err)
  end)
end)
