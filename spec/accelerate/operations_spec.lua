-- Collectives over nested values.
local accelerate = require "accelerate"
local core = require "accelerate.core"
local operations = require "accelerate.collectives.operations"
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
      assert.error_matches(function() utils[name](bad) end, name ..
        ": expected a tensor, or a table of them, got a string at x%[2%]%.inner")
    end
  end)

  it("reduce gives a clone, also with 'none'", function()
    local x = core.ones(2)
    local y = utils.reduce({ x }, "sum")[1]
    y:add_(1)
    assert.are.same({ 1, 1 }, x:totable())
    assert.are.same({ 1, 1 }, utils.reduce(x, "none"):totable())
    assert.error_matches(function() utils.reduce(x, "avg") end, "'avg' is not a reduction")
    assert.error_matches(function() utils.reduce(core.arange(3), "mean") end,
      "mean of int64 tensors is not defined")
  end)

  it("names the argument that is wrong", function()
    local x = core.ones(2)
    local function fails(pattern, fn, ...)
      local ok, message = pcall(fn, ...)
      assert.is_false(ok)
      assert.matches(pattern, message)
      assert.matches("operations_spec.lua:%d+: ", message)
    end
    fails("gather: expected a tensor, or a table of them, got nil", utils.gather)
    fails("gather_object: expected a list, got nil", utils.gather_object)
    fails("gather_object: expected a list, got a map %(it has a key 'a'%)", utils.gather_object, { a = 1 })
    fails("gather_object: list%[2%].net is a function", utils.gather_object, { 1, { net = print } })
    fails("broadcast: from_process must be at least 0 and at most 0, got 1", utils.broadcast, x, 1)
    fails("broadcast: from_process must be an integer, got 'x'", utils.broadcast, x, "x")
    fails("broadcast: unknown option 'from'", utils.broadcast, x, { from = 0 })
    fails("broadcast: expected a tensor", utils.broadcast, 3)
    fails("broadcast_object_list: expected a list, got a number", utils.broadcast_object_list, 3)
    fails("copy_tensor_to_devices: tensor must be a tensor, got 3", utils.copy_tensor_to_devices, 3)
    fails("copy_tensor_to_devices: no rank has a tensor", utils.copy_tensor_to_devices)
    fails("reduce: reduction must be a string, got 3", utils.reduce, x, 3)
    fails("reduce: option 'scale' must be a number, got 'x'", utils.reduce, x, "sum", { scale = "x" })
    fails("reduce: the scale is an option: write reduce%(data, \"sum\", { scale = 3 }%)", utils.reduce, x,
      "sum", 3)
    fails("reduce: the reduction comes by position: write reduce%(data, \"max\"%)", utils.reduce, x,
      { reduction = "max" })
    fails("reduce: unknown option 'reductoin'; did you mean 'reduction'", utils.reduce, x,
      { reductoin = "sum" })
    fails("reduce: the sum of bool tensors is not defined", utils.reduce, core.tensor({ true }), "sum")
    fails("pad_across_processes: dim counts from 1 %(%-1 is the last%), got 0", utils.pad_across_processes, x,
      { dim = 0 })
    fails("pad_across_processes: option 'pad_index' must be a number or true or false, got 'x'",
      utils.pad_across_processes, x, { pad_index = "x" })
    fails("pad_across_processes: options must be a table, got 1", utils.pad_across_processes, x, 1)
  end)

  it("collectives on one process give the data back", function()
    local list, x = { 1, "a" }, core.ones(2)
    assert.are.equal(list, utils.gather_object(list))
    assert.are.equal(list, utils.broadcast_object_list(list))
    assert.are.equal(x, utils.broadcast(x))
    assert.are.equal(x, utils.pad_across_processes(x))
    local copy = utils.copy_tensor_to_devices(x)
    copy:add_(1)
    assert.are.same({ 1, 1 }, x:totable())
    assert.are.same({ 3, 3 }, utils.reduce(x, "sum", { scale = 3 }):totable())
    local cyclic = {}
    cyclic[1] = cyclic
    assert.error_matches(function() utils.gather(cyclic) end,
      "gather: tables are nested more than 200 deep %(or one holds itself%)")
  end)
end)

