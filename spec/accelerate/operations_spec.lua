-- Collectives over nested values.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local operations = require "accelerate.utils.operations"
local ranks = require "spec.support.ranks"
local state = require "accelerate.state"
local utils = accelerate.utils

describe("operations on one process", function()
  after_each(function() state.reset() end)

  it("gather gives the data back as it is", function()
    local data = { a = core.tensor(3), b = { core.ones(2) } }
    assert.are.equal(data, utils.gather(data))
    assert.are.equal(0, data.a:dim())
  end)

  it("a leaf that is no tensor raises with its path", function()
    local bad = { x = { core.ones(1), { inner = "text" } } }
    for _, name in ipairs { "gather", "reduce", "pad_across_processes" } do
      assert.error_matches(function() utils[name](bad) end, name .. ": expected a tensor, or a table of them, got a string at x%[2%]%.inner")
    end
  end)

  it("reduce gives a clone, also with 'none'", function()
    local x = core.ones(2)
    local y = utils.reduce({ x }, "sum")[1]
    y:add_(1)
    assert.are.same({ 1, 1 }, x:totable())
    assert.are.same({ 1, 1 }, utils.reduce(x, "none"):totable())
    assert.error_matches(function() utils.reduce(x, "avg") end, "'avg' is not a reduction")
    assert.error_matches(function() utils.reduce(core.arange(3), "mean") end, "mean of int64 tensors is not defined")
  end)

  it("serialises nested values exactly", function()
    local value = { 1, 0.1, "te\0xt", true, { [5] = "five", key = { false } }, t = core.arange(6):reshape(2, 3), e = core.empty(0, 3),
      h = core.ones(2, { dtype = "bfloat16" }) }
    local copy = operations.deserialize(operations.serialize(value))
    assert.are.equal("te\0xt", copy[3])
    assert.are.equal(0.1, copy[2])
    assert.are.equal("five", copy[5][5])
    assert.is_false(copy[5].key[1])
    assert.are.same({ { 0, 1, 2 }, { 3, 4, 5 } }, copy.t:totable())
    assert.are.equal("int64", copy.t.dtype)
    assert.are.same({ 0, 3 }, copy.e.shape)
    assert.are.equal("bfloat16", copy.h.dtype)
    assert.are.equal(operations.serialize(value), operations.serialize(copy))
    assert.error_matches(function() operations.serialize { a = { print } } end, "the value.a%[1%] is a function, which cannot go from one process to another")
  end)

  it("walks nested values and keeps their form", function()
    local doubled = operations.recursively_apply(function(t) return t * 2 end, { core.ones(1), k = { z = core.ones(1), s = "kept" } })
    assert.are.equal(2, doubled[1]:item())
    assert.are.equal(2, doubled.k.z:item())
    assert.are.equal("kept", doubled.k.s)
    assert.are.equal(3, utils.find_batch_size { { a = core.ones(3, 2) } })
    assert.are.same({ 1, 1, 2 }, utils.concatenate({ { x = core.ones(2) }, { x = core.full({ 1 }, 2) } }).x:totable())
    assert.are.same({ 1, 2 }, utils.slice_tensors({ core.arange(5) }, 2, 3)[1]:totable())
  end)
end)

describe("operations on ranks", function()
  it("gather joins in rank order, for scalars, views and maps", function()
    for n = 2, 3 do
      ranks.ok(n, [[
        local x = core.arange(6):reshape(2, 3):t() + 10 * rank   -- not contiguous
        local got = accelerate.utils.gather { b = core.tensor(rank), a = { x } }
        check(got.b.shape[1] == ranks and got.b:sum():item() == ranks * (ranks - 1) / 2)
        check(got.a[1].shape[1] == 3 * ranks and got.a[1].shape[2] == 2)
        for r = 0, ranks - 1 do check(got.a[1][3 * r + 2][2]:item() == 4 + 10 * r) end
      ]])
    end
  end)

  it("reduce leaves its input alone", function()
    ranks.ok(3, [[
      local x = core.full({ 2 }, rank + 1)
      check(accelerate.utils.reduce(x):totable()[1] == 2, "the utility's default is the mean")
      check(accelerate.Accelerator():reduce(x):totable()[1] == 6, "the method's default is the sum")
      check(accelerate.utils.reduce({ m = x }, "max").m:totable()[2] == 3)
      check(accelerate.utils.reduce(x, "none"):totable()[1] == rank + 1)
      check(x:totable()[1] == rank + 1)
      check(accelerate.utils.reduce(x, "sum", 0.5):totable()[1] == 3)
    ]])
  end)

  it("pad_across_processes pads to the longest rank", function()
    ranks.ok(3, [[
      local utils = accelerate.utils
      local x = core.full({ rank + 1, 2 }, 5)
      local p = utils.pad_across_processes(x)
      check(p.shape[1] == 3 and p[1][1]:item() == 5 and (rank == 2 or p[3][1]:item() == 0))
      p = utils.pad_across_processes({ x }, { pad_index = -1, pad_first = true })[1]
      check(p[3][1]:item() == 5 and (rank == 2 or p[1][1]:item() == -1))
      local wide = utils.pad_across_processes(x:t(), { dim = 2 })
      check(wide.shape[1] == 2 and wide.shape[2] == 3)
      check(utils.pad_across_processes(x:t(), { dim = -1 }).shape[2] == 3)
      check(utils.pad_across_processes(x, { dim = 5 }) == x, "a dim that is not there leaves the tensor")
      check(utils.gather(utils.pad_across_processes(x, { dim = 1 })).shape[1] == 9)
    ]])
  end)

  it("gathers and broadcasts objects", function()
    ranks.ok(3, [[
      local utils = accelerate.utils
      local mine = {}
      for i = 1, rank do mine[i] = { from = rank, t = core.full({ 2 }, i) } end
      local all = utils.gather_object(mine)
      check(#all == 3 and all[1].from == 1 and all[3].from == 2 and all[3].t:totable()[1] == 2)
      local list = { rank, "x" .. rank }
      check(utils.broadcast_object_list(list, 2) == list and list[1] == 2 and list[2] == "x2")
      local t = core.full({ 3 }, rank)
      check(utils.broadcast({ t }, 1)[1] == t and t:totable()[3] == 1)
    ]])
  end)

  it("in debug mode names the shapes of all ranks", function()
    local status, _, err = ranks.run(2, [[accelerate.utils.gather { x = core.ones(2 + rank) }]], { env = { ACCELERATE_DEBUG_MODE = "1" } })
    assert.are_not.equal(0, status)
    assert.matches("gather: shapes differ between processes:%s+%- Process 0: x%[2%]%s+%- Process 1: x%[3%]", err)
  end)

  it("triggers reach all ranks, once", function()
    ranks.ok(3, [[
      local accelerator = accelerate.Accelerator()
      check(not accelerator:check_trigger())
      if rank == 1 then accelerator:set_trigger() end
      check(accelerator:check_trigger())
      check(not accelerator:check_trigger())
    ]])
  end)
end)
