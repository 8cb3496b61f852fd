--- The count of bytes that kernels move (make traffic): that it counts what moves, and that a GPT-2
--- step stays near the least.
local device = require "spec.support.device"
local host = require "spec.support.host"
local traffic = dofile "bench/traffic.lua"

describe("factors of terms", function()
  it("give the bytes of sizes that were not counted", function()
    local function bytes(n, c, v) return 12 * n * c + 4 * n * v + 100 end
    local function terms(n, c, v) return { n * c, n * v, n * n * c, 1 } end
    local rows, counted = {}, {}
    local sizes = { { 64, 8, 100 }, { 128, 8, 100 }, { 64, 32, 100 }, { 64, 8, 300 }, { 256, 16, 50 } }
    for _, size in ipairs(sizes) do
      rows[#rows + 1], counted[#counted + 1] = terms(unpack(size)), bytes(unpack(size))
    end
    local c, sum = traffic.fit(rows, counted), 0
    for k, term in ipairs(terms(8192, 768, 50257)) do sum = sum + c[k] * term end
    assert.is_true(math.abs(sum / bytes(8192, 768, 50257) - 1) < 0.01, sum)
  end)
end)

local plugin = host.path:match("^(.*)/") .. "/libax_cuda_traffic.so"
local file = device.kind == "emulated" and io.open(plugin)
if not file then
  describe("traffic", function()
    it("needs the emulated device that counts", function() pending "make traffic builds it" end)
  end)
  return
end
file:close()

-- What the kernels of a piece of Lua move: { launches, read, written, accessed, writes } by name.
local function moved(setup, code)
  local script = ([[
    local tensor = require "accelerate.tensor"
    local ffi = require "ffi"
    ffi.cdef "const char *ax_emulated_traffic(void);"
    local lib = ffi.load(os.getenv "ACCEL_CUDA_PLUGIN")
    %s
    lib.ax_emulated_traffic()
    %s
    tensor.synchronize "cuda:0"
    io.write(ffi.string(lib.ax_emulated_traffic()))
  ]]):format(setup, code)
  local status, out, err = host.run({ "-e", script }, { env = { ACCEL_CUDA_PLUGIN = plugin } })
  assert.are.equal(0, status, err)
  local found = {}
  for name, figures in out:gmatch("([^\t\n]+)\t([%d\t]+)\n") do
    found[name] = {}
    for figure in figures:gmatch "%d+" do table.insert(found[name], tonumber(figure)) end
  end
  return found
end

describe("traffic", function()
  it("is what a kernel reads and writes, each sector once", function()
    local found = moved("local x = tensor.ones(4096, { device = 'cuda' }); local y = x:clone()",
      "local z = x + y; local s = z:sum(); local t = x:view(64, 64):select(2, 1) * 2")
    assert.are.same({ 1, 32768, 16384, 49152, 1024 }, found.add) -- 16 bytes a write
    assert.are.equal(16384, found.sum[2]) -- z was written before: by another launch
    assert.are.same({ 64 * 32, 256 }, { found.mul[2], found.mul[3] }) -- a sector for each of 64 numbers
  end)

  it("counts copies between threads' fast and the device's memory, libraries, fills", function()
    local found = moved([[
      local F = require "accelerate.nn.functional"
      local q = tensor.randn(2, 1, 64, 64):to("cuda", "bfloat16")
      local w = tensor.randn(64, 64):to("cuda", "bfloat16")
    ]], "local y = F.scaled_dot_product_attention(q, q, q); local p = q:view(128, 64):mm(w)")
    assert.are.same({ 16384, 16384 + 2 * 64 * 4 }, { found.attention[2], found.attention[3] })
    assert.are.same({ 1, 16384 + 8192, 16384 }, { found.product[1], found.product[2], found.product[3] })
  end)

  it("of a decoded matrix is its bytes, written 16 at once", function()
    local found = moved([[
      local encodings = require "accelerate.quantisation.encodings"
      local e = encodings.encode("nf4", tensor.randn(33, 96))
      for _, part in ipairs { "codes", "scales" } do e[part] = e[part]:to "cuda" end
    ]], "local y = encodings.decode(e, 'bfloat16')")
    assert.are.equal(33 * 96 * 2, found.decode[3])
    assert.are.equal(33 * 96 * 2 / 16, found.decode[5])
  end)

  it("has no pass for relu and a residual behind a batch norm, nor for their gradients", function()
    local found = moved([[
      local F = require "accelerate.nn.functional"
      local leaf = tensor.randn(2, 16, 16, 16):to("cuda"):requires_grad_()
      local function norm(v) return F.batch_norm(v, nil, nil, nil, nil, { training = true }) end
      local bytes = 2 * 16 * 16 * 16 * 4
    ]], [[
      local x = leaf:permute(1, 4, 2, 3)
      local y = F.relu(norm(x))
      local z = F.relu(norm(y) + x)
      z:backward(x:detach())
    ]])
    assert.is_nil(found.relu)
    assert.is_nil(found._relu_backward)
    local bytes = 2 * 16 ^ 3 * 4
    assert.is_true((found.add or { 0, 0 })[2] <= 2 * bytes) -- the sum of the leaf's two gradients alone
    -- each norm: x twice, y; the residual; their gradients: g and x twice, dx; for the residual's
    -- relu its result and g
    local moves = found.batch_norm[2] + found.batch_norm[3]
    assert.is_true(moves < 19.5 * bytes, moves / bytes)
  end)

  it("has no pass for a cast behind a norm, nor one that reads a sum for it", function()
    local found = moved([[
      local F = require "accelerate.nn.functional"
      local x = tensor.randn(64, 128):to("cuda")
      local b = tensor.randn(64, 128):to("cuda", "bfloat16")
      local w = tensor.randn(8, 128):to("cuda", "bfloat16")
    ]], [[
      tensor.autocast({ dtype = "bfloat16" }, function()
        local sum = x + b
        return F.linear(F.layer_norm(sum, { 128 }), w)
      end)
    ]])
    assert.is_nil(found.add)
    assert.is_nil(found.copy)
    assert.are.equal(64 * 128 * (4 + 2), found.layer_norm[2])
    assert.are.equal(64 * 128 * (4 + 2) + 2 * 64 * 4, found.layer_norm[3])
  end)

  it("of a GPT-2 step is at most one and a half times the least", function()
    local step = traffic.steps[1]
    local list, off = traffic.measure(step)
    local bytes, least = traffic.total(list)
    assert.is_true(off < 0.02, ("the sums of terms are off by %g"):format(off))
    assert.is_true(bytes <= step.most * least, ("%.2f times the least"):format(bytes / least))
  end)
end)
