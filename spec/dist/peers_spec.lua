-- Gradients that ranks of one machine reduce where they are: host/core/dist/peers.c, pull.c.  Their
-- bits are those of the same numbers in memory of each rank's own, which travel through windows.
local processes = require "spec.support.processes"

local HEAD = [[
local core, dist = require "accelerate.core", require "accelerate.distributed"
local tensor, nn = require "accelerate.tensor", require "accelerate.nn"
local rank, n = dist.get_rank(), dist.get_world_size()
local ffi = require "ffi"
ffi.cdef "int usleep(unsigned); int getpid(void);"

-- The gradients of a layout of some elements, in memory that other ranks can map; and the layout.
local function open(count, dtype)
  local p = nn.Parameter(tensor.zeros(count, { dtype = dtype or "float32" }))
  local layout = core.flat({ p }, 1)
  layout:give_grads()
  return layout:grads():narrow(1, 1, count), layout
end

-- How many such files this process maps.
local function mapped()
  local maps, seen, count = assert(io.open("/proc/self/maps")), {}, 0
  for line in maps:lines() do
    local inode = line:match("(%d+) +/memfd:accel gradients")
    if inode and not seen[inode] then seen[inode], count = true, count + 1 end
  end
  maps:close()
  return count
end

local function same(a, b) return a:eq(b):all():item() end
local function values(count, dtype, seed)
  return tensor.randn(count, { generator = tensor.Generator(seed * 100 + rank) }):to(dtype)
end
]]

local _, works = processes.on_ranks(HEAD)

