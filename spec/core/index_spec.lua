-- x[key] and x[key] = value.
local tensor = require "accelerate.tensor"
local raises = require("spec.support.messages").raises

local function grid() return tensor.arange(12):view(3, 4) end  -- {0..3}, {4..7}, {8..11}
local function longs(list) return tensor(list, { dtype = "int64" }) end

describe("reading", function()
  it("a position drops the dim, and counts from the end when negative", function()
    local x = grid()
    assert.same({ 4, 5, 6, 7 }, x[2]:totable())
    assert.same({ 8, 9, 10, 11 }, x[-1]:totable())
    assert.equal(6, x[2][3]:item())
  end)

  it("a list has one entry a dim", function()
    local x = grid()
    assert.equal(6, x[{ 2, 3 }]:item())
    assert.same({ 4, 5, 6, 7 }, x[{ 2 }]:totable())
    assert.same({ 2, 6, 10 }, x[{ {}, 3 }]:totable())
    assert.same({ 3, 7, 11 }, x[{ {}, -1 }]:totable())
    assert.same(x:totable(), x[{}]:totable())
    assert.same(x:totable(), x[{ {}, {} }]:totable())
  end)

  it("ranges include both ends, and may step", function()
    local x = grid()
    assert.same({ { 0, 1, 2, 3 }, { 4, 5, 6, 7 } }, x[{ { 1, 2 } }]:totable())
    assert.same({ { 5, 6 }, { 9, 10 } }, x[{ { 2, 3 }, { 2, 3 } }]:totable())
    assert.same({ { 4, 6 } }, x[{ { 2, 2 }, { 1, 4, 2 } }]:totable())
    assert.same({ 9, 10, 11 }, x[{ -1, { -3, -1 } }]:totable())
    assert.same({ 0, 3 }, x[{ 1, { 1, 4, 3 } }]:totable())
    assert.same({ 0, 4 }, x[{ { 3, 2 } }].shape)
    assert.same({ 0, 4 }, x[{ { 1, 0 } }].shape)
  end)

  it("gives views", function()
    local x = grid()
    x[{ { 1, 2 }, 1 }]:fill_(-1)
    assert.same({ { -1, 1, 2, 3 }, { -1, 5, 6, 7 }, { 8, 9, 10, 11 } }, x:totable())
  end)

  it("a bool tensor picks elements, or rows when it has fewer dims", function()
    local x = grid()
    assert.same({ 9, 10, 11 }, x[x:gt(8)]:totable())
    assert.same({ { 0, 1, 2, 3 }, { 8, 9, 10, 11 } }, x[tensor({ true, false, true })]:totable())
    assert.same({ 0 }, x[x:lt(0)].shape)
    assert.same({ 0, 4 }, x[tensor({ false, false, false })].shape)
    assert.same({ 3, 7, 11 }, x[x:remainder(4):eq(3)]:totable())
    assert.same({ 1, 3, 4 }, x[tensor(true)].shape)
  end)

  it("masks strided tensors in their own order", function()
    local x = grid():t()
    assert.same({ 8, 9, 10, 7, 11 }, x[x:gt(6)]:totable())
  end)

  it("an int64 tensor picks rows, counted from 0", function()
    local x = grid()
    assert.same({ { 8, 9, 10, 11 }, { 0, 1, 2, 3 } }, x[longs { 2, 0 }]:totable())
    assert.same({ 2, 2, 4 }, x[longs { { 0, 1 }, { 2, 0 } }].shape)
    assert.same({ 0, 4 }, x[longs {}].shape)
    assert.same({ 0, 1, 2, 3 }, x[longs(0)]:totable())
    assert.same({ { 1, 3 }, { 5, 7 }, { 9, 11 } }, x[{ {}, longs { 1, 3 } }]:totable())
    assert.same({ { 1, 3 }, { 5, 7 }, { 9, 11 } }, x[{ {}, tensor({ false, true, false, true }) }]:totable())
    assert.same({ 5, 7 }, x[{ 2, longs { 1, 3 } }]:totable())
  end)

  it("several tensors go together element by element; a grid is rows:unsqueeze(2)", function()
    local x = grid()
    local rows, columns = longs { 2, 0 }, longs { 1, 3 }
    assert.same({ 9, 3 }, x[{ rows, columns }]:totable())
    assert.same({ { 9, 11 }, { 1, 3 } }, x[{ rows:unsqueeze(2), columns }]:totable())
    assert.same({ { 9, 11 }, { 1, 3 } }, x[{ rows }][{ {}, columns }]:totable())
    assert.same({ 9, 1 }, x[{ rows, longs { 1 } }]:totable())
    assert.same({ 9, 3 }, x[{ tensor({ true, false, true }), longs { 1, 3 }:flip(1) }]:flip(1):totable())
    assert.same({ 9, 3 }, x[{ rows:to("int32"), columns }]:totable())
    raises("the positions for dim 1 have shape [2], those for dim 2 [3]", function()
      return x[{ rows, longs { 0, 1, 2 } }]
    end)
    raises("position 4 (counted from 0) is out of range for dim 2 of size 4 (shape [3, 4])", function()
      return x[{ rows, longs { 0, 4 } }]
    end)
    raises("position -5 (counted from 0) is out of range for dim 2", function()
      return x[{ rows, longs { 0, -5 } }]
    end)
    raises("position 4 (counted from 0) is out of range for dim 2", function()
      x[{ rows, longs { 0, 4 } }] = 1
    end)
    raises("expected a tensor of bool (a mask) or int64", function() return x[{ rows, tensor { 0, 1 } }] end)
  end)

  it("dims of lists stay where they are when they are neighbours, else they come first", function()
    local x = tensor.arange(2 * 3 * 4 * 5):view(2, 3, 4, 5)
    local i, j = longs { { 0, 1, 1 } }, longs { { 2 }, { 0 } }
    assert.same({ 2, 2, 3, 5 }, x[{ {}, i, j }].shape)
    assert.same({ 2, 3, 3, 5 }, x[{ i, {}, j }].shape)
    assert.same({ 2, 3, 5 }, x[{ 1, {}, 1, "..." }]:unsqueeze(1):expand(2, 3, 5).shape)
    assert.same({ 3, 2, 5 }, x[{ {}, longs { 0, 1, 1 }, 3 }]:transpose(1, 2).shape)
    assert.same({ 7, 5 }, x[{ tensor.arange(24):view(2, 3, 4):remainder(4):eq(0):logical_or(
      tensor.arange(24):view(2, 3, 4):eq(1)) }].shape)
    assert.same(x[{ 2, 3 }]:totable(), x[{ longs(1), longs(2) }]:totable())
  end)

  it("\"...\" alone is all of the tensor", function()
    local x = tensor.tensor { { 1, 2 }, { 3, 4 } }
    local view = x["..."]
    assert.same({ { 1, 2 }, { 3, 4 } }, view:tolist())
    view[1] = 0
    assert.same({ { 0, 0 }, { 3, 4 } }, x:tolist())
    x["..."] = tensor.tensor { 5, 6 }
    assert.same({ { 5, 6 }, { 5, 6 } }, x:tolist())
    assert.equal(7, tensor.tensor(7)["..."]:item())
    assert.same({ { 5, 6 }, { 5, 6 } }, x:index_put("...", 5):add(x):sub(5):tolist())
    raises('there is no field or method ".."', function() return x[".."] end)
  end)

  it("\"...\" stands for all dims between, tensor.newaxis for a new one", function()
    local x = tensor.arange(24):view(2, 3, 4)
    assert.same(x[{ {}, {}, 1 }]:totable(), x[{ "...", 1 }]:totable())
    assert.same(x[{ 2 }]:totable(), x[{ 2, "..." }]:totable())
    assert.equal(x[{ 2, 1, 4 }]:item(), x[{ 2, "...", 1, 4 }]:item())
    assert.same({ 1, 2, 3, 4 }, x[tensor.newaxis].shape)
    assert.same({ 2, 1, 4, 1 }, x[{ {}, 3, tensor.newaxis, "...", tensor.newaxis }].shape)
    assert.same({ 1 }, tensor(3)[{ tensor.newaxis }].shape)
    assert.same({}, tensor(3)[{ "..." }].shape)
    raises("entry 3: \"...\" may be there once", function() return x[{ "...", 1, "..." }] end)
    raises("4 entries for a tensor of 3 dims", function() return x[{ 1, 1, 1, 1 }] end)
    raises("the key takes 4 dims, the tensor has 3", function()
      return x[{ "...", tensor.newaxis, 1, x:gt(3) }]
    end)
    raises("would make 9 dims", function()
      local key = {}
      for i = 1, 6 do key[i] = tensor.newaxis end
      return x[key]
    end)
  end)

  it("is recorded", function()
    local x = tensor({ { 1, 2 }, { 3, 4 } }, { requires_grad = true })
    local y = x[1]:sum() + 10 * x[{ {}, 2 }]:sum() + 100 * x[x:gt(3)]:sum() + 1000 * x[longs { 0, 0 }]:sum()
    y:backward()
    assert.same({ { 2001, 2011 }, { 0, 110 } }, x.grad:totable())
  end)

  it("negative positions in tensors count from the end", function()
    local x = grid()
    assert.same(x[longs { 2, 0, 2 }]:totable(), x[longs { -1, -3, 2 }]:totable())
    assert.same(x[{ {}, 4 }]:totable(), x[{ {}, tensor(-1, { dtype = "int64" }) }]:totable())
    assert.same(x[{ longs { 2, 1 }, longs { 3, 0 } }]:totable(),
      x[{ longs { -1, 1 }, longs { 3, -4 } }]:totable())
    local int32 = tensor({ -1, 0 }, { dtype = "int32" })
    assert.same(x[longs { 2, 0 }]:totable(), x[int32]:totable())
    assert.same(x[longs { 2, 2, 2 }]:totable(), x[longs({ -1 }):expand(3)]:totable())
    local y = tensor.zeros(3, 2)
    y[{ longs { -1, 0 }, longs { 0, -1 } }] = tensor { 5, 6 }
    assert.same({ { 0, 6 }, { 0, 0 }, { 5, 0 } }, y:totable())
    y:index_put_({ longs { -1, -1 } }, tensor(1), { accumulate = true })
    assert.same({ 7, 2 }, y[3]:totable())
    local z = tensor.zeros(3, { requires_grad = true })
    z[longs { -1, -1, 0 }]:sum():backward()
    assert.same({ 1, 0, 2 }, z.grad:totable())
    raises("index_select", function() return x:index_select(1, longs { -1 }) end)
  end)

  it("refuses what lies outside", function()
    local x = grid()
    raises("index: position 4 is out of range for dim 1 of size 3 (shape [3, 4])", function() return x[4] end)
    raises("position -4 is out of range", function() return x[-4] end)
    raises("positions count from 1 (and from -1 backward); got 0", function() return x[0] end)
    raises("position 5 is out of range for dim 2 of size 4", function() return x[{ 1, 5 }] end)
    raises("entry 1: the range {2, 4} does not fit a dim of size 3", function() return x[{ { 2, 4 } }] end)
    raises("entry 1: the range {3, 1} does not fit", function() return x[{ { 3, 1 } }] end)
    raises("3 entries for a tensor of 2 dims", function() return x[{ 1, 2, 3 }] end)
    raises("a 0-d tensor has no positions", function() return tensor(1)[1] end)
    raises("index", function() return x[longs { 3 }] end)
    raises("position -4 (counted from 0) is out of range for dim 1 of size 3",
      function() return x[longs { 0, -4 }] end)
    raises("position -5 (counted from 0) is out of range for dim 2 of size 4",
      function() return x[{ 1, tensor(-5, { dtype = "int64" }) }] end)
  end)

  it("refuses keys of other kinds", function()
    local x = grid()
    raises("expected a position, a list or a tensor as key, got number 1.5", function() return x[1.5] end)
    raises("got number nan", function() return x[0 / 0] end)
    raises("got boolean true", function() return x[true] end)
    raises("entry 2: expected a position, {}, {first, last} or a tensor, got string \"a\"",
      function() return x[{ 1, "a" }] end)
    raises("entry 1: expected {}, {first, last} or {first, last, step}, got a list of 1",
      function() return x[{ { 1 } }] end)
    raises("entry 1: the step must be at least 1, got 0", function() return x[{ { 1, 2, 0 } }] end)
    raises("entry 1: expected integers in a range, got string", function() return x[{ { 1, "b" } }] end)
    raises("expected a list with one entry a dim", function() return x[{ a = 1 }] end)
    raises("expected a tensor of bool (a mask) or int64", function() return x[tensor({ 1, 2 })] end)
    raises("a mask of shape [2] does not match the first dims of shape [3, 4]",
      function() return x[tensor({ true, false })] end)
    raises("a mask of 2 does not fit a dim of size 4",
      function() return x[{ {}, tensor({ true, false }) }] end)
  end)
end)

