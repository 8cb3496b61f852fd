--- Products of matrices of the CPU: every type and layout beside plain loops, and bfloat16 without
--- the processor's instructions for it.
local core = require "accelerate.core"
local tensor = require "accelerate.tensor"
local host = require "spec.support.host"
local raises = require("spec.support.messages").raises

describe("products", function()
  local function plain(a, b)
    local m, k, n = a.shape[1], a.shape[2], b.shape[2]
    local x, y, out = a:totable(), b:totable(), {}
    for i = 1, m do
      out[i] = {}
      for j = 1, n do
        local s = 0
        for p = 1, k do s = s + x[i][p] * y[p][j] end
        out[i][j] = s
      end
    end
    return out
  end
  -- the same numbers in memory of another layout
  local layouts = {
    rows = function(t) return t end,
    columns = function(t) return t:t():contiguous():t() end,
    gaps = function(t) return core.cat({ t, t }, 2):t():contiguous():t()[{ {}, { 1, t.shape[2] } }] end,
    neither = function(t)
      local wide = core.stack({ t, t }, 3)
      return wide:select(3, 1)
    end,
  }

  for _, dtype in ipairs { "float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8" } do
    it("of " .. dtype .. " in every layout", function()
      for _, size in ipairs { { 1, 1, 1 }, { 3, 5, 2 }, { 17, 33, 70 }, { 65, 130, 9 }, { 1, 40, 7 },
        { 40, 7, 1 } } do
        local m, k, n = unpack(size)
        local a = tensor.randint(0, 4, { m, k }, { generator = tensor.Generator(m) }):to(dtype)
        local b = tensor.randint(0, 4, { k, n }, { generator = tensor.Generator(n) }):to(dtype)
        local expected = plain(a, b)
        if dtype == "uint8" then
          for i = 1, m do for j = 1, n do expected[i][j] = expected[i][j] % 256 end end
        end
        local want = tensor.tensor(expected, { dtype = "float64" }):to(dtype)
        for name, of_a in pairs(layouts) do
          for other, of_b in pairs(layouts) do
            local got = core.mm(of_a(a), of_b(b))
            assert.is_true(got:eq(want):all():item(), ("%s %s %d x %d x %d"):format(name, other, m, k, n))
          end
        end
      end
    end)
  end

  it("with nothing to add up are zeros, and bool has none", function()
    assert.are.same({ { 0, 0 }, { 0, 0 }, { 0, 0 } },
      core.mm(tensor.zeros(3, 0), tensor.zeros(0, 2)):totable())
    assert.are.same({ { 1, 2 }, { 1, 2 } },
      core.linear(tensor.zeros(2, 0), tensor.zeros(2, 0), tensor.tensor { 1, 2 }):totable())
    raises("bool", core.mm, tensor.ones(2, 2, { dtype = "bool" }), tensor.ones(2, 2, { dtype = "bool" }))
  end)
end)

describe("products of bfloat16 on a processor without its instructions", function()
  it("go through float32, whatever their layout, and round once", function()
    local status, out, err = host.run({ "-e", [[
      local core, tensor = require "accelerate.core", require "accelerate.tensor"
      tensor.manual_seed(1)
      local a, b = tensor.randn(70, 33):to("bfloat16"), tensor.randn(33, 45):to("bfloat16")
      local at, bt = a:t():contiguous():t(), b:t():contiguous():t()
      local wide = a:float():mm(b:float())
      core.kernel_stats { reset = true }
      for _, x in ipairs { a, at, a:to("float64"):to("bfloat16") } do
        for _, y in ipairs { b, bt } do assert(core.same_bits(x:mm(y), wide:to("bfloat16"))) end
      end
      assert(core.same_bits(a[{ { 1, -1, 2 } }]:mm(b), wide[{ { 1, -1, 2 } }]:to("bfloat16")))
      local sum = tensor.ones(70, 45, { dtype = "bfloat16" })
      assert((sum:addmm(at, bt):float() - (wide + 1)):abs():max():item() < 0.1)
      for name, calls in pairs(core.kernel_stats()) do
        if name:find "^mm bfloat16" then print(name, calls) end
      end
    ]] }, { env = { DNNL_MAX_CPU_ISA = "AVX512_CORE" } })
    assert.equal(0, status, err)
    for line in out:gmatch "[^\n]+" do assert.truthy(line:find("through float32", 1, true), out) end
    assert.truthy(out:find("mm bfloat16 -> bfloat16, through float32", 1, true), out)
  end)
end)