describe("gradients that ranks reduce where they are", function()
  after_each(processes.clean)

  for _, ranks in ipairs { 2, 3, 4, 8 } do
    it(("have the bits of windows, with %d ranks"):format(ranks), function()
      works(ranks, [[
        for k, dtype in ipairs { "float32", "float64", "float16", "bfloat16" } do
          local count = 300000 + 37 * k
          local whole = open(count, dtype)
          for _, op in ipairs { "sum", "mean", "max", "prod" } do
            local given = values(count, dtype, k)
            whole:copy_(given)
            dist.all_reduce(whole, { op = op })
            assert(same(whole, dist.all_reduce(given:clone(), { op = op })), dtype .. " " .. op)
          end
          assert(mapped() == n * k, mapped())
        end
      ]])
    end)
  end

  it("are cut over ranks with the bits of windows", function()
    works(3, [[
      local count = 3 * 100003
      local whole, given = open(count), values(count, "float32", 1)
      whole:copy_(given)
      local part = dist.reduce_scatter(whole)
      assert(mapped() == 3 and same(whole, given))
      assert(same(part, dist.reduce_scatter(given)))
    ]])
  end)

  it("meet those of any group", function()
    works(4, [[
      local whole, given = open(200000), values(200000, "float32", 1)
      local pairs = { dist.new_group { 0, 1 }, dist.new_group { 2, 3 }, dist.new_group { 1, 2 } }
      for _ = 1, 3 do
        for _, g in ipairs(pairs) do
          if g.rank >= 0 then
            whole:copy_(given)
            dist.all_reduce(whole, { group = g })
            assert(same(whole, dist.all_reduce(given:clone(), { group = g })))
          end
        end
      end
      assert(mapped() == ((rank == 1 or rank == 2) and 3 or 2), mapped())
    ]])
  end)

  it("meet memory that cannot be mapped", function()
    works(3, [[
      local whole, given = open(200000), values(200000, "float32", 1)
      whole:copy_(given)
      local mine = rank == 1 and given:clone() or whole
      dist.all_reduce(mine)
      assert(mapped() == 1 and same(mine, dist.all_reduce(given:clone())))
      local part = dist.reduce_scatter((rank == 1 and given or whole:copy_(given)):narrow(1, 1, 199998))
      assert(same(part, dist.reduce_scatter(given:narrow(1, 1, 199998))))
    ]])
  end)

  it("travel through windows for a rank that has no file left to open", function()
    works(3, [[
      ffi.cdef "typedef struct { unsigned long soft, hard; } limits; int setrlimit(int, const limits *);"
      local whole, given = open(200001), values(200001, "float32", 1)
      whole:copy_(given)
      if rank == 1 then assert(ffi.C.setrlimit(7, ffi.new("limits", 3, 4096)) == 0) end
      local part = dist.reduce_scatter(whole)
      assert(same(part, dist.reduce_scatter(given)))
      dist.all_reduce(whole)
      if rank == 1 then assert(ffi.C.setrlimit(7, ffi.new("limits", 1024, 4096)) == 0) end
      assert(mapped() == (rank == 1 and 1 or 3), mapped())
      assert(same(whole, dist.all_reduce(given:clone())))
    ]])
  end)

  it("are each rank's own between reductions", function()
    works(2, [[
      local whole = open(200000)
      for step = 1, 3 do
        whole:fill_(rank + step)
        dist.all_reduce(whole)
        whole:narrow(1, 1, 1000):mul_(rank + 2)
        dist.barrier()
        assert(whole[1]:item() == (2 * step + 1) * (rank + 2) and whole[200000]:item() == 2 * step + 1)
      end
    ]])
  end)

  it("leave nothing when their layout has gone", function()
    works(2, [[
      local function use(count)
        local whole, layout = open(count)
        dist.all_reduce(whole:fill_(1))
        layout:dissolve()
      end
      for _ = 1, 4 do
        use(20 * 2 ^ 20)  -- 80 MB: more than is kept
        collectgarbage() collectgarbage()
        dist.barrier()
      end
      use(2 ^ 20)
      assert(mapped() == 2, mapped())
    ]])
  end)

  it("take the memory of gradients before them", function()
    works(2, [[
      local function use()
        local whole, layout = open(2 ^ 20)
        assert(whole:abs():sum():item() == 0)
        dist.all_reduce(whole:fill_(1))
        layout:dissolve()
      end
      for _ = 1, 4 do
        use()
        collectgarbage() collectgarbage()
        dist.barrier()
      end
      assert(mapped() == 2, mapped())
    ]])
  end)

  it("are kept when they are freed, until the cache is emptied", function()
    works(2, [[
      local function use()
        local whole, layout = open(2 ^ 20)
        dist.all_reduce(whole:fill_(1))
        layout:dissolve()
      end
      use()
      collectgarbage() collectgarbage()
      assert(mapped() == 2, mapped())
      core.empty_cache()
      assert(mapped() == 1, mapped())  -- the other rank's, until this one maps another
      use()
      assert(mapped() == 2, mapped())
    ]])
  end)

  it("stay as they are while a loader's worker writes its copy", function()
    works(2, [[
      local data = require "accelerate.data"
      local whole = open(200000)
      whole:fill_(rank + 1)
      local set = { len = function() return 4 end }
      function set:get(k)
        whole:fill_(100)
        return whole:narrow(1, k, 1):clone()
      end
      local loader = data.DataLoader(set, { batch_size = 2, num_workers = 1 })
      for x in loader:iter() do assert(x:sum():item() == 200) end
      assert(whole[1]:item() == rank + 1)
      dist.all_reduce(whole)
      assert(whole:sum():item() == 3 * 200000)
    ]])
  end)

  it("are summed into the parts of a sharded model", function()
    works(2, [[
      local accelerate, optim = require "accelerate", require "accelerate.optim"
      local a = accelerate.Accelerator {
        fsdp_plugin = { auto_wrap_policy = "SIZE_BASED_WRAP", min_num_params = 1000 } }
      local function new()
        local model = nn.Sequential(nn.Linear(500, 500), nn.Linear(500, 500))
        return model, optim.SGD(model:parameters(), { lr = 0.1 })
      end
      accelerate.utils.set_seed(1)
      local plain, plain_optimizer = new()
      accelerate.utils.set_seed(1)
      local model, optimizer = a:prepare(new())
      for step = 1, 3 do
        local x = tensor.randn(2, 8, 500, { generator = tensor.Generator(step) })
        plain_optimizer:zero_grad()
        plain(x):square():mean():backward()
        plain_optimizer:step()
        optimizer:zero_grad()
        a:backward(model(x[rank + 1]):square():mean())
        optimizer:step()
        assert(mapped() > 1 and mapped() <= 4, mapped())
      end
      accelerate.utils.summon_full_params(model, function()
        for k, p in ipairs(model:parameters()) do
          assert((p - plain:parameters()[k]):abs():max():item() < 1e-6)
        end
      end)
    ]])
  end)

  it("are right while ranks are late, at random", function()
    works(4, [[
      math.randomseed(rank + 1)
      local pid = ffi.C.getpid()
      local function stray()
        local what = math.random(8)
        if what <= 3 then ffi.C.usleep(math.random(3000)) end
        if what == 4 then os.execute(("(kill -STOP %d; sleep 0.02; kill -CONT %d) &"):format(pid, pid)) end
      end
      local common = tensor.Generator(7)  -- alike on all ranks
      local function choose(k) return tensor.randint(0, k, { 1 }, { generator = common }):item() end
      local g = dist.new_group { 3, 1, 0 }
      local held, list = {}, {}
      for k = 1, 3 do
        list[k], held[k] = open(150000 + 5000 * k)
      end
      for step = 1, 60 do
        local k, where, kind = choose(3) + 1, choose(2), choose(3)
        local group = where == 1 and g or dist.world
        local count = list[k]:numel() / 12 * 12
        local given = values(list[k]:numel(), "float32", step)
        stray()
        if group.rank >= 0 then
          local whole = list[k]:copy_(given)
          stray()
          local plain = tensor.zeros(whole:numel())
          for _, r in ipairs(group.ranks) do  -- each rank knows the others' numbers
            local seed = tensor.Generator(step * 100 + r)
            plain = plain + tensor.randn(whole:numel(), { generator = seed })
          end
          if kind == 0 then
            local size = math.floor(whole:numel() / group.size)
            local from = group.rank * size + 1
            local part = dist.reduce_scatter(whole:narrow(1, 1, size * group.size), { group = group })
            assert((part - plain:narrow(1, from, size)):abs():max():item() < 1e-5)
          else
            dist.all_reduce(whole, { op = kind == 1 and "mean" or "sum", group = group })
            if kind == 1 then plain = plain / group.size end
            assert((whole - plain):abs():max():item() < 1e-5)
          end
          stray()
        end
      end
    ]])
  end)
end)