describe("writing", function()
  it("a number or a tensor goes to positions and ranges", function()
    local x = tensor.zeros(2, 3)
    x[1] = 1
    x[{ 2, 3 }] = 5
    x[{ 2, { 1, 2 } }] = tensor({ 7, 8 })
    assert.same({ { 1, 1, 1 }, { 7, 8, 5 } }, x:totable())
    x[{ {}, 1 }] = tensor({ 3, 4 })
    assert.same({ { 3, 1, 1 }, { 4, 8, 5 } }, x:totable())
    x[{}] = 2
    assert.same({ { 2, 2, 2 }, { 2, 2, 2 } }, x:totable())
    x[{ { 1, 2 } }] = tensor({ 1, 2, 3 })  -- broadcast
    assert.same({ { 1, 2, 3 }, { 1, 2, 3 } }, x:totable())
    x[{ {}, { 1, 3, 2 } }] = 0
    assert.same({ { 0, 2, 0 }, { 0, 2, 0 } }, x:totable())
  end)

  it("casts to the tensor's type", function()
    local x = tensor.zeros(2, { dtype = "int64" })
    x[1] = tensor({ 3.0 })
    x[2] = true
    assert.same({ 3, 1 }, x:totable())
    raises("1.5 does not fit a tensor of int64", function() x[1] = 1.5 end)
  end)

  it("goes where a mask is true", function()
    local x = grid()
    x[x:gt(8)] = -1
    assert.same({ { 0, 1, 2, 3 }, { 4, 5, 6, 7 }, { 8, -1, -1, -1 } }, x:totable())
    x[tensor({ true, false, false })] = 9
    assert.same({ { 9, 9, 9, 9 }, { 4, 5, 6, 7 }, { 8, -1, -1, -1 } }, x:totable())
    x[x:lt(0)] = longs { 1, 2, 3 }
    assert.same({ 8, 1, 2, 3 }, x[3]:totable())
    x[tensor({ false, true, true })] = longs { 1, 2, 3, 4 }
    assert.same({ { 1, 2, 3, 4 }, { 1, 2, 3, 4 } }, x[{ { 2, 3 } }]:totable())
    x[x:gt(100)] = 5
    local b = tensor({ true, false, true })
    b[b] = false
    assert.same({ false, false, false }, b:totable())
  end)

  it("of bools goes where a mask is true, or to listed positions", function()
    local y = tensor.tensor { true, false, true, false }
    y[tensor.tensor { true, true, false, false }] = tensor.tensor { false, true }
    assert.are.same({ false, true, true, false }, y:totable())
    y[{ longs { 0, 3 } }] = tensor.tensor { true, true }
    assert.are.same({ true, true, true, true }, y:totable())
    y[y] = tensor.tensor { 0, 2, 0, 0.5 }
    assert.are.same({ false, true, false, true }, y:totable())
  end)

  it("goes to listed rows, in order", function()
    local x = tensor.zeros(3, 2)
    x[longs { 2, 0 }] = tensor({ { 1, 2 }, { 3, 4 } })
    assert.same({ { 3, 4 }, { 0, 0 }, { 1, 2 } }, x:totable())
    x[longs { 0, 0 }] = tensor({ { 5, 5 }, { 6, 6 } })
    assert.same({ 6, 6 }, x[1]:totable())
    x[longs { 1, 2 }] = 8
    assert.same({ { 6, 6 }, { 8, 8 }, { 8, 8 } }, x:totable())
    raises("position 3 (counted from 0) is out of range for dim 1 of size 3",
      function() x[longs { 3 }] = 1 end)
  end)

  it("writes through views", function()
    local x = tensor.zeros(2, 2)
    x[1][2] = 4
    x:t()[{ 1, 2 }] = 6
    assert.same({ { 0, 4 }, { 6, 0 } }, x:totable())
  end)

  it("is recorded where gradients are", function()
    local v = tensor({ 10, 20 }, { requires_grad = true })
    local x = tensor.zeros(2, 2)
    x[1] = v
    assert.same({ { 10, 20 }, { 0, 0 } }, x:totable())
    local w = tensor({ { 1, 2 }, { 3, 4 } })
    local loss = (x * w):sum()
    loss:backward()
    assert.same({ 1, 2 }, v.grad:totable())
  end)

  it("cuts the history of what it overwrites", function()
    local v = tensor({ 1, 2, 3 }, { requires_grad = true })
    local x = v * 2
    x[2] = 0
    x[x:gt(5)] = 7
    assert.same({ 2, 0, 7 }, x:totable())
    x:sum():backward()
    assert.same({ 2, 0, 0 }, v.grad:totable())
    local u = tensor({ 1, 2, 3 }, { requires_grad = true })
    local y = u * 2
    y[longs { 2, 0 }] = u[{ { 1, 2 } }]
    assert.same({ 2, 4, 1 }, y:totable())
    y:sum():backward()
    assert.same({ 1, 3, 0 }, u.grad:totable())
    local z = u * 1
    z[longs { 0, 0 }] = u[{ { 1, 2 } }]
    assert.same({ 2, 2, 3 }, z:totable())
  end)

  it("refuses to write into a leaf that is being trained", function()
    local x = tensor.ones(2, { requires_grad = true })
    raises("a leaf that requires a gradient cannot be changed in place", function() x[1] = 0 end)
    tensor.no_grad(function() x[1] = 0 end)
    assert.same({ 0, 1 }, x:totable())
  end)

  it("takes lists of positions and masks inside a list", function()
    local x = tensor.zeros({ 3, 4 }, { dtype = "int64" })
    x[{ {}, longs { 3, 0 } }] = longs { 7, 8 }
    x[{ longs { 1 } }] = 5
    x[{ 3, tensor({ false, true, true, false }) }] = 9
    assert.same({ { 8, 0, 0, 7 }, { 5, 5, 5, 5 }, { 8, 9, 9, 7 } }, x:totable())
  end)

  it("keeps the last value of a place that is named twice, and adds with accumulate", function()
    local x = tensor.zeros(3, 2)
    x[{ {}, longs { 0, 0 } }] = tensor({ { 1, 2 }, { 3, 4 }, { 5, 6 } })
    assert.same({ { 2, 0 }, { 4, 0 }, { 6, 0 } }, x:totable())
    assert.equal(x, x:index_put_({ longs { 0, 0 }, longs { 1, 1 } }, tensor({ 7, 8 }), { accumulate = true }))
    assert.same({ { 2, 15 }, { 4, 0 }, { 6, 0 } }, x:totable())
    local y = x:index_put({ 1 }, 1, { accumulate = true })
    assert.same({ { 3, 16 }, { 4, 0 }, { 6, 0 } }, y:totable())
    assert.same({ { 2, 15 }, { 4, 0 }, { 6, 0 } }, x:totable())
    raises("unknown option 'acumulate'; did you mean 'accumulate'", function()
      x:index_put_({ 1 }, 1, { acumulate = true })
    end)
    raises("index_put: argument 1 (x): expected a tensor, got 1",
      function() tensor.index_put(1, { 1 }, 1) end)
    local positive = tensor({ 1, 0, 0 }):gt(0)
    positive:index_put_({ longs { 1, 1 } }, true, { accumulate = true })
    assert.same({ true, true, false }, positive:totable())
  end)

  it("takes nested lists, in the tensor's type", function()
    local x = tensor.zeros({ 2, 3 }, { dtype = "int64" })
    x[1] = { 1, 2, 3 }
    x[{ {}, longs { 2, 0 } }] = { { 7, 8 }, { 9, 10 } }
    assert.same({ { 8, 2, 7 }, { 10, 0, 9 } }, x:totable())
    x[x:gt(8)] = { 0, 0 }
    assert.same({ { 8, 2, 7 }, { 0, 0, 0 } }, x:totable())
    x[{}] = { { true }, { false } }
    assert.same({ { 1, 1, 1 }, { 0, 0, 0 } }, x:totable())
    raises("0.5 does not fit int64", function() x[1] = { 0.5, 1, 2 } end)
    raises("ragged table", function() x[{}] = { { 1, 2, 3 }, { 1 } } end)
    raises("a value of shape [2] does not fit the place of shape [3]", function() x[1] = { 1, 2 } end)
    raises("expected lists", function() x[1] = { a = 1 } end)
  end)

  it("writes through strided views and merged dims", function()
    local whole = tensor.zeros(4, 6)
    local x = whole:t()[{ { 2, 5 }, { 1, 4, 2 } }]   -- 4 x 2, neither dim is dense
    x[{ longs { 3, 0 }, longs { 1, 0 } }] = tensor({ 5, 6 })
    assert.same({ { 0, 6, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 5, 0 }, { 0, 0, 0, 0, 0, 0 } },
      whole:totable())
    x[x:eq(5)] = x[x:eq(6)]
    assert.equal(6, whole[{ 3, 5 }]:item())
    raises("is expanded", function() tensor.zeros(3, 1):expand(3, 2)[{ longs { 0 }, longs { 1 } }] = 1 end)
  end)

  it("refuses values that do not fit", function()
    local x = grid()
    raises("index: a value of shape [3] does not fit the place of shape [4]",
      function() x[1] = tensor.ones(3) end)
    raises("a value of shape [2, 4] does not fit the place of shape [4]",
      function() x[1] = tensor.ones(2, 4) end)
    raises("expected a number, a boolean or a tensor to assign, got nil", function() x[1] = nil end)
    raises("got string", function() x[1] = "a" end)
    raises("a value of shape [5]", function() x[x:gt(8)] = longs { 1, 2, 3, 4, 5 } end)
    raises("expected a position, a list or a tensor as key", function() x[1.5] = 1 end)
    raises("position 4 is out of range", function() x[4] = 1 end)
  end)

  it("goes through rows with ipairs", function()
    local x, seen = tensor.ones(2, 3, { requires_grad = true }), {}
    local sum = 0
    for i, row in ipairs(x) do
      seen[i] = row.shape
      sum = sum + row:sum() * i
    end
    assert.same({ { 3 }, { 3 } }, seen)
    sum:backward()
    assert.same({ { 1, 1, 1 }, { 2, 2, 2 } }, x.grad:totable())
    local numbers = {}
    for i, value in ipairs(tensor.arange(3)) do numbers[i] = value:item() end
    assert.same({ 0, 1, 2 }, numbers)
    for _ in ipairs(tensor.zeros(0, 2)) do error("there is no row") end
    raises("ipairs: a 0-d tensor has no rows; x:item() is its number", ipairs, tensor(3))
    local step, subject = ipairs(x)
    raises("ipairs", step, nil, 0)
    assert.is_nil(step(subject, 2 ^ 60))
    assert.is_nil(step(subject, -5))
    assert.is_nil(step(subject, 0 / 0))
  end)
end)