describe("objects as bytes", function()
  it("serialises nested values exactly", function()
    local value = { 1, 0.1, "te\0xt", true, { [5] = "five", key = { false } },
      t = core.arange(6):reshape(2, 3), e = core.empty(0, 3),
      h = core.ones(2, { dtype = "bfloat16" }), ["a b"] = -2 ^ 53, [false] = {}, [-1.5] = core.tensor(7):t() }
    local copy = operations.deserialize(operations.serialize(value))
    assert.are.equal("te\0xt", copy[3])
    assert.are.equal(0.1, copy[2])
    assert.are.equal("five", copy[5][5])
    assert.is_false(copy[5].key[1])
    assert.are.same({ { 0, 1, 2 }, { 3, 4, 5 } }, copy.t:totable())
    assert.are.equal("int64", copy.t.dtype)
    assert.are.same({ 0, 3 }, copy.e.shape)
    assert.are.equal("bfloat16", copy.h.dtype)
    assert.are.equal(-2 ^ 53, copy["a b"])
    assert.are.same({}, copy[false])
    assert.are.equal(7, copy[-1.5]:item())
    assert.are.equal(operations.serialize(value), operations.serialize(copy))
    assert.is_nil(operations.deserialize(operations.serialize(nil)))
  end)

  it("keeps numbers that text would lose", function()
    local copy = operations.deserialize(operations.serialize { 0 / 0, 1 / 0, -1 / 0, -0.0, 5e-324, 2 ^ 1023 })
    assert.is_true(copy[1] ~= copy[1])
    assert.are.same({ 1 / 0, -1 / 0 }, { copy[2], copy[3] })
    assert.are.equal(-1 / 0, 1 / copy[4])
    assert.are.same({ 5e-324, 2 ^ 1023 }, { copy[5], copy[6] })
  end)

  it("keeps the elements of every type, also of views", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8",
      "bool" } do
      local x = core.tensor({ { 0, 1, 2 }, { 3, 0, 5 } }):to(dtype)
      for _, view in ipairs { x, x:t(), x:narrow(2, 2, 2), x[2][1], x:narrow(1, 1, 0) } do
        local copy = operations.deserialize(operations.serialize(view))
        assert.are.equal(dtype, copy.dtype)
        assert.are.same(view.shape, copy.shape)
        assert.are.same(view:dim() == 0 and view:item() or view:totable(), copy:dim() == 0 and copy:item()
          or copy:totable())
      end
    end
    local w = core.ones(2, { requires_grad = true })
    assert.is_false(operations.deserialize(operations.serialize(w * 2)).requires_grad)
  end)

  it("gives the same bytes in whatever order keys were added", function()
    local a, b = {}, {}
    for i = 1, 100 do a["key" .. i], a[-i], a[i + 0.5] = i, i, i end
    for i = 100, 1, -1 do b[i + 0.5], b[-i], b["key" .. i] = i, i, i end
    b[true] = 1
    a[true] = 1
    assert.are.equal(operations.serialize(a), operations.serialize(b))
    local ordered = require("accelerate.utils.ordered").new()
    ordered.z, ordered.a = 1, 2
    assert.are.same({ a = 2, z = 1 }, operations.deserialize(operations.serialize(ordered)))
  end)

  it("names what is no data, and where it lies", function()
    local released = core.ones(1)
    core.release(released)
    local cyclic = { a = {} }
    cyclic.a["b c"] = cyclic.a
    local deep = {}
    for _ = 1, 200 do deep = { deep } end
    for pattern, value in pairs {
      ["value.a%[1%] is a function, which cannot go"] = { a = { print } },
      ["value.co is a thread"] = { co = coroutine.create(print) },
      ["value%[2%] is a userdata"] = { 1, io.stdout },
      ["value%[2%] is a cdata"] = { 1, 5LL },
      ["value.m is an object %(a table with a metatable%)"] = { m = accelerate.nn.ReLU() },
      ["value.t is a released tensor"] = { t = released },
      ["value has a table as a key"] = { [{}] = 1 },
      ['value.a%["b c"%] is the value.a itself'] = cyclic,
      ["is nested more than 100 tables deep"] = deep,
    } do
      assert.error_matches(function() operations.serialize(value) end, pattern)
    end
    local twice = { 1 }
    -- no cycle
    assert.are.same({ { 1 }, { 1 } }, operations.deserialize(operations.serialize { twice, twice }))
  end)

  it("damaged bytes are an error, never a crash, and nothing in them is run", function()
    local bytes = operations.serialize { 1, "text", { a = core.arange(3), [2.5] = "q", b = { true, false } },
      core.ones(2, 2), { { {} } } }
    assert.error_matches(function() operations.deserialize(3) end,
      "argument 1 %(bytes%): expected a string, got number 3")
    assert.error_matches(function() operations.deserialize("return os.exit(7)") end, "deserialize: .*damaged")
    for length = 0, #bytes - 64 do
      assert.is_false((pcall(operations.deserialize, bytes:sub(1, length))))
    end
    local random = core.Generator(5)
    local function draw(n) return core.randint(0, n, { 1 }, { generator = random }):item() end
    local errors = 0
    for _ = 1, 3000 do
      local text = bytes
      for _ = 1, 1 + draw(3) do
        local at = draw(math.min(#text, 400)) + 1
        text = text:sub(1, at - 1) .. string.char(draw(256)) .. text:sub(at + 1)
      end
      if not pcall(operations.deserialize, text) then errors = errors + 1 end
    end
    assert.is_true(errors > 500)
  end)

  it("takes a hundred thousand small tables in well under a second", function()
    local rows = {}
    for i = 1, 1e5 do rows[i] = { id = i, text = "row" .. i } end
    local began = os.clock()
    local copy = operations.deserialize(operations.serialize(rows))
    assert.is_true(os.clock() - began < 2)
    assert.are.same({ id = 1e5, text = "row100000" }, copy[1e5])
  end)
end)

describe("walks over nested values", function()
  it("walks nested values and keeps their form", function()
    local doubled = operations.recursively_apply(function(t) return t * 2 end,
      { core.ones(1), k = { z = core.ones(1), s = "kept" } })
    assert.are.equal(2, doubled[1]:item())
    assert.are.equal(2, doubled.k.z:item())
    assert.are.equal("kept", doubled.k.s)
    assert.are.equal(3, utils.find_batch_size { { a = core.ones(3, 2) } })
    assert.are.same({ 1, 1, 2 },
      utils.concatenate({ { x = core.ones(2) }, { x = core.full({ 1 }, 2) } }).x:totable())
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
      check(accelerate.utils.reduce(x, "sum", { scale = 0.5 }):totable()[1] == 3)
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

  it("gathers objects of any kind, as data", function()
    for n = 2, 4 do
      ranks.ok(n, [[
        local gather_object = accelerate.utils.gather_object
        local all = gather_object { "x" .. rank, rank / 3,
          { a = { core.full({ rank + 1 }, rank) }, ok = rank == 1 }, "\0\255" }
        check(#all == 4 * ranks)
        for r = 0, ranks - 1 do
          local i = 4 * r
          check(all[i + 1] == "x" .. r and all[i + 2] == r / 3 and all[i + 4] == "\0\255")
          check(all[i + 3].ok == (r == 1) and all[i + 3].a[1]:numel() == r + 1
            and all[i + 3].a[1][-1]:item() == r)
        end
        local none = gather_object(rank == 0 and {} or { rank })
        check(#none == ranks - 1 and none[1] == 1)
      ]])
    end
  end)

  it("broadcast_object_list replaces lists of other lengths, not the sender's", function()
    ranks.ok(3, [[
      local utils = accelerate.utils
      local inner = { 7 }
      local list = rank == 1 and { inner, "x", 0 / 0 } or rank == 0 and {} or { 1, 2, 3, 4, 5 }
      check(utils.broadcast_object_list(list, { from_process = 1 }) == list)
      check(#list == 3 and list[1][1] == 7 and list[2] == "x" and list[3] ~= list[3])
      check((list[1] == inner) == (rank == 1))
      local ok, message = pcall(utils.broadcast_object_list, { 1 }, 3)
      check(not ok and message:find("from_process must be at least 0 and at most 2, got 3"), message)
      local data = { a = core.full({ 2, 2 }, rank):t(), b = { core.tensor(rank) } }
      check(utils.broadcast(data, 2) == data and data.a[1][2]:item() == 2 and data.b[1]:item() == 2)
    ]])
  end)

  it("copy_tensor_to_devices takes the tensor of the one rank that has it", function()
    ranks.ok(3, [[
      local copy = accelerate.utils.copy_tensor_to_devices
      for _, dtype in ipairs { "float32", "bool", "int64", "bfloat16" } do
        local mine = rank == 1 and core.tensor({ { 1, 0, 1 }, { 0, 1, 0 } }):to(dtype):t() or nil
        local got = copy(mine)
        check(got ~= mine and got.dtype == dtype and got.shape[1] == 3 and got.shape[2] == 2)
        check(text(got:float():reshape(-1)) == "1 0 0 1 1 0")
      end
      local ok, message = pcall(copy, rank > 0 and core.ones(1) or nil)
      check(not ok and message:find("copy_tensor_to_devices: ranks 1 and 2 each have a tensor"), message)
      ok, message = pcall(copy)
      check(not ok and message:find("no rank has a tensor"), message)
    ]])
  end)

  it("averages losses only when asked", function()
    ranks.ok(2, [[
      local accelerator = accelerate.Accelerator()
      local loss = core.tensor(rank + 1)
      check(loss:item() == rank + 1)
      check(accelerator:reduce(loss, "mean"):item() == 1.5 and accelerator:gather(loss):mean():item() == 1.5)
      check(accelerator:reduce(loss):item() == 3 and accelerator:reduce(loss, { scale = 2 }):item() == 6)
      check(accelerator:reduce(loss, "none"):item() == rank + 1, "none does nothing")
      local ok, message = pcall(accelerator.reduce, accelerator, { n = core.arange(2) }, "mean")
      check(not ok and message:find("the mean of int64 tensors is not defined.*%(at n%)"), message)
    ]])
  end)

  it("different requests are an error on both ranks, without debug mode", function()
    local _, _, err = ranks.run(2, [[
      local ok, message = pcall(accelerate.utils.gather, core.ones(2 + rank))
      io.stderr:write(("rank %d: %s\n"):format(rank, message))
      error(message, 0)
    ]])
    for rank = 0, 1 do
      assert.matches(("rank %d: [^\n]*all_gather%%(float32, %d elements%%)"):format(rank, 2 + rank), err)
    end
  end)

  it("wait_for_everyone is a barrier, and nothing on one process", function()
    ranks.ok(1, [[ accelerate.Accelerator():wait_for_everyone() accelerate.utils.wait_for_everyone() ]])
    ranks.ok(3, [[
      local accelerator, path = accelerate.Accelerator(), arg[0] .. ".mark"
      if rank == 1 then
        local soon = os.clock() + 0.05
        while os.clock() < soon do end
        io.open(path, "w"):close()
      end
      accelerator:wait_for_everyone()
      check(io.open(path), "rank 1 had not been here")
      accelerate.utils.wait_for_everyone()
    ]])
  end)

  it("in debug mode names the shapes of all ranks", function()
    local status, _, err = ranks.run(2, [[accelerate.utils.gather { x = core.ones(2 + rank) }]],
      { env = { ACCELERATE_DEBUG_MODE = "1" } })
    assert.are_not.equal(0, status)
    assert.matches("gather: shapes differ between processes:%s+%- Process 0: x%[2%]%s+%- Process 1: x%[3%]",
      err)
    ranks.ok(2, [[
      local utils = accelerate.utils
      check(accelerate.PartialState().debug)
      local function refused(what, ...)
        local ok, message = pcall(utils[what], ...)
        check(not ok and message:find("DistributedOperationException: " .. what ..
          ": shapes differ between processes", 1, true), message)
        for r = 0, 1 do check(message:find("Process " .. r .. ": "), message) end
      end
      refused("gather", core.ones(2, 3 + rank))
      refused("gather", core.ones(rank == 0 and { 2, 3 } or { 3, 2 }))  -- as many elements
      refused("reduce", { a = core.ones(2 + rank) }, "sum")
      refused("broadcast", rank == 0 and { core.ones(1) } or { core.ones(1), core.ones(1) })
      refused("pad_across_processes", core.ones(2 + rank, 3 + rank))
      check(utils.pad_across_processes(core.ones(2 + rank, 3)).shape[1] == 3)
      check(utils.gather(core.ones(2)):numel() == 4)
    ]], { env = { ACCELERATE_DEBUG_MODE = "yes" } })
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
