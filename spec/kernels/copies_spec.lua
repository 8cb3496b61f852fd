--- Copies of the CPU in every layout and type, and what casts do with numbers that have no place in
--- the other type.
local tensor = require "accelerate.tensor"

local nan, inf = 0 / 0, math.huge

describe("copies", function()
  it("transpose in tiles of any size and type", function()
    for _, dtype in ipairs { "float32", "float64", "bfloat16", "uint8" } do
      for _, size in ipairs { { 33, 65 }, { 100, 31 }, { 8, 200 } } do
        local x = tensor.arange(size[1] * size[2]):remainder(200):to(dtype):view(size)
        local y = x:t():contiguous()
        assert.are.same(x:totable(), y:t():contiguous():totable())
        assert.are.equal(x[3][7]:item(), y[7][3]:item())
      end
    end
  end)

  it("round half types to nearest even", function()
    assert.are.same({ 1, 1.0009765625 + 0.0009765625, inf, 65504 },
      tensor.tensor { 1 + 2 ^ -11, 1 + 3 * 2 ^ -11, 65520, 65519 }:to("float16"):double():totable())
    assert.are.same({ 1, 1 + 2 ^ -6 },
      tensor.tensor { 1 + 2 ^ -8, 1 + 3 * 2 ^ -8 }:to("bfloat16"):double():totable())
  end)

  it("of 16 MB and more, which go past the caches, are whole, from and to any place", function()
    for _, case in ipairs { { "uint8", 2 ^ 24 + 1, 1, 1 }, { "uint8", 2 ^ 24 + 12345, 7, 63 },
      { "bfloat16", 2 ^ 23 + 77, 3, 2 }, { "float32", 2 ^ 22 + 4099, 2, 6 },
      { "float64", 2 ^ 21 + 9, 5, 1 } } do
      local dtype, n, from, to = unpack(case)
      local source = tensor.randint(0, 100, { n + 64 }):to(dtype)
      local target = tensor.full({ n + 128 }, 101, { dtype = dtype })
      target:narrow(1, to, n):copy_(source:narrow(1, from, n))
      local what = ("%s, %d elements from %d to %d"):format(dtype, n, from, to)
      assert.is_true(target:narrow(1, to, n):eq(source:narrow(1, from, n)):all():item(), what)
      -- Nothing beside them is written.
      assert.equal(128, target:eq(101):sum():item(), what)
    end
  end)
end)

describe("casts to int64", function()
  it("truncate in blocks of small numbers as beside large ones", function()
    for _, dtype in ipairs { "float32", "float64" } do
      local x = (tensor.randn(2500, { dtype = "float64" }) * 1e5):to(dtype)
      local ends = { 2 ^ 31, -2 ^ 31, -2 ^ 31 - 256, 2 ^ 40, -2 ^ 62, inf, -inf, nan, -0.5, 2 ^ 31 - 128 }
      local want = { 2 ^ 31, -2 ^ 31, -2 ^ 31 - 256, 2 ^ 40, -2 ^ 62, -2 ^ 63, -2 ^ 63, -2 ^ 63, 0,
        2 ^ 31 - 128 }
      local got, each = x:long():double():totable(), x:trunc():totable()
      for i, v in ipairs(got) do assert.are.equal(each[i], v) end
      x:narrow(1, 1, #ends):copy_(tensor.tensor(ends, { dtype = dtype }))
      local beside = x:long():double():totable()
      for i, v in ipairs(beside) do assert.are.equal(want[i] or got[i], v) end
    end
  end)
end)

describe("copies that turn dims over", function()
  -- The elements of x in the order of a permutation, read one by one.
  local function permuted(values, shape, order)
    local stride, step = {}, 1
    for d = #shape, 1, -1 do stride[d], step = step, step * shape[d] end
    local list, at = {}, {}
    for d = 1, #shape do at[d] = 0 end
    for i = 1, step do
      local from = 1
      for k, d in ipairs(order) do from = from + at[k] * stride[d] end
      list[i] = values[from]
      for k = #order, 1, -1 do
        at[k] = at[k] + 1
        if at[k] < shape[order[k]] then break end
        at[k] = 0
      end
    end
    return list
  end

  it("move each element, of every size and type", function()
    for _, case in ipairs { { { 70, 37 }, { 2, 1 } }, { { 64, 64 }, { 2, 1 } }, { { 33, 8 }, { 2, 1 } },
      { { 2, 3, 9, 11 }, { 1, 3, 4, 2 } }, { { 2, 9, 11, 3 }, { 1, 4, 2, 3 } },
      { { 3, 7, 40 }, { 3, 1, 2 } }, { { 2, 5, 2, 3, 4, 9 }, { 1, 2, 5, 3, 6, 4 } },
      { { 1, 16, 40 }, { 1, 3, 2 } }, { { 40, 2 }, { 2, 1 } }, { { 2, 40 }, { 2, 1 } } } do
      local shape, order = unpack(case)
      for _, dtype in ipairs { "bool", "uint8", "bfloat16", "int32", "float32", "float64", "complex128" } do
        local n = 1
        for _, size in ipairs(shape) do n = n * size end
        local x = dtype == "bool" and tensor.rand(n):lt(0.5)
          or tensor.randint(0, 200, { n }):to(dtype == "complex128" and "float64" or dtype)
        local values = x:totable()
        if dtype == "complex128" then x = x:to(dtype) end
        local y = x:view(shape):permute(order):contiguous():view(-1)
        assert.same(permuted(values, shape, order), (dtype == "complex128" and y:real() or y):totable(),
          dtype .. " of " .. table.concat(shape, " x "))
      end
    end
  end)
end)
