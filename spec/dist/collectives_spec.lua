-- host/core/dist/dist.c, dist/shm.c, dist/reduce.c, host/bind/dist.c: collectives against plain
-- expectations, between real processes.
local host = require "spec.support.host"
local processes = require "spec.support.processes"

-- Runs `body` in n ranks; every rank must reach its end.
local function in_ranks(n, body, options)
  local path = processes.script(
    "local core = require 'accelerate.core'\nlocal dist = core.dist\nlocal rank, n = dist.rank(), " ..
    "dist.world_size()\n" .. body ..
    "\nio.write('done ' .. rank .. '\\n')\n")
  local arguments = { "--num_processes", tostring(n), path }
  for i, word in ipairs(options or {}) do table.insert(arguments, i, word) end
  local status, out, err = host.run(arguments, { seconds = 120 })
  assert(status == 0, err)
  for rank = 0, n - 1 do assert(out:find("done " .. rank .. "\n", 1, true), out .. err) end
  return out
end

-- In the ranks: value(r, i) is element i of rank r, small whole numbers, so that every dtype holds
-- results exactly.
local VALUES = [[
local function value(r, i, dtype)
  if dtype == "bool" then return (r + i) % 3 == 0 end
  if n > 4 then return (r * 3 + i) % 8 == 0 and 2 or 1 end -- products of many
  return dtype == "uint8" and (r * 3 + i) % 4 or (r * 3 + i) % 7 - 2
end
local function filled(r, count, dtype)
  local list = {}
  for i = 1, count do list[i] = value(r, i, dtype) end
  return count == 0 and core.zeros(0, { dtype = dtype }) or core.tensor(list, { dtype = dtype })
end
local fold = {
  sum = function(a, b) return a + b end, prod = function(a, b) return a * b end,
  max = function(a, b) if type(a) == "boolean" then return a or b end return math.max(a, b) end,
  min = function(a, b) if type(a) == "boolean" then return a and b end return math.min(a, b) end,
}
fold.mean = fold.sum
local function reduced(i, op, dtype)
  local acc = value(0, i, dtype)
  for r = 1, n - 1 do acc = fold[op](acc, value(r, i, dtype)) end
  return op == "mean" and acc / n or acc
end
local function same(got, want, dtype, op)
  if got == want then return true end
  if op ~= "mean" then return false end
  local eps = ({ float64 = 1e-15, float32 = 1e-7, float16 = 1e-3, bfloat16 = 8e-3 })[dtype]
  return math.abs(got - want) <= eps * math.max(1, math.abs(want))
end
]]

local ALL_OPS = [[
local cases = {
  float32 = { "sum", "mean", "max", "min", "prod" }, float64 = { "sum", "mean", "max", "min", "prod" },
  float16 = { "sum", "mean", "max", "min", "prod" }, bfloat16 = { "sum", "mean", "max", "min", "prod" },
  int64 = { "sum", "max", "min", "prod" }, int32 = { "sum", "max", "min", "prod" },
    uint8 = { "sum", "max", "min", "prod" },
  bool = { "max", "min" },
}
local dtypes = { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool" }
for _, dtype in ipairs(dtypes) do
  for _, op in ipairs(cases[dtype]) do
    for _, count in ipairs(SIZES) do
      local t = filled(rank, count, dtype)
      assert(dist.all_reduce(t, op) == t)
      local got = t:totable()
      for i = 1, count do
        local want = reduced(i, op, dtype)
        if not same(got[i], want, dtype, op) then
          error(("all_reduce %s %s of %d elements: element %d is %s, expected %s"):format(op, dtype, count, i,
            tostring(got[i]), tostring(want)))
        end
      end
      local part = dist.reduce_scatter(filled(rank, count * n, dtype), op):totable()
      assert(#part == count)
      for i = 1, count do
        if not same(part[i], reduced(rank * count + i, op, dtype), dtype, op) then
          error(("reduce_scatter %s %s of %d elements: element %d"):format(op, dtype, count, i))
        end
      end
    end
  end
  for _, count in ipairs(SIZES) do
    local all = dist.all_gather(filled(rank, count, dtype))
    assert(all.dtype == dtype and all:numel() == n * count)
    local list = all:totable()
    for r = 0, n - 1 do
      for i = 1, count do assert(list[r * count + i] == value(r, i, dtype)) end
    end
    for root = 0, n - 1 do
      local t = filled(rank, count, dtype)
      assert(dist.broadcast(t, root) == t)
      for i, v in ipairs(t:totable()) do assert(v == value(root, i, dtype)) end
      local joined = dist.gather(filled(rank, count, dtype), root)
      assert((joined ~= nil) == (rank == root))
      if joined then
        local l = joined:totable()
        for r = 0, n - 1 do
          for i = 1, count do assert(l[r * count + i] == value(r, i, dtype)) end
        end
      end
    end
    dist.barrier()
  end
end
]]

describe("collectives", function()
  after_each(processes.clean)

  for _, n in ipairs { 1, 2, 3, 4 } do
    it(("give the plain result for every op, dtype and small size on %d ranks"):format(n), function()
      in_ranks(n, "local SIZES = { 0, 1, 5, 33, 1000 }\n" .. VALUES .. ALL_OPS)
    end)
  end

  for _, n in ipairs { 2, 3 } do
    it(("give the plain result for sizes around a chunk on %d ranks"):format(n), function()
      in_ranks(n, "local SIZES = { 8191, 16385, 70001 }\n" .. VALUES .. ALL_OPS)
    end)
  end

  it("work with many more ranks than cores", function()
    in_ranks(16, "local SIZES = { 0, 7, 3000 }\n" .. VALUES .. ALL_OPS)
  end)

  it("take any strides and shapes", function()
    in_ranks(2, [[
      local t = core.arange(6):view(2, 3):t() + rank
      local strided = core.zeros(3, 4):t()
      strided:copy_(core.full({ 4, 3 }, rank + 1))
      dist.all_reduce(strided)
      assert(strided:eq(3):all():item())
      local every_other = core.zeros(10)
      local view = every_other:view(5, 2):select(2, 1)
      view:fill_(rank + 1)
      dist.all_reduce(view)
      assert(table.concat(every_other:totable(), " ") == "3 0 3 0 3 0 3 0 3 0")
      local all = dist.all_gather(t)
      assert(table.concat(all.shape, "x") == "6x2")
      assert(all[1][2]:item() == 3 and all[4][2]:item() == 4)
      local scalars = dist.all_gather(core.tensor(rank + 0.5))
      assert(table.concat(scalars:totable(), " ") == "0.5 1.5" and scalars.ndim == 1)
      local part = dist.reduce_scatter(core.ones(4, 3))
      assert(table.concat(part.shape, "x") == "2x3" and part:eq(2):all():item())
    ]])
  end)

  it("add float16 and bfloat16 up in float32 and round once", function()
    in_ranks(3, [[
      -- 256 + 1 is 256 in bfloat16 when each sum is rounded; 256 + 1 + 1 = 258 when only the end is
      local t = core.tensor({ rank == 0 and 256 or 1 }, { dtype = "bfloat16" })
      assert(dist.all_reduce(t):item() == 258)
      local h = core.tensor({ rank == 0 and 2048 or 1 }, { dtype = "float16" })
      assert(dist.all_reduce(h):item() == 2050)
    ]])
  end)

  it("let NaN win in max and min, and wrap integers", function()
    in_ranks(2, [[
      for _, op in ipairs { "max", "min" } do
        for r = 0, 1 do
          local t = dist.all_reduce(core.tensor({ rank == r and 0/0 or 1 }), op):item()
          assert(t ~= t)
        end
      end
      assert(dist.all_reduce(core.tensor({ 200 }, { dtype = "uint8" })):item() == 144)
      assert(dist.all_reduce(core.tensor({ 2147483647 }, { dtype = "int32" })):item() == -2)
    ]])
  end)

  it("give the same bits on every rank and in every run", function()
    local function bits()
      return in_ranks(3, [[
        core.manual_seed(rank + 1)
        local t = core.randn(50000)
        dist.all_reduce(t, "mean")
        local ffi = require "ffi"
        local text = ffi.string(ffi.cast("const char *", t:data_ptr()), 200000)
        local all = dist.all_gather_bytes(text)
        for r = 2, n do assert(all[r] == all[1], "ranks differ") end
        local sum = 0
        for i = 1, #text do sum = (sum * 31 + text:byte(i)) % 2147483647 end
        if rank == 0 then io.write("bits ", sum, "\n") end
      ]]):match("bits (%d+)")
    end
    local first = bits()
    assert.is_truthy(first)
    for _ = 1, 3 do assert.equal(first, bits()) end
  end)

  it("carry byte strings of any length", function()
    in_ranks(3, [[
      local all = dist.all_gather_bytes(("%d\0"):format(rank):rep(rank * 50000))
      for r = 0, 2 do assert(all[r + 1] == ("%d\0"):format(r):rep(r * 50000)) end
      assert(dist.broadcast_bytes(rank == 2 and "hello" or nil, 2) == "hello")
      assert(dist.broadcast_bytes(rank == 0 and "" or nil) == "")
    ]])
  end)

  it("count as a write to the tensor", function()
    in_ranks(2, [[
      local w = core.ones(3, { requires_grad = true })
      local x = core.ones(3)
      local y = w * x
      dist.all_reduce(x)
      local ok, message = pcall(function() y:sum():backward() end)
      assert(not ok and message:find("in place") or message:find("modified"), message)
    ]])
  end)

  it("keep ranks together in a long run of small and large ones", function()
    in_ranks(4, [[
      local big = core.zeros(100000)
      for i = 1, 300 do
        local t = dist.all_reduce(core.tensor({ rank + i }))
        assert(t:item() == 6 + 4 * i)
        if i % 10 == 0 then
          big:fill_(rank)
          dist.all_reduce(big, "max")
          assert(big[1]:item() == 3 and big[-1]:item() == 3)
          dist.broadcast(big, i % 4)
        end
        if i % 7 == rank then dist.barrier() end
        if i % 7 ~= rank and i % 7 < 4 then dist.barrier() end
      end
    ]])
  end)

  it("know rank and size, alone and among others", function()
    local core = require "accelerate.core"
    assert.equal(0, core.dist.rank())
    assert.equal(1, core.dist.world_size())
    assert.equal(0, core.dist.local_rank())
    assert.equal(1, core.dist.local_world_size())
    in_ranks(2, [[
      assert(n == 2 and dist.local_rank() == rank and dist.local_world_size() == 2)
      assert(os.getenv("RANK") == tostring(rank) and os.getenv("LOCAL_RANK") == tostring(rank))
      assert(os.getenv("WORLD_SIZE") == "2" and os.getenv("LOCAL_WORLD_SIZE") == "2")
    ]])
  end)
end)

describe("a single process", function()
  local core = require "accelerate.core"
  local dist = core.dist

  it("runs every collective as a copy", function()
    local t = core.tensor({ 1, 2, 3, 4 })
    for _, op in ipairs { "sum", "mean", "max", "min", "prod" } do
      assert.equal(t, dist.all_reduce(t, op))
      assert.same({ 1, 2, 3, 4 }, t:totable())
      assert.same({ 1, 2, 3, 4 }, dist.reduce_scatter(t, op):totable())
    end
    assert.same({ 1, 2, 3, 4 }, dist.all_gather(t):totable())
    assert.same({ 1, 2, 3, 4 }, dist.gather(t, 0):totable())
    assert.equal(t, dist.broadcast(t, 0))
    assert.same({ "abc" }, dist.all_gather_bytes("abc"))
    assert.equal("abc", dist.broadcast_bytes("abc", 0))
    dist.barrier()
    assert.same({ 7 }, dist.all_gather(core.tensor(7)):totable())
  end)

  it("refuses what several would refuse", function()
    local function fails(pattern, fn, ...)
      local ok, message = pcall(fn, ...)
      assert.is_false(ok)
      assert.is_truthy(message:find(pattern), message)
    end
    fails("mean of int64 tensors is not defined", dist.all_reduce, core.arange(3), "mean")
    fails("sum of bool tensors is not defined: use max", dist.all_reduce, core.tensor({ true }), "sum")
    fails("all_reduce: argument 2 %(op%): expected one of sum, mean, max, min, prod, got string \"summ\"",
      dist.all_reduce, core.ones(1), "summ")
    fails("argument 1 %(tensor%)", dist.all_reduce, 3)
    fails("broadcast", dist.broadcast, core.ones(1), 1)
    fails("broadcast", dist.broadcast, core.ones(1), -1)
    fails("reduce_scatter: the first size must be a multiple", dist.reduce_scatter, core.tensor(1))
    fails("all_gather_bytes: argument 1 %(bytes%): expected a string", dist.all_gather_bytes, {})
    fails("broadcast_bytes: argument 1 %(bytes%): expected a string", dist.broadcast_bytes, nil, 0)
  end)
end)
